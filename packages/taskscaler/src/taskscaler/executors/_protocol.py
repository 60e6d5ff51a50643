"""What an executor is given, what it gives back, and what it promises."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import Enum
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from attrs import Attribute, evolve, field, fields, frozen
from attrs.validators import gt, optional

from fleeting import Connection, Duration, Usage
from fleeting.config import in_words, quoted
from fleeting.connectors import Sink
from fleeting.plugins import has_surrogates, one_line
from taskscaler._uses import MemoryLimit, StepUse

LONGEST_NAME = 128
"""Characters of a job's name."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
_A_NAME = f"1 to {LONGEST_NAME} letters, digits, dots, hyphens and underscores, starting with a letter or digit"


def check_job_name(name: str) -> None:
    """See that a name may be a job's: it becomes part of paths, here and on instances.

    Raises:
        ValueError: It may not.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected {_A_NAME}, as the name of a job, found {quoted(name)}")


def _names_a_job(_: object, __: "Attribute[str]", value: str) -> None:
    if not _NAME.fullmatch(value):
        raise ValueError(f"{_A_NAME}, as the name of a job")


def _can_be_sent(_: object, __: "Attribute[str]", value: str) -> None:
    if has_surrogates(value):
        raise ValueError("text without lone surrogates")


def _all_can_be_sent(_: object, __: "Attribute[Any]", value: Mapping[str, str]) -> None:
    if any(map(has_surrogates, chain(value, value.values()))):
        raise ValueError("names and values without lone surrogates")


@frozen(kw_only=True, field_transformer=in_words)
class JobSpec:
    """One job, with nothing left to look up."""

    name: str = field(validator=_names_a_job)
    """Unique in its batch; at most 128 letters, digits, ``.``, ``_`` and ``-``, a letter or digit first, so that it can
    name a file; ``ValueError`` if not."""

    script: str = field(validator=_can_be_sent)
    """What to run: lines for the shell, or on Windows for PowerShell; ``ValueError`` if it has lone surrogates. Empty
    only if the options say what to run."""

    env: Mapping[str, str] = field(factory=dict, repr=False, validator=_all_can_be_sent)
    """Added to the instance's own environment; ``ValueError`` if it has lone surrogates. Not shown in messages: people
    put tokens here."""

    files: Mapping[str, Path] = field(factory=dict)
    """Files and directories the job needs: where they go, relative to its working directory, and where they are."""

    artifacts: tuple[str, ...] = ()
    """Files, directories and globs to bring back, relative to the working directory and inside it."""

    timeout: Duration | None = field(default=None, validator=optional(gt(0)))
    """Seconds that the job may take on the instance; None: no limit."""

    series: str = field(default="", validator=_can_be_sent)
    """What the job is known as from run to run, such as its project and its name there: an executor may go by what
    earlier ones needed. Not shown anywhere. Empty: nothing is remembered."""

    options: object = None
    """The job's own wishes of its executor: an instance of the plugin's `ExecutorPlugin.options`, or None."""

    def with_env(self, env: Mapping[str, str], *, without: Collection[str] = ()) -> "JobSpec":
        """Give the same with more variables, which can be sent; nothing else is checked again, which takes long.

        Args:
            env: They win over those that are there.
            without: Those that are there and are to go.
        """
        kept = {**self.env}
        for name in without:
            kept.pop(name, None)
        made, put = object.__new__(JobSpec), object.__setattr__  # `copy` takes three times as long
        for name in _FIELDS:
            put(made, name, getattr(self, name))
        put(made, "env", {**kept, **env})
        return made


_FIELDS = tuple(each.name for each in fields(JobSpec))


def _all_of(steps: Iterable[StepUse]) -> tuple[StepUse, ...]:
    return tuple(steps)


MOST_WARNINGS = 20
"""Of one job; that there are more is the last of them then."""


def _few_lines(lines: Iterable[str]) -> tuple[str, ...]:
    """Make each of them one line, and no more than are looked at."""
    first = tuple(map(one_line, islice(lines, MOST_WARNINGS + 1)))
    return first if len(first) <= MOST_WARNINGS else (*first[: MOST_WARNINGS - 1], "there are more warnings")


class Verdict(Enum):
    """How a job that ran to an end has ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


@frozen(kw_only=True)
class JobOutcome:
    """What came of one job on one instance."""

    verdict: Verdict
    """How it ended."""

    exit_code: int | None = None
    """What the script exited with; None if it was ended by a signal or never started."""

    why: str = field(default="", converter=one_line)
    """Why it did not succeed, in a few words; empty if it did. Made one line of at most 1 KiB."""

    warnings: tuple[str, ...] = field(default=(), converter=_few_lines)
    """What went wrong without changing the verdict, such as a failed clean-up; one sentence each, at most 20."""

    cpu_time: float | None = None
    """Seconds of CPU that the job has used, on all CPUs together; None: not known."""

    peak_memory: int | None = None
    """Bytes of memory that it had at the most at once, or the largest of its processes had; None: not known."""

    disk_written: int | None = None
    """Bytes that it has sent towards a disk; None: not known."""

    memory_limit: MemoryLimit | None = None
    """How much memory it might have; None: as much as there was, or not known."""

    steps: tuple[StepUse, ...] = field(default=(), converter=_all_of)
    """What each of its steps has used that ran something itself, in their order; empty: that is not known."""

    @property
    def usage(self) -> Usage:
        """What the job has used, in one piece."""
        return Usage(cpu_time=self.cpu_time, peak_memory=self.peak_memory, disk_written=self.disk_written)

    def with_usage(self, usage: Usage) -> "JobOutcome":
        """Give the same with what the job has used."""
        return evolve(self, cpu_time=usage.cpu_time, peak_memory=usage.peak_memory, disk_written=usage.disk_written)


class Leased(Protocol):
    """The part of a lease that an executor sees: a slot on an instance, and the way there."""

    @property
    def instance(self) -> str:
        """The instance's id."""
        ...

    @property
    def slot(self) -> int:
        """Number of the slot on its instance, from 0; no two leases share one at the same time."""
        ...

    def dial(self) -> AbstractAsyncContextManager[Connection]:
        """Connect to the instance."""
        ...


class Executor(Protocol):
    """Runs jobs. One executor serves all slots at once and keeps nothing between jobs."""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """Run a job to its end, and leave the slot as the next job may find it.

        Cancelling ends everything the job started before the cancellation is delivered, within a bound; so does
        the job's time-out.

        Args:
            job: What to run.
            lease: Where; it stays the caller's, who releases it.
            output: Gets what the job prints, standard output and error in the order in which they came.
            artifacts: Directory that does not exist; made, whole, if the job leaves any artifact, and not otherwise.

        Returns:
            How it ended. A script that fails is an outcome and no exception.

        Raises:
            Unreachable: The connection died, or nothing answers there, and whether the job ended is unknown; it may be
                tried elsewhere, and the instance gets no new work.
            ConnectError: The job cannot be run there; trying again would not help.
            OSError: The job's files could not be read, or its artifacts not be written, on this side.

        Anything else that it raises is taken for a mistake, of the executor's or of the instance's: it is logged,
        the try has failed, and the instance gets no new work.
        """
        ...


@runtime_checkable
class Reattaches(Protocol):
    """An executor whose jobs can outlive the manager that has started them: a later one joins them.

    A try at a job has a *name*, which the caller makes and writes down before `start`, and which is used once: 12
    hexadecimal digits, the same for all tries of a batch, a hyphen, and letters, digits and hyphens, 60 in all.
    Wherever the manager is killed, the same calls in the same order come to the same end: after `start`, `attach`;
    after `attach`, and once what came of the job is written down, `end`.
    """

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`: for a job that cannot, or is not to, outlive its manager."""
        ...

    async def start(self, job: JobSpec, lease: Leased, *, name: str) -> None:
        """Start a job; what runs then ends only by itself, by `attach` for its time-out, or by `end`.

        Killed at any point, the manager has started the job or has not; starting it again under its name, on the same
        lease, then does nothing or starts it. Cancelled, it is the same: whoever cancels calls `end`.

        Args:
            job: What to run.
            lease: Where; the job belongs to this slot, and is ended by the next one that is started there.
            name: The try's.

        Raises:
            Unsupported: Jobs cannot outlive their manager there; nothing was started, so `run` it.
            Unreachable, ConnectError, OSError: As `run`.
        """
        ...

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
        """Join a job that was started, until it has ended or its time is over, and bring back what it has left.

        Killed or cancelled at any point, nothing is lost: the job goes on, what it has left stays, and attaching again
        comes to the same outcome. Only a clean-up script of the executor's may run again then.

        Args:
            job: As it was started.
            lease: The one on which it was, or that lease reattached.
            name: The try's.
            offset: Bytes of its output that are not to be passed on, because they are known.
            elapsed: Seconds since the job was started, which count against its time-out.
            output: Gets the rest of what it prints.
            artifacts: As for `run`.

        Raises:
            NameUnknown: It was never started there, or was ended with `end`.
            CommandLost: Nobody will know what came of it.
            Unreachable: The connection died; attach again.
            Unsupported, ConnectError, OSError: As `start`.
        """
        ...

    async def end(self, lease: Leased, *, name: str) -> None:
        """End a job if it still runs, and leave nothing of it there: not its output either.

        Killed or cancelled, it may be called again; of what is not there, there is nothing to do.

        Raises:
            Unreachable, ConnectError: Something may be left.
        """
        ...


@runtime_checkable
class StartsAttached(Reattaches, Protocol):
    """An executor that starts a job and attaches to it at once, because that takes less than one after the other.

    Optional for those that are `Reattaches`: without it, `Reattaches.start` is called, then `Reattaches.attach`.
    """

    async def start_attached(
        self,
        job: JobSpec,
        lease: Leased,
        *,
        name: str,
        started: Callable[[], object],
        output: Sink,
        artifacts: Path,
    ) -> JobOutcome:
        """Start a job, and see it to its end.

        Args:
            job: What to run.
            lease: Where, as for `Reattaches.start`.
            name: The try's.
            started: Called once, without arguments, when the job runs and before any of its output is passed on.
            output: Gets all that it prints.
            artifacts: As for `run`.

        Raises:
            Unsupported, Unreachable, ConnectError, OSError: Before *started* was called, as `Reattaches.start`; after
                it, as `Reattaches.attach`, and so are the others of that: attach to the job.
        """
        ...


@runtime_checkable
class ForeseesRefusal(Protocol):
    """An executor that knows beforehand, from its settings alone, which jobs it will not run."""

    def refusal(self, options: object) -> str:
        """Say why a job that wishes for this cannot be run; empty if it can, as far as is known here.

        Args:
            options: An instance of the plugin's `ExecutorPlugin.options`, or None. Nothing is connected to.

        Returns:
            What is wrong and, behind a semicolon, what to do.
        """
        ...


@runtime_checkable
class StandsForScript(Protocol):
    """A job's wishes that may say what to run, so that it needs no script."""

    @property
    def stands_for_script(self) -> bool:
        """Whether these do; the job's script is empty then."""
        ...


LARGEST_FILE = 4 << 20
"""Bytes of a file that is a part of a job's wishes."""


@runtime_checkable
class TakesFile(Protocol):
    """A job's wishes that may name a file beside the jobs file, whose text is a part of them."""

    file: str | None
    """Relative to the jobs file, and inside its directory; None: they name none."""

    def with_text(self, text: str) -> Self:
        """Give the same with what the file has, UTF-8 of at most 4 MiB.

        Raises:
            ValueError: It cannot be that; the message says what is wrong, and behind a semicolon, what to do.
        """
        ...


@frozen(kw_only=True)
class ExecutorPlugin:
    """What a plugin's `taskscaler_executor` hook returns."""

    config: type[Any]
    """The attrs class that is the schema of the executor's settings, all of which have defaults."""

    executor: Callable[[Any], Executor]
    """Makes the executor from an instance of `config`. Imports nothing heavy, connects to nothing."""

    options: type[Any] | None = None
    """The attrs class that is the schema of what a job may wish for; None: a job has nothing to wish for. If it may say
    what to run, it is `StandsForScript`; if it may name a file, it is `TakesFile`."""
