"""Jobs of every kind, how each ends at any runner that does what GitLab Runner does, and who cancels some meanwhile."""

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from attrs import evolve, field, frozen

from gitlab_jobs import (
    Artifact,
    ArtifactsFile,
    Cache,
    Dependency,
    Features,
    Hook,
    Job,
    JobInfo,
    RunnerInfo,
    Step,
    Variable,
)
from gitlab_jobs.testing import FakeGitLab, State, Stored

REASONS = (
    "image_pull_failure",
    "runner_configuration_error",
    "runner_external_dependency_failure",
    "runner_interrupted",
    "job_canceled",
    "unknown_failure",
)
"""What GitLab takes for a reason, beside those that it always takes."""

LARGE = 2_900_000
"""So many lines are more than 20 MiB."""

_STAMP = re.compile(rb"^[0-9-]{10}T[0-9:.]{15}Z [0-9a-f]{2}[OE][ +]", re.MULTILINE)
_SECTION = re.compile(rb"section_(start|end):[0-9]+:([A-Za-z0-9_]+)(?:\[[^]]*\])?\r\x1b\[0K")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_CONTINUED = re.compile(rb"\n[0-9-]{10}T[0-9:.]{15}Z [0-9a-f]{2}[OE]\+")


class Cancel(Enum):
    """When somebody cancels a job."""

    PENDING = "pending"
    """Before a runner has it."""

    UNCLAIMED = "unclaimed"
    """As a runner gets it, before it has said that it runs."""

    SCRIPT = "script"
    """Once its script has printed something."""

    AFTER_SCRIPT = "after_script"
    """Once its ``after_script`` has."""

    ENDING = "ending"
    """While its last call is accepted, and not yet done."""


@frozen(kw_only=True)
class Planned:
    """A job, and how it ends."""

    job: Job
    needs: tuple[str, ...] = ()
    """The jobs before it whose artifacts it gets."""

    cancel: Cancel | None = None
    state: State = State.SUCCESS
    reason: str | None = None
    code: int | None = None
    prints: tuple[str, ...] = ()
    """Lines of the job's own in its log, in their order."""

    never: str = ""
    """What is not in its log."""

    leaves: Mapping[tuple[str, str], Mapping[str, bytes] | bytes] = field(factory=dict)
    """Of each artifact, by its type and format, the files of a zip, or the content."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.job.job_info.name


def job(
    name: str,
    *script: str,
    after: Sequence[str] = (),
    timeout: int = 3600,
    variables: Sequence[Variable] = (),
    project: str = "",
    **more: Any,  # noqa: ANN401  (a job's)
) -> Job:
    """A job for a shell, without sources, of a project of its own unless it is named."""
    steps = [Step(name="script", script=script, timeout=timeout, when="on_success")]
    if after:
        steps.append(Step(name="after_script", script=tuple(after), timeout=timeout, when="always", allow_failure=True))
    project = project or name.replace(" ", "-")
    info = JobInfo(
        name=name,
        stage="test",
        project_id=zlib.crc32(project.encode()),  # of which runners make the name of its directory
        project_name=project,
        project_full_path=f"group/{project}",
    )
    given: dict[str, Any] = {
        "job_info": info,
        "runner_info": RunnerInfo(timeout=timeout),
        "steps": tuple(steps),
        "features": Features(trace_sections=True, failure_reasons=REASONS),
        **more,
    }
    return Job(id=0, token="unset", variables=(said("GIT_STRATEGY", "none"), *variables), **given)


def said(key: str, value: str, **more: Any) -> Variable:  # noqa: ANN401  (a variable's)
    """A variable of a job."""
    return Variable(key=key, value=value, **{"public": True, **more})


def left(*paths: str, kind: str = "archive", form: str = "zip", when: str = "on_success", **more: Any) -> Artifact:  # noqa: ANN401
    """What a job leaves."""
    return Artifact(paths=paths, artifact_type=kind, artifact_format=form, when=when, **more)


def cached(policy: str) -> Cache:
    """A cache of all jobs."""
    return Cache(key="both", paths=("cached/",), policy=policy, when="on_success")


def _failed(what: Job, code: int | None, *prints: str, reason: str = "script_failure", **more: Any) -> Planned:  # noqa: ANN401
    return Planned(job=what, state=State.FAILED, reason=reason, code=code, prints=prints, **more)


def _canceled(when: Cancel, what: Job, *prints: str, **more: Any) -> Planned:  # noqa: ANN401
    return Planned(job=what, cancel=when, state=State.CANCELED, prints=prints, **more)


TICKS = "for each in $(seq 600); do echo tick; sleep 0.5; done"
"""Runs on, and has its runner send something, so that it soon learns of a cancellation."""

REPORT = b"<testsuites></testsuites>\n"
RAW = b"raw \x00 bytes\n"
PIPELINE = (
    Planned(
        job=job("print", "echo one", "printf 'é ü 漢\\n'", "printf 'no newline'"),
        prints=("one", "é ü 漢", "no newline"),
    ),
    Planned(
        job=job("time stamps", "echo one", "printf two", variables=(said("FF_TIMESTAMPS", "true"),)),
        prints=("one", "two"),
    ),
    Planned(job=job("standard error", "echo one", "echo two >&2"), prints=("two",)),
    Planned(job=job("large", f"seq 1 {LARGE}"), prints=("1", "1000000", str(LARGE))),
    Planned(
        job=job(
            "build",
            "mkdir -p out/deep",
            "echo built > out/deep/file; echo no > out/no.tmp; ln -s deep/file out/link",
            f"echo '{REPORT.decode().strip()}' > report.xml; printf 'raw \\000 bytes\\n' > raw",
            artifacts=(
                left("out/", exclude=("out/*.tmp",), name="everything"),
                left("report.xml", kind="junit", form="gzip", when="always"),
                left("raw", kind="lsif", form="raw"),
            ),
        ),
        leaves={
            ("archive", "zip"): {"out/deep/file": b"built\n", "out/link": b"deep/file"},
            ("junit", "gzip"): REPORT,
            ("lsif", "raw"): RAW,
        },
    ),
    Planned(job=job("fetch", "cat out/deep/file", "cat out/link"), needs=("build", "print"), prints=("built", "built")),
    _failed(
        job(
            "fails",
            "echo kept > kept",
            "exit 3",
            artifacts=(left("kept", when="on_failure"), left("kept", kind="junit", form="gzip")),
        ),
        3,
        leaves={("archive", "zip"): {"kept": b"kept\n"}},
    ),
    Planned(
        job=job(
            "cache cold",
            "mkdir -p cached; echo cold >> cached/log; cat cached/log",
            cache=(cached("pull-push"),),
            project="caching",
        ),
        prints=("cold",),
    ),
    Planned(
        job=job(
            "cache warm",
            "cat cached/log; echo warm >> cached/log",
            cache=(cached("pull"),),
            hooks=(Hook(name="pre_get_sources_script", script=('rm -rf "$CI_PROJECT_DIR/cached"',)),),
            project="caching",
        ),
        needs=("cache cold",),
        prints=("cold",),
    ),
    _failed(
        job("after", "echo from the script > file", "exit 4", after=('echo "it has $CI_JOB_STATUS"; cat file',)),
        4,
        "it has failed",
        "from the script",
    ),
    Planned(job=job("after fails", "echo good", after=("exit 5", "echo never again")), prints=("good",)),
    _failed(job("first fails", "echo before", "false", "echo nev''er"), 1, "before", never="\nnever\n"),
    _failed(job("pipe fails", "false | cat", "echo nev''er"), 1, never="\nnever\n"),
    _failed(
        job(
            "timeout",
            "echo begins; echo begun > begun",
            "sleep 600",
            after=("echo looks back",),
            timeout=5,
            artifacts=(left("begun", when="always"),),
        ),
        None,
        "begins",
        reason="job_execution_timeout",
    ),
    _failed(job("killed", "kill -9 $$"), 137),
    Planned(
        job=job(
            "variables",
            'echo "the password is $PASSWORD"',
            'cat "$FILE"; echo; test -f "$FILE"',
            'echo "$EXPANDED and $RAW"',
            variables=(
                said("PASSWORD", "correct horse battery", masked=True),
                said("FILE", "a file's content", file=True),
                said("WORD", "word"),
                said("EXPANDED", "a ${WORD}, 100$$"),
                said("RAW", "the $WORD", raw=True),
            ),
        ),
        prints=("the password is [MASKED]", "a file's content", "a word, 100$ and the $WORD"),
        never="battery",
    ),
    Planned(job=job("bytes", "printf 'a\\377b\\n'", "printf 'c\\000d\\n'"), prints=("a\ufffdb", "c\0d")),
    Planned(job=job("terminal", "printf '\\033[31mred\\033[0m\\n'", "printf '1%%\\r2%%\\r'; echo"), prints=("red",)),
    Planned(job=job("left behind", "sleep 60 >/dev/null 2>&1 &", "echo gone"), prints=("gone",)),
    Planned(
        job=job("nothing left", "echo fine", artifacts=(left("absent/"), left("gone.xml", kind="junit", form="gzip"))),
        prints=("fine",),
    ),
    Planned(
        job=evolve(
            job("two steps", "echo first > step"),
            steps=(
                Step(name="script", script=("echo first > step",), timeout=60, when="on_success"),
                Step(name="release", script=("cat step; echo second",), timeout=60, when="on_success"),
            ),
        ),
        prints=("first", "second"),
    ),
    Planned(
        job=job(
            "one shell",
            "greet() { echo hello $1; }",
            "cd /; where=$PWD",
            'greet "in $where"',
            "cat <<'END'\nof\n  several lines\nEND",
            "set +e",
            'false; echo "after $?"',
            "cat; echo nothing to read",
            "exit 0",
            "echo nev''er",
            after=('echo "it has $CI_JOB_STATUS"; test "$PWD" = "$CI_PROJECT_DIR" && echo in the project',),
        ),
        prints=(
            "hello in /",
            "of",
            "  several lines",
            "after 1",
            "nothing to read",
            "it has success",
            "in the project",
        ),
        never="\nnever\n",
    ),
    Planned(job=job("holds the output", "sleep 6 &", "echo gone"), prints=("gone",)),
    _failed(job("absent command", "no-such-command"), 127),
    _failed(
        evolve(
            job("lost dependency", "echo nev''er", after=("echo nev''er",)),
            dependencies=(
                Dependency(
                    id=1 << 20, token="lost", name="lost", artifacts_file=ArtifactsFile(filename="a.zip", size=9)
                ),
            ),
        ),
        1,
        never="\nnever\n",
    ),
    Planned(
        job=job(
            "environment",
            "env | sort",
            variables=(
                said("NESTED", "$OUTER-${OUTER}-%OUTER%-$$OUTER-$ABSENT-${ABSENT}"),
                said("OUTER", "<$INNER>"),
                said("INNER", "in"),
                said("SELF", "x$SELF"),
                said("SECRET_FILE", "content of $INNER", file=True),
                said("OF_FILE", "at ${SECRET_FILE}"),
                said("LINES", "one\ntwo 'quoted' \"twice\" \\ `back` !"),
            ),
        ),
    ),
    _canceled(Cancel.PENDING, job("cancelled pending", "echo nev''er"), never="never"),
    _canceled(Cancel.UNCLAIMED, job("cancelled unclaimed", "echo nev''er", "sleep 60"), never="\nnever\n"),
    _canceled(
        Cancel.SCRIPT,
        job(
            "cancelled script",
            "echo begins; echo begun > begun",
            TICKS,
            after=('echo "it was $CI_JOB_STATUS"',),
            artifacts=(left("begun", when="always"),),
        ),
        "begins",
        "it was canceled",
        leaves={("archive", "zip"): {"begun": b"begun\n"}},
    ),
    _canceled(
        Cancel.AFTER_SCRIPT, job("cancelled after", "echo begins", after=("echo looks back", "sleep 5")), "looks back"
    ),
    _canceled(Cancel.ENDING, job("cancelled ending", "echo all done"), "all done"),
)
"""The jobs, those that others need before them."""


class Operator:
    """Whoever lets jobs go once their needs are met, and cancels those that are to be."""

    def __init__(self, gitlab: FakeGitLab, planned: Sequence[Planned] = PIPELINE) -> None:
        """Have them wait at a GitLab."""
        self.gitlab = gitlab
        self.numbers: dict[str, int] = {}
        self.planned = {each.name: each for each in planned}
        self.handed_out: Callable[[Stored], None] = lambda _: None
        for each in planned:
            self.numbers[each.name] = gitlab.enqueue(each.job, is_ready=not each.needs)
        for each in planned:
            if each.cancel is Cancel.PENDING:
                gitlab.cancel(self.numbers[each.name])

    def stored(self, name: str) -> Stored:
        """What became of a job."""
        return self.gitlab.server.latest(self.numbers[name])

    async def see_to_the_end(self) -> None:
        """Do all that there is to do until every job has ended."""
        seen: set[str] = set()
        while True:
            changed = self.gitlab.next_change()
            for name, each in self.planned.items():
                stored = self.stored(name)
                if stored.has_runner and name not in seen:
                    seen.add(name)
                    self.handed_out(stored)
                if stored.state is State.CREATED and all(self.stored(need).state.is_final for need in each.needs):
                    self.gitlab.server.release(stored.job.id, tuple(map(self._dependency, each.needs)))
                    self.gitlab.notify()
                elif each.cancel is not None and not stored.state.is_final and self._is_time(each, stored):
                    self.gitlab.cancel(stored.job.id)
            if all(self.stored(name).state.is_final for name in self.planned):
                return
            await changed.wait()

    def _is_time(self, planned: Planned, stored: Stored) -> bool:
        if stored.state is State.CANCELING:
            return False
        if planned.cancel is Cancel.UNCLAIMED:
            return stored.has_runner
        if planned.cancel is Cancel.ENDING:
            return stored.has_runner and stored.accepts < self.gitlab.accepts
        return planned.prints[0] in text_of(bytes(stored.trace)).splitlines()

    def _dependency(self, name: str) -> Dependency:
        stored = self.stored(name)
        archives = [each for each in self.gitlab.artifacts.get(stored.job.id, ()) if each.artifact_type == "archive"]
        size = archives[-1].path.stat().st_size if archives else 0
        file = ArtifactsFile(filename="artifacts.zip" if archives else "", size=size)
        return Dependency(id=stored.job.id, token=stored.job.token, name=name, artifacts_file=file)

    def differences(self, planned: Planned) -> list[str]:
        """How a job has not ended as it should."""
        stored = self.stored(planned.name)
        found = (stored.state, stored.failure_reason, stored.exit_code)
        wanted = (planned.state, planned.reason, planned.code)
        problems = [] if found == wanted else [f"ended as {found}, not {wanted}"]
        text = text_of(bytes(stored.trace))
        lines = iter(text.splitlines())
        problems += [f"does not print {each!r}" for each in planned.prints if not any(each == line for line in lines)]
        problems += [f"has {planned.never!r} in its log"] if planned.never and planned.never in text else []
        if (kept := self.artifacts(planned.name)) != planned.leaves:
            problems.append(f"leaves {kept}, not {planned.leaves}")
        return problems

    def artifacts(self, name: str) -> Mapping[tuple[str, str], Mapping[str, bytes] | bytes]:
        """What a job has left."""
        kept = self.gitlab.artifacts.get(self.stored(name).job.id, ())
        return {(each.artifact_type, each.artifact_format): _content(each.path.read_bytes()) for each in kept}


async def played(gitlab: FakeGitLab, planned: Sequence[Planned] = PIPELINE) -> Operator:
    """Have a GitLab's runners run a pipeline, and wait for its end."""
    operator = Operator(gitlab, planned)
    await operator.see_to_the_end()
    return operator


def text_of(log: bytes) -> str:
    """A log as people read it: without time stamps and colours, with a line's end for the mark of a section."""
    return _COLOUR.sub(b"", _SECTION.sub(b"\n", unstamped(log))).decode()


def unstamped(log: bytes) -> bytes:
    """A log without time stamps: where one follows a carriage return, its line goes on."""
    return _STAMP.sub(b"", _CONTINUED.sub(b"", log))


def sections_of(log: bytes) -> list[tuple[str, str]]:
    """The marks of a log's sections, in their order: start or end, and the name."""
    return [(each[1].decode(), each[2].decode()) for each in _SECTION.finditer(unstamped(log))]


def _content(raw: bytes) -> Mapping[str, bytes] | bytes:
    """The files of a zip, what a gzip member holds, or what there is."""
    if raw.startswith(b"\x1f\x8b"):
        return gzip.decompress(raw)
    if not zipfile.is_zipfile(io.BytesIO(raw)):
        return raw
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        return {each.filename: archive.read(each) for each in archive.infolist() if not each.is_dir()}
