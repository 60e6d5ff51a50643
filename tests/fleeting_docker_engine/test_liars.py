"""Daemons that answer anything: whatever it is, a call succeeds or ends in an error of ours."""

import json
import tarfile
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from executor_docker import DockerConfig, DockerExecutor, DockerOptions
from executor_docker._options import Service
from executor_docker._owner import Owner
from fleeting import FleetingError, LoopClock, ProviderError, Settings
from fleeting._wording import ONE_LINE
from fleeting_docker import DockerGroup, DockerGroupConfig
from fleeting_docker_engine import (
    Created,
    Engine,
    EngineMalformed,
    EngineRefused,
    EngineUnreachable,
    Entry,
    Info,
    Inspected,
    Listed,
    tar_of,
)
from fleeting_docker_engine._answers import MOST_VALUES, parsed
from fleeting_docker_engine._archives import only_file
from fleeting_docker_engine._client import LONGEST_ANSWER, LONGEST_LINE
from fleeting_docker_engine._wire import receive_from
from taskscaler.executors import JobSpec
from tests.fleeting_docker_engine.liars import ANSWERS, FILE, answered, lied_to, lying, serving
from tests.taskscaler.leased import Slot

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
BACKENDS = st.sampled_from(["asyncio", "trio"])


def spoilt(value: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401  (JSON)
    """Make answers that are right but for one thing somewhere in them."""
    match value:
        case dict():
            parts = [
                spoilt(inner).map(partial(lambda key, new: {**value, key: new}, key)) for key, inner in value.items()
            ]
            less = [st.just({key: inner for key, inner in value.items() if key != gone}) for gone in value]
            return st.one_of(JSON, *parts, *less)
        case list():
            return st.one_of(JSON, *(spoilt(inner).map(lambda new: [new]) for inner in value))
    return JSON


def lies(asked: str) -> st.SearchStrategy[bytes]:
    """What may be answered to one request: the wrong JSON, or no JSON at all."""
    if asked.endswith(("/archive", "/attach", "/logs")):
        return st.binary(max_size=2000) | spoilt_archives()
    return spoilt(ANSWERS[asked]).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=50)


def spoilt_archives() -> st.SearchStrategy[bytes]:
    """Make archives of one file some of whose bytes are others."""

    def spoil(changes: list[tuple[int, int]]) -> bytes:
        archive = bytearray(FILE)
        for at, byte in changes:
            archive[at] = byte
        return bytes(archive)

    return st.lists(st.tuples(st.integers(0, 2 * tarfile.BLOCKSIZE), st.integers(0, 255)), max_size=4).map(spoil)


async def _use_group(socket: str, _: Path) -> None:
    """Call everything that a group has."""
    group = DockerGroup(DockerGroupConfig(socket=socket, image="busybox", timeout=5))
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: group.init(Settings(owner="me", clock=LoopClock())),
        group.update,
        lambda: group.increase(1, intent="x"),
        lambda: group.decrease(["default-8dfafdbc3a40"]),
        lambda: group.connect_info("default-8dfafdbc3a40"),
        lambda: group.heartbeat("default-8dfafdbc3a40"),
    ]
    group._clock = LoopClock()  # though the first call may have failed
    for call in calls:
        await _ending_well(call)


async def _ending_well(call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
    except FleetingError as error:
        said = str(error)
    else:
        said = ""
    assert len(said.encode()) <= 2 * ONE_LINE
    assert "\n" not in said


async def _use_executor(socket: str, directory: Path) -> None:
    """Run a job with a service, caches and artifacts, on an instance of two slots."""

    async def output(_: bytes) -> None:
        await checkpoint()

    class Here:
        """A connection to this machine."""

        async def open_unix(self, path: str) -> anyio.abc.ByteStream:
            return await anyio.connect_unix(path)

        async def run(self, *_: object) -> object:
            raise AssertionError("the daemon has answered")

    class Dialled:
        async def __aenter__(self) -> Here:
            return Here()

        async def __aexit__(self, *_: object) -> None:
            await checkpoint()

    config = DockerConfig(
        socket=socket, image="busybox", shares=2, allowed_services=("*",), cleanup_timeout=5, pull_timeout=5
    )
    options = DockerOptions(
        services=(Service(image="redis", health_timeout=0.05),), caches={"c": "/cache"}, user="worker"
    )
    executor = DockerExecutor(config, Owner(directory / "owner"))
    slot = Slot("i-1", Dialled)  # type: ignore[arg-type]  # no more of a connection is used
    for timeout in (5.0, 1e-9):
        job = JobSpec(name="job", script="true", artifacts=("out",), timeout=timeout, options=options)
        await _ending_well(partial(executor.run, job, slot, output=output, artifacts=directory / "artifacts"))


USERS = {"the group": _use_group, "the executor": _use_executor}


def _asked_by(use: Callable[[str, Path], Awaitable[None]]) -> list[str]:
    """Learn which endpoints a user of the client asks, of a daemon that is well."""

    async def main() -> list[str]:
        with tempfile.TemporaryDirectory() as directory:
            async with lying(Path(directory), lambda _: None) as (socket, liar):
                await use(socket, Path(directory))
        return sorted(
            set(liar.asked) & {*ANSWERS}
            | {each for each in liar.asked if each.endswith(("/archive", "/attach", "/logs"))}
        )

    return anyio.run(main)


@pytest.mark.parametrize("user", USERS)
def test_only_errors_of_ours_come_of_what_a_daemon_answers(user: str) -> None:
    """Whichever answer is wrong, and however: no error of Python's gets out, which would end the whole batch."""
    asked = _asked_by(USERS[user])
    assert len(asked) >= 5

    @settings(max_examples=100)
    @given(st.sampled_from(asked).flatmap(lambda each: st.tuples(st.just(each), lies(each))), BACKENDS)
    def check(lie: tuple[str, bytes], backend: str) -> None:
        async def main() -> None:
            with tempfile.TemporaryDirectory() as directory:
                async with lying(Path(directory), lambda each: lie[1] if each == lie[0] else None) as (socket, _):
                    await USERS[user](socket, Path(directory))

        anyio.run(main, backend=backend)

    check()


@given(st.binary(max_size=300) | st.binary(max_size=100).map(b"HTTP/1.1 200 OK\r\n".__add__), BACKENDS)
def test_whatever_bytes_answer_are_an_error_of_ours(answer: bytes, backend: str) -> None:
    """Also those that are no HTTP, or end half-way."""

    async def serve(client: anyio.abc.ByteStream) -> None:
        await receive_from(client)
        await client.send(answer)

    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "sock"
            async with serving(path, serve):
                with suppress(EngineRefused, EngineUnreachable):
                    async with Engine(partial(anyio.connect_unix, path), patience=5):
                        pass

    anyio.run(main, backend=backend)


# --- what is said of it -----------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "path", "answer", "says"),
    [
        (
            Info,
            "/info",
            [],
            "answer to GET /info contains an empty array instead of a table; is this a Docker daemon?",
        ),
        (Info, "/info", {"NCPU": "4"}, 'GET /info contains "4" at NCPU instead of an integer'),
        (Info, "/info", {"NCPU": 0}, "contains 0 at NCPU instead of at least 1"),
        (Created, "/x", {}, "contains nothing at Id instead of a string"),
        (Created, "/x", {"Id": "../.."}, 'contains "../.." at Id instead of an id or a name'),
        (Created, "/x", {"Id": "a" * 9999}, "instead of an id or a name"),
        (tuple[Listed, ...], "/x", [{"Id": "a"}, 1], r"contains 1 at \[1\] instead of a table"),
        (tuple[Listed, ...], "/x", [{"Id": "a", "Labels": {"k": 1}}], r"contains 1 at \[0\].Labels.k"),
        (Inspected, "/x", {"State": {"Running": 1}}, "contains 1 at State.Running instead of true or false"),
    ],
)
async def test_an_error_says_what_was_found_where_and_what_belongs_there(
    kind: Any,  # noqa: ANN401  (a schema, or a tuple of one)
    path: str,
    answer: object,
    says: str,
    tmp_path: Path,
) -> None:
    """On one line that is short, whatever was found."""
    async with lied_to(tmp_path, json.dumps(answer).encode()) as engine:
        with pytest.raises(EngineMalformed, match=says) as error:
            await engine.ask_for(kind, "GET", path)
    assert len(str(error.value)) <= ONE_LINE


@pytest.mark.anyio
async def test_what_is_null_or_new_is_passed_over(tmp_path: Path) -> None:
    """Go writes null for what is empty, and every version of the API has more keys."""
    told = {"Id": "a", "Names": None, "Labels": None, "State": "running", "New": {"x": [1]}}
    async with lied_to(tmp_path, json.dumps([told]).encode()) as engine:
        (listed,) = await engine.ask_for(tuple[Listed, ...], "GET", "/containers/json")
    assert (listed.id, listed.names, listed.labels, listed.state) == ("a", (), {}, "running")


# --- how much is read of it -------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_long_message_is_neither_read_nor_shown_whole(tmp_path: Path) -> None:
    """A daemon's message becomes one line of at most 1 KiB, and one without an end is not waited for."""
    long = b'{"message": "' + b"no\\n\\u001b[31m" * 4000 + b'"}'
    for body, size in ((long, len(long)), (bytes(LONGEST_LINE + 1), 1 << 40)):
        head = f"HTTP/1.1 500 Oops\r\nContent-Length: {size}\r\n\r\n".encode()
        async with answered(tmp_path, head + body) as (engine, _):
            with pytest.raises(EngineRefused) as error:
                await engine.ask("GET", "/x")
        assert len(error.value.message.encode()) <= ONE_LINE
        assert error.value.message.isprintable()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'"' + b"x" * (LONGEST_ANSWER + 1), "contains an endless answer instead of at most 4 MiB"),
        (b"[" + b"{}," * (MOST_VALUES // 2), rf"contains JSON of {MOST_VALUES // 2 * 2 + 1} values instead of at most"),
        (b"[" * 50_000, "instead of JSON"),
        (b"\xff\xfe", "instead of JSON"),
    ],
    ids=["long", "many", "deep", "no text"],
)
async def test_an_answer_has_an_end(body: bytes, says: str, tmp_path: Path) -> None:
    """In bytes, in values, which take far more memory, and in depth."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {max(len(body), 2)}\r\n\r\n".encode()
    async with answered(tmp_path, head + body) as (engine, _):
        with pytest.raises(EngineMalformed, match=says):
            await engine.ask("GET", "/x")


@pytest.mark.anyio
async def test_progress_is_read_by_the_line_and_none_is_kept(tmp_path: Path) -> None:
    """However much there is of it; what goes wrong in it is told, what is no progress is not believed."""
    lines = b'{"status": "Downloading"}\r\n' * 1000
    for body, error, says in (
        (lines, None, ""),
        (lines + b'{"error": "no space left on device"}', EngineRefused, "no space left on device"),
        (lines + b'{"error": 5}', EngineMalformed, "contains 5 at error"),
        (lines + b"[]", EngineMalformed, "an empty array instead of a table"),
        (lines + b"{", EngineMalformed, "instead of JSON"),
        (lines + b" " * (LONGEST_LINE << 1), EngineMalformed, "an endless line"),
    ):
        async with lied_to(tmp_path, body) as engine:
            with pytest.raises(error, match=says) if error else nullcontext():
                await engine.progress("POST", "/images/create", query={})


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("archive", "content"),
    [
        (tar_of({"key": Entry(b"secret")}), b"secret"),
        (tar_of({"k" * 200: Entry(b"secret")}), b"secret"),
        (tar_of({"key": Entry(b"x" * 100)}), b"x" * 100),
        (tar_of({"key": Entry(b"x" * 101)}), None),
        (tar_of({"key": Entry(bytes(1 << 20))}), None),
        (tar_of({"key": Entry()}), None),
        (b"", None),
        (b"\0" * 1024, None),
        (b"x" * 5000, None),
    ],
    ids=["small", "long name", "as large as may be", "larger", "large", "directory", "nothing", "zeros", "no archive"],
)
async def test_a_small_file_is_read_and_no_other(archive: bytes, content: bytes | None, tmp_path: Path) -> None:
    """What is in a container is a job's to choose."""
    async with lied_to(tmp_path, archive) as engine:
        assert await engine.read_file("c", "/key", limit=100) == content


@pytest.mark.anyio
async def test_a_file_without_an_end_is_not_received(tmp_path: Path) -> None:
    """Of a key of 1.5 GB, a few KiB are read."""
    member = tarfile.TarInfo("key")
    member.size = 1_500_000_000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1600000000\r\n\r\n" + member.tobuf()
    async with answered(tmp_path, head, more=bytes(1 << 16)) as (engine, sent):
        assert await engine.read_file("c", "/key", limit=1 << 14) is None
    assert sum(sent) < 4 << 20  # what the kernel takes ahead


@given(st.binary(max_size=3000) | spoilt_archives())
def test_any_bytes_may_be_an_archive_of_one_file(archive: bytes) -> None:
    """Nothing is raised, and nothing is made up."""
    content = only_file(archive)
    assert content is None or content in archive


@given(st.binary(max_size=200))
def test_any_bytes_may_be_json(body: bytes) -> None:
    """Only one error comes of those that are not."""
    with suppress(EngineMalformed):
        parsed(body, "GET /x")


@pytest.mark.anyio
async def test_others_run_while_pieces_of_a_byte_arrive(tmp_path: Path) -> None:
    """One read brings ten thousand of them; each has its turn among others."""
    pieces = b"1\r\n \r\n" * 5000 + b"0\r\n\r\n"
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + pieces
    turns, over = 0, False

    async def count() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await checkpoint()

    async with answered(tmp_path, answer) as (engine, _), anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        assert await engine.ask("GET", "/x") is None
        over = True
    assert turns >= 5000


@pytest.mark.anyio
async def test_a_key_that_is_none_says_so(tmp_path: Path) -> None:
    """A job in the instance has written a large file, or no text, where the key was."""
    for content in (bytes(1 << 15), b"\xff\xfe"):
        archive = tar_of({"user_key": Entry(content)})

        def answer(asked: str, archive: bytes = archive) -> bytes | None:
            return archive if asked.endswith("/archive") else None

        async with lying(tmp_path, answer) as (path, _):
            group = DockerGroup(DockerGroupConfig(socket=path, image="busybox"))
            await group.init(Settings(owner="me", clock=LoopClock()))
            with pytest.raises(
                ProviderError,
                match="the key /etc/fleeting/user_key in default-8dfafdbc3a40 is not a text file of at most",
            ):
                await group.connect_info("default-8dfafdbc3a40")
