"""Jobs that are over: what is kept of each beside its log, without secrets, and how the daemon's clients see it."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from attrs import asdict, evolve, frozen

from fleeting import ConfigError, Usage
from fleeting.plugins import make_private, one_line, structure, write_whole
from job_steps import Status, StepResult
from job_steps.usage import use_of
from taskscaler.executors import MemoryLimit, StepUse
from taskscaler.uses import in_words, limit_in_words, together, took_in_words, used_in_words
from taskscaler_gitlab._keeping import Kept
from taskscaler_gitlab._record import MAX_STATE, JobDirectory
from taskscaler_gitlab._wording import as_batch, as_job, over_in_words
from taskscaler_gitlab.runner._record import read_results

_FILE = "over.json"

_FIGURES = ("duration", "cpu_time", "peak_memory", "disk_read", "disk_written")

_MOST_STEPS = 100
"""That are told of one job."""


@frozen(kw_only=True)
class Finished:
    """How a job ended."""

    id: str
    """What it is asked for by."""

    name: str
    project: str
    state: str
    """``succeeded``, ``failed`` or ``cancelled``."""

    why: str
    taken_at: float
    """When GitLab handed it out, in seconds since the epoch."""

    begun_at: float | None = None
    """When it got its last slot; None: it had none."""

    over_at: float
    """When it was over."""

    tries: int = 1
    """How often it was placed."""

    instance: str | None = None
    """The last one that it had a slot on."""

    exit_code: int | None = None
    """Its script's."""

    cpu_time: float | None = None
    """Seconds that it has used, if that is known."""

    peak_memory: int | None = None
    """Bytes likewise."""

    disk_written: int | None = None
    """Bytes likewise."""

    memory_limit: MemoryLimit | None = None
    """How much memory it might have, if it had a limit."""

    steps: tuple[StepUse, ...] = ()
    """What its steps used, those that used most one by one, and the others together."""

    dispatched: str | None = None
    """What became of it by the rules of ``[[dispatch]]``, as a sentence without its end; None: there were none."""

    @property
    def usage(self) -> Usage:
        """What it has used."""
        return Usage(cpu_time=self.cpu_time, peak_memory=self.peak_memory, disk_written=self.disk_written)

    def encode(self) -> bytes:
        """Write it as JSON."""
        return json.dumps({key: value for key, value in asdict(self).items() if value not in (None, [])}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Finished":
        """Read it.

        Raises:
            ValueError, ConfigError: It is none of ours.
        """
        return structure(json.loads(data), cls)


@frozen
class FinishedJob:
    """One of them; see `taskscaler.serve.OwnedJob`."""

    directory: JobDirectory
    how: Finished

    @property
    def id(self) -> str:
        """See `OwnedJob.id`."""
        return self.how.id

    @property
    def name(self) -> str:
        """See `OwnedJob.name`."""
        return self.how.name

    @property
    def state(self) -> str:
        """How it ended."""
        return self.how.state

    @property
    def since(self) -> float:
        """When GitLab handed it out."""
        return self.how.taken_at

    @property
    def log(self) -> Path | None:
        """See `OwnedJob.log`."""
        return self.directory.trace if self.directory.trace.exists() else None

    @property
    def over(self) -> bool:
        """It is."""
        return True

    @property
    def left(self) -> bool:
        """It is not."""
        return False

    def as_data(self) -> Mapping[str, object]:
        """See `OwnedJob.as_data`."""
        how = self.how
        return as_batch(self.id, self.name, how.state, how.why, taken_at=how.taken_at, over_at=how.over_at)

    def record(self) -> Mapping[str, object]:
        """See `OwnedJob.record`."""
        how = self.how
        return as_job(
            self.name,
            how.state,
            how.why,
            tries=how.tries,
            instance=how.instance,
            exit_code=how.exit_code,
            duration=None if how.begun_at is None else how.over_at - how.begun_at,
            usage=how.usage,
        )

    async def wait(self) -> None:
        """It is over."""

    def cancel(self) -> None:
        """It is over."""

    def explain(self) -> Sequence[str]:
        """Say how it ended."""
        how = self.how
        project = f" of {how.project}" if how.project else ""
        ended = f"{self.id} ({self.name}{project}) {over_in_words(how.state, how.why, how.usage)}"
        result = read_results(self.directory.results)
        return (
            ended,
            *([how.dispatched] if how.dispatched else ()),
            *([f"its memory limit was {limit_in_words(how.memory_limit)}"] if how.memory_limit is not None else ()),
            *(f"steps, {line}" if not number else line for number, line in enumerate(where_it_went(how.steps))),
            *(steps_in_words(result, together(how.steps)) if result is not None else ()),
        )

    @property
    def kept(self) -> Kept:
        """What it takes here."""
        return Kept(name=self.directory.path.name, used=self.how.over_at, size=self.directory.size())


def steps_in_words(result: StepResult, whole: StepUse) -> Iterator[str]:
    """Say how the steps of a job went, and what they used, the first ones of very many.

    Args:
        result: Of the job: in its own words, where it ran.
        whole: What all of them have used, as far as that is believed.
    """
    unknown: dict[str, Any] = {name: None for name in _FIGURES if getattr(whole, name) is None}
    for path, each in islice(result.walk(), 1, _MOST_STEPS + 1):
        use = evolve(use_of("/".join(path), each), **unknown)
        time, used = took_in_words(use, whole), used_in_words(use, whole)
        took = f" in {time}" if time else ""
        match each.status:
            case Status.SUCCESS:
                how = f"succeeded{took}"
            case Status.FAILURE:
                is_said = each.exit_code and not each.cause
                why = f"exited with {each.exit_code}" if is_said else f"failed: {each.error or 'see its log'}"
                how = f"{one_line(why)}{took}"
            case Status.CANCELLED:
                how = f"was cancelled{took}"
            case _:
                how = "did not end"
        yield f"step {use.path} {how}{f'; it used {used}' if used else ''}"


def where_it_went(steps: Sequence[StepUse]) -> Sequence[str]:
    """Say which of many steps cost most; of few, each is told anyway."""
    return in_words(steps) if any(step.count > 1 for step in steps) else ()


def keep(directory: JobDirectory, how: Finished) -> FinishedJob:
    """Note down how a job ended, whose log is to stay if it is there. Blocks.

    Raises:
        OSError: It cannot be written.
    """
    make_private(directory.path)
    write_whole(directory.path / _FILE, how.encode())
    return FinishedJob(directory, how)


def finished(directories: Sequence[JobDirectory], origins: Collection[str]) -> Iterator[FinishedJob]:
    """Read those of a runner that an earlier process has left; what is of no use is removed. Blocks."""
    for each in directories:
        try:
            with (each.path / _FILE).open("rb") as file:
                how = Finished.decode(file.read(MAX_STATE))
        except (OSError, ValueError, ConfigError):
            each.remove()
            continue
        if each.origin in origins:
            yield FinishedJob(each, how)
        else:
            each.remove()
