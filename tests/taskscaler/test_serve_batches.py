"""Batches that a daemon owns: what is accepted, whose it is, and what becomes of it when the daemon goes."""

import io
import tarfile
from base64 import b64decode
from collections.abc import Mapping
from functools import partial
from json import loads
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
from anyio import to_thread
from anyio.abc import SocketStream
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from fleeting import MemoryJournal
from fleeting.connectors import Sink
from fleeting.testing import FakeCloud
from taskscaler import NoCapacity
from taskscaler._jobsfile import Retention
from taskscaler.batch._share import SubmittedShare
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict
from taskscaler.serve import _app, _batch_files, _batches
from taskscaler.serve._retention import LEAST_FREE, Finished, Room, outdated, room
from tests.taskscaler.calling import MEMBER, OWNER, STRANGER, Answer, Caller, called
from tests.taskscaler.daemons import daemon
from tests.taskscaler.services import command

pytestmark = pytest.mark.anyio


@define
class Obedient:
    """An executor whose scripts are words: ``true``, ``false``, ``hang``, and ``cat`` of a file below ``data``."""

    ran: list[str] = field(factory=list)
    hanging: anyio.Event = field(factory=anyio.Event)

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Do what the script says."""
        self.ran.append(job.name)
        word, _, rest = job.script.partition(" ")
        await output(f"{job.name} on {lease.instance}\n".encode())
        match word:
            case "hang":
                self.hanging.set()
                await anyio.sleep_forever()
            case "cat":
                await output(await anyio.Path(job.files["data"], rest).read_bytes())
            case "false":
                return JobOutcome(verdict=Verdict.FAILED, exit_code=1, why="exited with 1")
        return JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0)


def archive(files: Mapping[str, str | bytes]) -> bytes:
    """Make a tar archive; what begins with ``->`` is a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            data = content.encode() if isinstance(content, str) else content
            if data.startswith(b"->"):
                member.type, member.linkname = tarfile.SYMTYPE, data[2:].decode()
                tar.addfile(member)
            else:
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def jobs_file(**scripts: str) -> str:
    """Write a jobs file; each job has a script."""
    return "".join(f'[[jobs]]\nname = "{name}"\nscript = "{script}"\n' for name, script in scripts.items())


@define
class Lasting(Obedient):
    """One whose jobs hang and outlive their daemon, and end no sooner than they may."""

    alive: set[str] = field(factory=set)
    """Names of tries."""

    may_end: anyio.Event = field(factory=anyio.Event)

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """Start a job."""
        self.ran.append(job.name)
        self.alive.add(name)

    async def attach(
        self,
        job: JobSpec,
        lease: Leased,
        *,
        name: str,
        offset: int = 0,
        elapsed: float = 0.0,
        output: Sink,
        artifacts: Path,
    ) -> JobOutcome:
        """Follow it for ever."""
        self.hanging.set()
        await anyio.sleep_forever()
        raise AssertionError("it never ends")

    async def end(self, lease: Leased, *, name: str) -> None:
        """End it."""
        await self.may_end.wait()
        self.alive.discard(name)


async def submit(ask: Caller, files: Mapping[str, str | bytes] | None = None, **scripts: str) -> Answer:
    """Hand over a batch."""
    content = {"jobs.toml": jobs_file(**scripts), **(files or {})}
    return await ask("POST", "/batches?name=jobs.toml", raw=archive(content))


async def over(ask: Caller, batch: str) -> Mapping[str, Any]:
    """Wait for the end of a batch."""
    data: Mapping[str, Any] = (await ask("GET", f"/batch/wait?batch={batch}")).data
    return data


async def listed(ask: Caller) -> list[str]:
    """Name the batches that somebody may see."""
    return [each["batch"] for each in (await ask("GET", "/batches")).data["batches"]]


async def test_a_batch_is_run_and_its_log_read(tmp_path: Path) -> None:
    """What was sent is there for the jobs; how they went is known afterwards, and nothing that they needed is left."""
    obedient = Obedient()
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, fleet):
        text = jobs_file(a="cat x", b="false") + 'retries = 0\n[defaults]\nfiles = ["data"]\n'
        answer = await ask("POST", "/batches?name=my.toml", raw=archive({"my.toml": text, "data/x": "forty-two\n"}))
        assert answer.status == 200, answer
        batch = answer.data["batch"]
        assert answer.data["jobs"] == 2
        ended = await over(ask, batch)
        assert (ended["state"], ended["jobs"], ended["name"]) == ("failed", {"succeeded": 1, "failed": 1}, "my.toml")
        status, log = await ask.read("GET", f"/batch/log?batch={batch}&job=a&lines=1")
        assert (status, log) == (200, b"forty-two\n")
        jobs = (await ask("GET", f"/batch?batch={batch}&first=1&most=5")).data
        assert (jobs["total"], [each["name"] for each in jobs["list"]]) == (2, ["b"])
        assert (jobs["list"][0]["state"], jobs["list"][0]["exit_code"]) == ("failed", 1)
        assert sorted(path.name for path in (tmp_path / "b" / batch).iterdir()) == [
            "batch.json",
            "over.json",
            "results",
        ]
        assert (await fleet.scaler.capacity()).acquired == 0


async def test_a_batch_is_submitted_once(tmp_path: Path) -> None:
    """The same request of the same user is the same batch: at the same time, once it is over, and to the next daemon.

    Another user's, and one without a name, is another batch.
    """
    obedient, name = Obedient(), "/batches?name=jobs.toml&request=once"
    content = archive({"jobs.toml": jobs_file(a="true", b="true")})
    answers: list[Answer] = []
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, _):

        async def send() -> None:
            answers.append(await ask("POST", name, raw=content))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(send)
        batch = answers[0].data["batch"]
        await over(ask, batch)
        await send()
        other = await ask.called(1, MEMBER)("POST", name, raw=content)
        assert (await submit(ask, a="true")).data["batch"] not in {batch, other.data["batch"]} != {batch}
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, _):
        answers.append(await ask("POST", name, raw=content))
        assert len(await listed(ask)) == 3
    assert [each.data for each in answers] == [{"batch": batch, "jobs": 2}] * 5


async def test_a_submission_whose_answer_is_lost_is_sent_again(tmp_path: Path) -> None:
    """By the command, which then prints the one batch that there is."""
    (tmp_path / "jobs.toml").write_text(jobs_file(a="true"))
    way, lost = tmp_path / "way.sock", anyio.Event()
    said: list[tuple[int, str]] = []

    async def pass_on(near: SocketStream) -> None:
        """Take what is asked to the daemon, and its answer back, but for the first one."""
        async with near, await anyio.connect_unix(tmp_path / "s.sock") as far, anyio.create_task_group() as tasks:

            async def answer() -> None:
                async for piece in far:
                    if not lost.is_set():
                        lost.set()
                        break
                    await near.send(piece)
                tasks.cancel_scope.cancel()

            tasks.start_soon(answer)
            async for piece in near:
                await far.send(piece)
            tasks.cancel_scope.cancel()

    async with (
        daemon(tmp_path / "s.sock", FakeCloud()) as fleet,
        await anyio.create_unix_listener(way) as listener,
        anyio.create_task_group() as tasks,
    ):
        (tmp_path / "s.batches").mkdir()
        tasks.start_soon(listener.serve, pass_on)
        ask = partial(command, "submit", str(tmp_path / "jobs.toml"), "--json", "--socket", str(way))
        said.append(await to_thread.run_sync(ask))
        tasks.cancel_scope.cancel()
        [batch] = fleet.batches.known
    assert lost.is_set()
    assert [(status, loads(text)) for status, text in said] == [(0, {"batch": batch, "jobs": 1})]


async def test_people_read_which_job_of_which_batch_has_a_slot(tmp_path: Path) -> None:
    """In the sentences of explanations; programs get the keys."""
    obedient = Obedient()
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, _):
        batch = (await submit(ask, {"jobs.toml": jobs_file(**{"a.b-c": "hang"})})).data["batch"]
        await obedient.hanging.wait()
        key = f"batch:{batch}:a.b-c"
        answer = (await ask("GET", f"/explain?key={key}")).data
        assert answer["answer"].startswith(f"job a.b-c of batch {batch} has held slot 0 of ")
        assert answer["key"] == key
        [instance] = (await ask("GET", "/instances")).data["instances"]
        assert instance["slots"] == [key]
        answer = (await ask("GET", f"/explain?instance={instance['id']}")).data
        assert key not in " ".join(answer["details"])
        assert f"job a.b-c of batch {batch}" in " ".join(answer["details"])


async def test_a_batch_is_its_users_and_the_owners(tmp_path: Path) -> None:
    """Others learn nothing of it, not even that there is one; where its results are, only the owner learns."""
    obedient = Obedient()
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, _):
        member, stranger = ask.called(1, MEMBER), ask.called(2, STRANGER)
        mine = (await submit(member, a="hang")).data["batch"]
        await obedient.hanging.wait()
        assert await listed(member) == await listed(ask) == [mine]
        assert await listed(stranger) == []
        refusals = [
            await stranger("GET", f"/batch?batch={mine}"),
            await stranger("GET", f"/batch/wait?batch={mine}"),
            await stranger("GET", f"/batch/log?batch={mine}&job=a"),
            await stranger("POST", "/batch/cancel", {"batch": mine}),
        ]
        missing = [await stranger("GET", "/batch?batch=00000000")]
        assert {each.status for each in refusals + missing} == {404}
        assert {each.why.replace(mine, "00000000") for each in refusals} == {missing[0].why}
        assert (await member("GET", f"/batch?batch={mine}")).data["results"] is None
        assert (await ask("GET", f"/batch?batch={mine}")).data["results"].endswith("results")
        early = await member("GET", f"/batch/results?batch={mine}")
        assert (early.status, "is not over" in early.why) == (409, True)
        assert (await stranger("GET", f"/batch/results?batch={mine}")).status == 404
        assert (await member("POST", "/batch/cancel", {"batch": mine})).status == 200
        assert (await over(member, mine))["state"] == "cancelled"
        _, content = await member.read("GET", f"/batch/results?batch={mine}")
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            assert {"events.jsonl", "results.json", "logs/a.log"} <= set(tar.getnames())
            assert all(each.uid == each.gid == 0 and not each.uname for each in tar.getmembers())


async def test_a_log_is_followed_from_one_daemon_to_the_next(tmp_path: Path) -> None:
    """Each says where to go on, and the one that ends that the job does not; not a byte is missing or comes twice."""
    obedient, seen = Obedient(), b""
    where = {"job": "a", "follow": "true", "places": "true"}
    for boot in range(2):
        async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, fleet):
            if not boot:
                where["batch"] = (await submit(ask, a="hang")).data["batch"]
            await obedient.hanging.wait()
            obedient.hanging = anyio.Event()
            answers: list[bytes] = []

            async def follow(ask: Caller = ask, answers: list[bytes] = answers) -> None:
                answers.append((await ask.read("GET", f"/batch/log?{urlencode(where)}"))[1])

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                await (ask("POST", "/batch/cancel", {"batch": where["batch"]}) if boot else fleet.batches.leave())
            *lines, last = map(loads, answers[0].splitlines())
            seen += b"".join(b64decode(each["data"]) for each in lines)
            where["after"] = lines[-1]["next"]
            assert last == {"over": bool(boot)}
    log = next((tmp_path / "b").glob("*/results/logs/a.log"))
    assert seen == log.read_bytes()
    assert seen.count(b"a on i-") == 2


async def test_a_cancelled_batch_ends_alone_and_for_good(tmp_path: Path) -> None:
    """Its running job ends and its waiting one never starts; another batch goes on, and no later daemon takes it up."""
    obedient = Obedient()
    settings = {"directory": tmp_path / "b", "executors": {"instance": obedient}, "max_instances": 1}
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        first = (await submit(ask, a="hang", b="true")).data["batch"]
        await obedient.hanging.wait()
        second = (await submit(ask, c="true")).data["batch"]
        await ask("POST", "/batch/cancel", {"batch": first})
        ended = await over(ask, first)
        assert (ended["state"], ended["jobs"]) == ("cancelled", {"cancelled": 2})
        assert (await over(ask, second))["state"] == "succeeded"
        assert (await ask("POST", "/batch/cancel", {"batch": second})).data["state"] == "succeeded"
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        assert fleet.batches.unfinished == []
        assert await listed(ask) == [first, second]
    assert obedient.ran == ["a", "c"]


async def test_a_daemon_that_ends_leaves_no_job_of_a_cancelled_batch(tmp_path: Path) -> None:
    """A job that is being ended is not left to the next daemon: its end is waited for, and its slot is free."""
    lasting = Lasting()
    settings = {"directory": tmp_path / "b", "executors": {"instance": lasting}, "journal": MemoryJournal()}
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        batch = (await submit(ask, a="hang")).data["batch"]
        await lasting.hanging.wait()
        await ask("POST", "/batch/cancel", {"batch": batch})
        async with anyio.create_task_group() as ending:
            ending.start_soon(fleet.batches.leave)
            await anyio.sleep(1)
            lasting.may_end.set()
        assert not lasting.alive
        assert fleet.batches.unfinished == []
        assert (await fleet.scaler.capacity()).acquired == 0


async def test_a_batch_that_is_cancelled_while_it_is_left_is_ended_by_the_next_daemon(tmp_path: Path) -> None:
    """Its job still runs when the daemon goes, so it is not over: the next daemon ends the job, and frees its slot."""
    cloud, lasting = FakeCloud(), Lasting()
    settings = {"directory": tmp_path / "b", "executors": {"instance": lasting}, "journal": MemoryJournal()}
    async with called(cloud, **settings) as (ask, fleet):  # type: ignore[arg-type]
        batch = (await submit(ask, a="hang")).data["batch"]
        await lasting.hanging.wait()
        async with anyio.create_task_group() as ending:
            ending.start_soon(fleet.batches.leave)
            await anyio.lowlevel.checkpoint()
            await ask("POST", "/batch/cancel", {"batch": batch})
    assert lasting.alive
    lasting.may_end.set()
    async with called(cloud, **settings) as (ask, fleet):  # type: ignore[arg-type]
        ended = await over(ask, batch)
        assert (ended["state"], ended["jobs"]) == ("cancelled", {"cancelled": 1})
        assert (await fleet.scaler.capacity()).acquired == 0
    assert not lasting.alive
    assert lasting.ran == ["a"]


async def test_what_has_not_begun_is_the_next_daemons(tmp_path: Path) -> None:
    """A daemon that ends begins nothing more and cancels nothing; finished jobs do not run again."""
    obedient = Obedient()
    settings = {"directory": tmp_path / "b", "executors": {"instance": obedient}, "max_instances": 1}
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        batch = (await submit(ask, a="true", b="hang", c="true")).data["batch"]
        await obedient.hanging.wait()
        fleet.batches.drain()
        assert (await submit(ask, d="true")).status == 503
        await fleet.batches.leave()
        assert (await fleet.scaler.capacity()).acquired == 0
    source = tmp_path / "b" / batch / "source" / "jobs.toml"
    source.write_text(source.read_text().replace("hang", "true"))
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        ended = await over(ask, batch)
        assert (ended["state"], ended["jobs"]) == ("succeeded", {"succeeded": 3})
    assert obedient.ran == ["a", "b", "b", "c"]


async def test_a_batch_that_cannot_go_on_ends_nothing_else(tmp_path: Path) -> None:
    """It says why, is no reason for the daemon not to start, and can be cancelled; what is no batch is left alone."""
    obedient = Obedient()
    settings = {"directory": tmp_path / "b", "executors": {"instance": obedient}}
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        broken, whole = (await submit(ask, a="hang")).data["batch"], (await submit(ask, a="hang")).data["batch"]
        await fleet.batches.leave()
    (tmp_path / "b" / broken / "source" / "jobs.toml").write_text("jobs = 1")
    (tmp_path / "b" / "00000000").mkdir()  # its upload was cut short
    (tmp_path / "b" / "11111111").mkdir()
    (tmp_path / "b" / "11111111" / "batch.json").write_text("{")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    obedient.hanging = anyio.Event()
    async with called(FakeCloud(), **settings) as (ask, fleet):  # type: ignore[arg-type]
        stuck = await over(ask, broken)
        assert stuck["state"] == "stuck"
        assert "jobs: expected an array" in stuck["why"]
        await obedient.hanging.wait()
        assert sorted(await listed(ask)) == sorted([broken, whole])
        (tmp_path / "b" / broken / "cancelled").mkdir()  # so that it cannot be noted
        assert (await ask("POST", "/batch/cancel", {"batch": broken})).status == 507
        assert (await ask("GET", f"/batch/wait?batch={broken}")).data["state"] == "stuck"
        (tmp_path / "b" / broken / "cancelled").rmdir()
        assert (await ask("POST", "/batch/cancel", {"batch": broken})).data["state"] == "cancelled"
        assert {path.name for path in (tmp_path / "b").iterdir()} == {broken, whole, "11111111", "notes.txt"}


async def test_a_log_is_followed_until_its_job_is_over(tmp_path: Path) -> None:
    """Whoever follows hears the end of it, here because the batch is cancelled."""
    obedient = Obedient()
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, _):
        batch, read = (await submit(ask, a="hang")).data["batch"], list[bytes]()

        async def follow() -> None:
            read.append((await ask.read("GET", f"/batch/log?batch={batch}&job=%231&follow=true"))[1])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await obedient.hanging.wait()
            await ask("POST", "/batch/cancel", {"batch": batch})
        assert read[0].startswith(b"a on i-")
        refusal = await ask("GET", f"/batch/log?batch={batch}&job=b")
        assert refusal.status == 400
        assert "matches no job" in refusal.why


GOOD = jobs_file(a="true")

HOSTILE: dict[str, tuple[bytes, str]] = {
    "no archive": (b"hello" * 1000, "cannot be used"),
    "nothing": (b"", "cannot be used"),
    "half an archive": (archive({"jobs.toml": GOOD * 100})[:1000], "cannot be used"),
    "without the jobs file": (archive({"x": "y"}), "is not in it"),
    "a directory as the jobs file": (archive({"jobs.toml/x": "y"}), "is not in it"),
    "a link as the jobs file": (archive({"x": "y", "jobs.toml": "->x"}), "is not in it"),
    "a file outside": (archive({"../x": "y", "jobs.toml": GOOD}), "cannot be used"),
    "a link out": (archive({"x": "->../../..", "jobs.toml": GOOD}), "cannot be used"),
    "no TOML": (archive({"jobs.toml": "\x00\xff"}), "TOML"),
    "bytes that are no text": (archive({"jobs.toml": b"\xff\xfe"}), "UTF-8"),
    "TOML without end": (archive({"jobs.toml": "a = " + "[" * 100_000}), "TOML"),
    "no jobs": (archive({"jobs.toml": ""}), "missing key `jobs`"),
    "a fleet": (archive({"jobs.toml": f"{GOOD}[autoscaler]\nplugin = 'x'"}), "no fleet"),
    "an executor": (archive({"jobs.toml": f"{GOOD}[executors.instance]\nbase = '/'"}), "those of the daemon"),
    "a report": (archive({"jobs.toml": f"{GOOD}[report]\ncommand = ['x']"}), "no report"),
    "observers": (archive({"jobs.toml": f"{GOOD}[autoscaler.observers.x]"}), "no fleet"),
    "an unknown executor": (archive({"jobs.toml": f"{GOOD}executor = 'no'"}), "installed"),
    "a file of the host": (archive({"jobs.toml": f"{GOOD}files = ['/etc/passwd']"}), "inside"),
    "a file above": (archive({"jobs.toml": f"{GOOD}files = ['../../batch.json']"}), "inside"),
    "a pattern above": (archive({"jobs.toml": f"{GOOD}for_each = '../*'"}), "inside"),
    "a file that is not there": (archive({"jobs.toml": f"{GOOD}files = ['y']"}), "not a file"),
    "two million jobs": (archive({"jobs.toml": f"{GOOD}copies = 2000000"}), "at most"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_submission_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    """One clear refusal; no batch, no file, no job."""
    content, why = HOSTILE[name]
    obedient = Obedient()
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": obedient}) as (ask, _):
        answer = await ask.called(1, MEMBER)("POST", "/batches?name=jobs.toml", raw=content)
        assert (answer.status, why in str(answer.data)) == (400, True), answer
        assert [*(tmp_path / "b").iterdir()] == []
        assert await listed(ask) == []
    assert obedient.ran == []


@pytest.mark.parametrize("name", ["..%2fjobs.toml", "..", ".", "", "x" * 300, "a%0ab"])
async def test_a_jobs_file_has_the_name_of_a_file(tmp_path: Path, name: str) -> None:
    """It becomes part of a path."""
    async with called(FakeCloud(), directory=tmp_path / "b") as (ask, _):
        answer = await ask("POST", f"/batches?name={name}", raw=archive({"jobs.toml": GOOD}))
        assert (answer.status, "the name of a file" in answer.why) == (400, True), answer


@pytest.mark.parametrize(
    ("bound", "value", "status"),
    [
        ("LARGEST_UPLOAD", 100, 413),
        ("LARGEST_JOBS_FILE", 10, 413),
        ("MOST_UPLOADS", 0, 503),
        ("MOST_UNFINISHED", 0, 503),
        ("MOST_JOBS", 1, 503),
    ],
)
async def test_what_may_be_submitted_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, status: int
) -> None:
    """Each bound refuses, and leaves nothing."""
    monkeypatch.setattr(_batches, bound, value)
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": Obedient()}) as (ask, _):
        assert (await submit(ask, a="true", b="true")).status == status
        assert [*(tmp_path / "b").iterdir()] == []


async def test_an_archive_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of files as by their size."""
    monkeypatch.setattr(_batch_files, "MOST_MEMBERS", 2)
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": Obedient()}) as (ask, _):
        assert (await submit(ask, {"x": "", "y": ""}, a="true")).status == 400
        monkeypatch.setattr(_batch_files, "MOST_MEMBERS", 20)
        monkeypatch.setattr(_batch_files, "LARGEST", 1000)
        assert (await submit(ask, {"x": "x" * 2000}, a="true")).status == 400
        assert [*(tmp_path / "b").iterdir()] == []


async def test_a_submission_that_does_not_come_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends nothing for a while, or hangs up, leaves nothing."""
    monkeypatch.setattr(_app, "BODY_TIMEOUT", 0.05)
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": Obedient()}) as (ask, _):
        assert (await submit(ask, a="true")).status == 200  # what comes in time is taken
        for last in ([], [{"type": "http.disconnect"}]):
            messages: list[Any] = [*last, {"type": "http.request", "body": b"x" * 512, "more_body": True}]
            sent: list[Any] = []

            async def receive(messages: list[Any] = messages) -> Any:  # noqa: ANN401  (ASGI's)
                if not messages:
                    await anyio.sleep_forever()
                return messages.pop()

            async def send(message: Any, sent: list[Any] = sent) -> None:  # noqa: ANN401  (ASGI's)
                sent.append(message)

            await ask.app(ask._scope("POST", "/batches?name=jobs.toml", {}, "1.1"), receive, send)
            assert sent[0]["status"] in {408, 499}
        assert [path.name for path in (tmp_path / "b").iterdir()] == await listed(ask)
        assert len(await listed(ask)) == 1


async def test_a_full_disk_is_said_before_it_matters(tmp_path: Path) -> None:
    """A disk that gets full is warned of once; one that is full refuses batches with the reason."""
    said: list[str] = []
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": Obedient()}) as (ask, fleet):
        fleet.batches.say = said.append
        for free, lines in ((50 << 30, 0), (9 << 30, 1), (8 << 30, 1), (1 << 30, 2), (50 << 30, 2), (9 << 30, 3)):
            fleet.batches.disk = lambda _, free=free: (free, 100 << 30)  # type: ignore[misc]
            await fleet.batches.tidy()
            assert len(said) == lines
        assert "only 9 %" in said[0]
        fleet.batches.disk = lambda _: (1 << 20, 100 << 30)
        refusal = await submit(ask, a="true")
        assert (refusal.status, "is full" in refusal.why) == (507, True)
        left = iter([(3 << 30) + 10_000, 0])
        fleet.batches.disk = lambda _: (next(left), 100 << 30)  # it gets full while the files come
        assert (await submit(ask, a="true")).status == 507
        assert [*(tmp_path / "b").iterdir()] == []


async def test_old_batches_are_deleted(tmp_path: Path) -> None:
    """With all that they left, and no other."""
    limits = Retention(age=1e9, size=1)
    async with called(FakeCloud(), directory=tmp_path / "b", executors={"instance": Obedient()}) as (ask, fleet):
        first, second = [(await submit(ask, a="true")).data["batch"] for _ in range(2)]
        for batch in (first, second):
            await over(ask, batch)
        third = (await submit(ask, a="hang")).data["batch"]
        fleet.batches.retention = limits
        await fleet.batches.tidy()
        newest, *others = await listed(ask)
        assert (newest in {first, second}, others) == (True, [third])
        assert {path.name for path in (tmp_path / "b").iterdir()} == {newest, third}


finished = st.lists(
    st.builds(Finished, st.text("abc", min_size=1), st.floats(0, 100), st.integers(0, 50)),
    unique_by=lambda each: each.id,
)


@given(finished, st.builds(Retention, age=st.floats(1, 50), size=st.integers(1, 200)))
def test_what_is_kept_is_young_and_small_enough(batches: list[Finished], limits: Retention) -> None:
    """Nothing else goes: what is deleted is too old, or there is no room for it beside what is newer."""
    chosen = outdated(batches, limits, 100.0)
    kept = [each for each in batches if each.id not in chosen]
    assert sum(each.size for each in kept) <= limits.size or len(kept) == 1
    assert all(100.0 - each.ended < limits.age for each in kept)
    for each in batches:
        if each.id in chosen and 100.0 - each.ended < limits.age:
            newer = [other for other in batches if (-other.ended, other.id) <= (-each.ended, each.id)]
            assert sum(other.size for other in newer) > limits.size
            assert len(newer) > 1


@given(st.integers(0, 1 << 50), st.integers(1, 1 << 50))
def test_a_disk_is_full_before_it_is_empty(free: int, more: int) -> None:
    """A disk is low before it is full, and more room makes it no worse."""
    total = free + more
    order = [Room.FULL, Room.LOW, Room.ENOUGH]
    assert room(0, total) is Room.FULL
    assert order.index(room(free, total)) <= order.index(room(min(total, free * 2), total))
    assert room(free, total) is Room.FULL or free >= LEAST_FREE


async def test_the_keys_of_batches_are_nobody_elses(tmp_path: Path) -> None:
    """Not even the owner's: they could end a job by its key."""
    async with called(FakeCloud(), directory=tmp_path / "b") as (ask, _):
        client = ask.called(1, OWNER)
        assert (await client("POST", "/client", {})).status == 200
        refusal = await client("POST", "/acquire", {"key": "batch:1:a", "request": "1"})
        assert (refusal.status, "batches" in refusal.why) == (403, True)


async def test_a_share_sees_and_ends_only_its_own() -> None:
    """Two batches may have jobs of one name, and a detached lease of one is not the other's."""
    journal = MemoryJournal()
    async with called(FakeCloud(), journal=journal) as (_, fleet):
        one = SubmittedShare.of(fleet.scaler, "1")
        two = SubmittedShare.of(fleet.scaler, "2", discreet=True)
        async with one.acquire("a", persistent=True) as lease, two.acquire("a", persistent=True) as other:
            assert lease.key != other.key
            await one.stop()
            assert (await fleet.scaler.capacity()).acquired == 2
            other.detach()
        assert one.detached == []
        assert [each.key for each in two.detached] == ["a"]
        again = await two.reattach("a")
        async with again.hold():
            pass
        await fleet.scaler.drain()
        with pytest.raises(NoCapacity) as refusal:
            async with two.acquire("b"):
                pass
        assert "\n" not in str(refusal.value)
