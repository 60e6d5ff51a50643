"""The tables of a jobs file as they stand: keys, types, defaults, and which values may be there."""

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from attrs import Attribute, field, frozen, validators

from fleeting import Duration
from fleeting.plugins import Argv
from taskscaler.batch._job import LEAST_LOG_LIMIT, LOG_LIMIT
from taskscaler.batch._retries import Retries
from taskscaler.config._autoscaler import Autoscaler, some

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What may name a job, or several alike: with a number behind it, it is still one of `JobSpec`."""

MOST_JOBS = 1_000_000
"""In one file, copies counted: more are a slip of the hand, and would not fit into memory."""

RESERVED = frozenset(
    {
        "artifacts",
        "events.jsonl",
        "fleet.log",
        "gl-code-quality-report.json",
        "logs",
        "report.txt",
        "results.json",
        "resume",
        "timeline.png",
        "timeline.svg",
    }
)
"""What a batch itself puts into its results."""


def _not_blank(_: object, __: "Attribute[Any]", value: str) -> None:
    if not value.strip():
        raise ValueError("more than white space")


def _a_name(_: object, __: "Attribute[Any]", value: str) -> None:
    if not NAME.fullmatch(value):
        raise ValueError("1 to 100 letters, digits, dots, hyphens and underscores, starting with a letter or digit")


def _inside(_: object, __: "Attribute[Any]", value: Sequence[str] | None) -> None:
    for path in value or ():
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts or not path.isprintable():
            raise ValueError("relative paths inside the directory", path)


def _one_inside(instance: object, attribute: "Attribute[Any]", value: str | None) -> None:
    _inside(instance, attribute, None if value is None else (value,))


def _globs(instance: object, attribute: "Attribute[Any]", value: Sequence[str] | None) -> None:
    _inside(instance, attribute, value)
    if bad := [pattern for pattern in value or () if "**" in pattern]:
        raise ValueError("paths or globs without **", bad[0], "; name a directory to take everything in it")


def _not_negative(_: object, __: "Attribute[Any]", value: int | Retries | None) -> None:
    if isinstance(value, int) and value < 0:
        raise ValueError("at least 0")


@frozen(kw_only=True)
class Defaults:
    """``[defaults]``: what a job has that does not say otherwise. Variables are added, all else is replaced."""

    executor: str = "instance"
    timeout: Duration | None = field(default=None, validator=validators.optional(validators.gt(0)))
    retries: int | Retries = field(default=2, validator=_not_negative)
    env: dict[str, str] = field(factory=dict, repr=False)
    files: tuple[str, ...] = field(default=(), validator=_inside)
    artifacts: tuple[str, ...] = field(default=(), validator=_globs)
    log_limit: int = field(default=LOG_LIMIT, validator=validators.ge(LEAST_LOG_LIMIT))
    """Bytes."""

    expected_duration: Duration | None = None
    detach: bool | None = None
    options: dict[str, dict[str, object]] = field(factory=dict, repr=False)
    """What jobs wish of executors, by the executors' names; a job's own are added, key by key."""


@frozen(kw_only=True)
class JobTable:
    """``[[jobs]]``: one job, or several alike."""

    name: str = field(validator=_a_name)
    script: str | None = field(default=None, validator=validators.optional(_not_blank))
    """What to run; only a job whose options say that has none."""

    copies: int | None = field(
        default=None, validator=validators.optional((validators.ge(1), validators.le(MOST_JOBS)))
    )
    """So many jobs, ``name-01`` and so on; each finds its number, from 0, in TASKSCALER_JOB_INDEX."""

    matrix: dict[str, object] | None = None
    """A job for each combination of values; see `_matrix`."""

    for_each: str | None = field(default=None, validator=_one_inside)
    """A job for each file that this pattern matches, relative to the jobs file."""

    max_parallel: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    """How many of its jobs may be under way at once."""

    needs: tuple[str, ...] = ()
    """Tables and jobs, by their names, that have to be over before it begins."""

    when: Literal["on_success", "always"] = "on_success"
    """Whether it begins only if all that it needs has succeeded, or always."""

    executor: str | None = None
    timeout: Duration | None = field(default=None, validator=validators.optional(validators.gt(0)))
    """How long it may take on the instance; then it is ended."""

    retries: int | Retries | None = field(default=None, validator=_not_negative)
    """How often it is tried again; a number: when its instance was lost."""

    env: dict[str, str] = field(factory=dict, repr=False)
    files: tuple[str, ...] | None = field(default=None, validator=_inside)
    """Files and directories it needs, relative to the jobs file; they arrive under the same paths."""

    artifacts: tuple[str, ...] | None = field(default=None, validator=_globs)
    """What it leaves; a job that does not leave all of it has failed."""

    log_limit: int | None = field(default=None, validator=validators.optional(validators.ge(LEAST_LOG_LIMIT)))
    """Bytes that its log has at most; of a longer one the beginning and the end are kept."""

    expected_duration: Duration | None = None
    detach: bool | None = None
    """Whether it goes on if the command is killed, where that can be, so that a later command joins it."""

    options: dict[str, dict[str, object]] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class Report:
    """``[report]``: a command that is run on this machine, in the results, once all jobs are over."""

    command: Argv = field(validator=some("a program and its arguments"))
    """A program and its arguments; no shell touches them."""

    files: tuple[str, ...] = field(default=(), validator=_inside)
    """Copied into the results first, relative to the jobs file."""

    timeout: Duration = field(default=600.0, validator=validators.gt(0))

    @files.validator
    def _not_reserved(self, _: object, value: Sequence[str]) -> None:
        if bad := [path for path in value if not RESERVED.isdisjoint(PurePosixPath(path).parts[:1])]:
            raise ValueError("names that the batch's own results do not use", bad[0])


@frozen(kw_only=True)
class JobsTables:
    """What a file says of jobs, whoever's fleet runs them."""

    jobs: tuple[JobTable, ...] = field(validator=some("at least one job"))
    defaults: Defaults = Defaults()
    executors: dict[str, dict[str, object]] = field(factory=dict, repr=False)
    """Settings of executors, by their names."""

    report: Report | None = None


@frozen(kw_only=True)
class GuestTables(JobsTables):
    """The file as it stands, if its jobs run on a daemon's fleet."""

    autoscaler: dict[str, object] = field(factory=dict, repr=False)
    """Of no effect, so that the same file may be run on a fleet of its own, too."""


@frozen(kw_only=True)
class Tables(JobsTables):
    """The file as it stands."""

    autoscaler: Autoscaler


def _none_here(_: object, __: "Attribute[Any]", value: Sequence[JobTable]) -> None:
    if value:
        raise ValueError("no jobs, because they come from standard input; remove them, or run without -")


@frozen(kw_only=True)
class Retention:
    """``[retention]``: how long a daemon keeps batches that are over, with their logs and artifacts."""

    age: Duration = field(default=30 * 86400.0, validator=validators.gt(0))
    """Seconds after which a batch is deleted."""

    size: int = field(default=10 << 30, validator=validators.gt(0))
    """Bytes that all of them may have; beyond that, the oldest are deleted first, but for the newest."""


@frozen(kw_only=True)
class GuestDefaultsTables(GuestTables):
    """The same, if the jobs are elsewhere."""

    jobs: tuple[JobTable, ...] = field(default=(), validator=_none_here)
    retention: Retention = Retention()
    """Of no effect, as the fleet's table."""


@frozen(kw_only=True)
class FleetTables(Tables):
    """The file as it stands, if the jobs are elsewhere."""

    jobs: tuple[JobTable, ...] = field(default=(), validator=_none_here)
    retention: Retention = Retention()
    """Of a daemon that has the fleet."""


def _none_served(_: object, __: "Attribute[Any]", value: Sequence[JobTable]) -> None:
    if value:
        raise ValueError("no jobs, because a daemon serves those of its clients; remove them")


def _no_report(_: object, __: "Attribute[Any]", value: Report | None) -> None:
    if value is not None:
        raise ValueError("no report, because a fleet has none; move it to the files with jobs")


@frozen(kw_only=True)
class ServedTables(FleetTables):
    """The file as it stands, if a daemon owns its fleet."""

    jobs: tuple[JobTable, ...] = field(default=(), validator=_none_served)
    report: Report | None = field(default=None, validator=_no_report)


def _not_submitted(what: str, why: str) -> Callable[[object, "Attribute[Any]", object], None]:
    """Make a validator that refuses what would act with the rights of the daemon."""

    def check(_: object, __: "Attribute[Any]", value: object) -> None:
        if value:
            raise ValueError(f"no {what} in a submitted file, because {why}; remove it")

    return check


@frozen(kw_only=True)
class SubmittedTables(JobsTables):
    """The file as it stands, if a daemon is to run its jobs."""

    autoscaler: dict[str, object] = field(
        factory=dict, validator=_not_submitted("fleet", "the jobs run on the daemon's")
    )
    executors: dict[str, dict[str, object]] = field(
        factory=dict, validator=_not_submitted("settings of executors", "those of the daemon apply")
    )
    report: Report | None = field(
        default=None, validator=_not_submitted("report", "a report runs where `taskscaler run` does")
    )
