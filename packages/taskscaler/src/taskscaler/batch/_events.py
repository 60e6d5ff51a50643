"""What happens to a batch and its fleet, as values and as the lines of an event log.

One JSON object on a line for each event, with the time ``at`` which it happened in seconds since the epoch::

    begun      once, first: the jobs, the pools, and where the jobs file is
    resumed    a later command takes the batch up; what ran in the one before was interrupted
    replanned  that command has other jobs, for the jobs file has changed
    rerun      jobs that were over wait again, because that command was asked to run them again
    started    a job was given a slot and runs
    joined     a later command goes on with a try that ran on without one
    ended      that try has ended, and how
    given_up   jobs that wait are not to be run by this command
    over       last: nothing is left to do, unless a later command runs jobs again
    instance   an instance came to be in another state
    decision   a scaling decision that differs from the last one

The first line is no event. It says what the file is, and which version of it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from attrs import asdict, field, fields_dict, frozen

from taskscaler._cost import Tariff
from taskscaler._errors import RecordUnreadable
from taskscaler._observe import DecisionEvent, InstanceEvent, event_as_data, read_decision
from taskscaler._uses import MemoryLimit, StepUse
from taskscaler.batch._job import Job, planned
from taskscaler.batch._job_state import JobState
from taskscaler.batch._plan import Plan, Planned, plan_of

if TYPE_CHECKING:
    from taskscaler.config import Autoscaler

FORMAT = "taskscaler events"

VERSION = 3
"""Of the file; raised when an earlier release would misunderstand it. New kinds of events may come without that."""


@frozen(kw_only=True)
class PoolFacts:
    """How one pool is set, as far as it helps to understand what happened."""

    name: str
    """The pool's name."""

    plugin: str
    """Which plugin its group is of."""

    capacity_per_instance: int
    """Jobs at once on one instance."""

    max_instances: int
    """0: any number."""

    max_use_count: int = 0
    """0: any number."""

    price_per_hour: float | None = None
    """Of one instance; None: not known. This and the next three are of `Tariff`."""

    currency: str = ""
    """Of the price."""

    minimum_billing: float = 0.0
    """Seconds."""

    billing_increment: float = 1.0
    """Seconds."""

    @property
    def tariff(self) -> Tariff:
        """How its instances are paid for."""
        return Tariff(**{name: getattr(self, name) for name in fields_dict(Tariff)})

    @classmethod
    def of(cls, fleet: "Autoscaler") -> "tuple[PoolFacts, ...]":
        """Take those of all pools of a fleet, in their order."""
        return tuple(
            cls(
                name=pool.name,
                plugin=pool.plugin,
                capacity_per_instance=pool.capacity_per_instance,
                max_instances=pool.max_instances,
                max_use_count=pool.max_use_count,
                **asdict(pool.tariff),
            )
            for pool in fleet.all_pools
        )


@frozen(kw_only=True)
class Begun:
    """A batch was begun. Times, of all events, are seconds since the epoch."""

    at: float
    """When."""

    jobs: Plan = field(converter=plan_of)
    """With names that differ, in the order of the batch."""

    pools: tuple[PoolFacts, ...] = ()
    """How the fleet is set."""

    jobs_file: str = ""
    """Absolute path of what it was made from; empty if that was a program, which alone can resume it."""

    streamed: bool = False
    """Whether its jobs are not in that file, but came as a stream."""

    socket: str = ""
    """Absolute path of the socket of the daemon whose fleet it runs on; empty if the fleet is its own."""

    id: str = ""
    """Begins the names of tries that outlive a command; empty if an earlier release has begun it: then none does."""

    @classmethod
    def of(
        cls,
        jobs: Iterable[Job],
        *,
        at: float,
        pools: Sequence[PoolFacts] = (),
        jobs_file: str = "",
        streamed: bool = False,
        socket: str = "",
        id: str = "",  # noqa: A002  (the field's name)
    ) -> Self:
        """Begin a batch of these jobs."""
        return cls(
            at=at,
            jobs=planned(jobs),
            pools=tuple(pools),
            jobs_file=jobs_file,
            streamed=streamed,
            socket=socket,
            id=id,
        )


@frozen(kw_only=True)
class Resumed:
    """A later command has taken the batch up."""

    at: float
    """When."""

    pools: tuple[PoolFacts, ...] = ()
    """How the fleet is set now."""


@frozen(kw_only=True)
class Replanned:
    """From now on these are the jobs; what is known of those that were there before stays known."""

    at: float
    """When."""

    jobs: Plan = field(converter=plan_of)
    """With names that differ, in the order of the batch."""


@frozen(kw_only=True)
class Rerun:
    """Jobs that were over wait again; their tries so far use up no retries."""

    at: float
    """When."""

    jobs: tuple[str, ...]
    """Names of the jobs that run again."""


@frozen(kw_only=True)
class Started:
    """A job was given a slot and runs."""

    at: float
    """When."""

    job: str
    """Name of the job."""

    pool: str
    """Name of the instance's pool."""

    instance: str
    """The instance's id."""

    slot: int
    """The number of the slot, from 0."""

    detached: bool = False
    """Whether it is to outlive the command, under the job's name as its lease's key; see `try_name`."""

    logged: int = 0
    """Bytes that its log has had before; what follows is what this try prints."""


@frozen(kw_only=True)
class Joined:
    """A later command goes on with the last try at a job, which was interrupted and ran on."""

    at: float
    """When."""

    job: str
    """Name of the job."""


@frozen(kw_only=True)
class Ended:
    """What a job was doing on its slot has ended. The job waits again while its `Retries` allow another try."""

    at: float
    """When."""

    job: str
    """Name of the job."""

    state: JobState
    """How it ended."""

    exit_code: int | None = None
    """What the script exited with; None if it did not get so far."""

    why: str = ""
    """In a few words; empty if there is nothing to say."""

    cpu_time: float | None = None
    """Seconds of CPU that it used; None if that is not known."""

    peak_memory: int | None = None
    """Bytes of memory that it held at once, or its largest process did; None if that is not known."""

    disk_written: int | None = None
    """Bytes that it has sent towards a disk; None if that is not known."""

    memory_limit: MemoryLimit | None = None
    """How much memory it might have; None if there was no limit, or if that is not known."""

    steps: tuple[StepUse, ...] = ()
    """What its steps used, those that used most one by one; empty if it had none, or if that is not known."""

    preempted: bool = False
    """Whether the cloud had announced to take the instance away."""

    interrupted: bool = False
    """Whether nobody knows how it went on after a command was stopped."""

    warnings: tuple[str, ...] = ()
    """What went wrong without failing the job, in order."""


@frozen(kw_only=True)
class GivenUp:
    """Jobs that wait are not to be run by this command."""

    at: float
    """When."""

    jobs: tuple[str, ...]
    """Names of the jobs."""

    state: JobState
    """What is recorded as their end."""

    why: str
    """In a few words."""


@frozen(kw_only=True)
class Over:
    """Nothing is left to do, unless a later command is asked to run jobs again."""

    at: float
    """When."""

    well: bool
    """Whether the command was content: all jobs succeeded, and the report was made."""


BatchEvent = Begun | Resumed | Replanned | Rerun | Started | Joined | Ended | GivenUp | Over
RecordedEvent = BatchEvent | InstanceEvent | DecisionEvent
"""A lease is not among them: that a job has a slot is its `Started`, that it no longer has it its `Ended`."""


def header() -> bytes:
    """Give the first line of an event log."""
    return _line({"format": FORMAT, "version": VERSION})


def as_line(event: RecordedEvent) -> bytes:
    """Give an event as its line in an event log."""
    return _line(as_data(event))


def _line(data: Mapping[str, object]) -> bytes:
    return json.dumps(data, allow_nan=False).encode() + b"\n"


def as_data(event: RecordedEvent) -> Mapping[str, object]:
    """Give an event as plain data that JSON has words for."""
    match event:
        case InstanceEvent() | DecisionEvent():
            return event_as_data(event)
        case Begun():
            data = {**asdict(event, recurse=False), "pools": [*map(asdict, event.pools)], "jobs": _groups(event.jobs)}
        case Replanned():
            data = {"at": event.at, "jobs": _groups(event.jobs)}
        case Ended() | GivenUp():
            data = {**asdict(event), "state": event.state.value}
        case _:
            data = asdict(event)
    return {"at": data.pop("at"), "event": _NAMES[type(event)], **data}


def _groups(plan: Plan) -> Sequence[Mapping[str, object]]:
    return [{**like.data(), "names": [*names]} for like, names in plan.groups()]


def read_events(path: Path) -> list[RecordedEvent]:
    """Read the events of a log, in the order in which they happened; a last line without its end never happened.

    Raises:
        RecordUnreadable: It is damaged, is no event log, or a later release wrote it.
        OSError: It cannot be read.
    """
    try:
        with path.open("rb") as file:
            return [*parse(whole_lines(file))]
    except RecordUnreadable as error:
        raise RecordUnreadable(f"{path} cannot be used: {error}") from error


LONGEST_LINE = 512 << 20
"""Bytes. The longest names all jobs of a batch."""

MOST_VALUES = 16_000_000
"""In one line: a million jobs, none of which is like another, have fewer. Each takes some 70 bytes once it is read."""


def whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Read the lines of a log; leave out a last one without its end. Raises RecordUnreadable if one is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if line.endswith(b"\n"):
            yield line
        elif len(line) == LONGEST_LINE:
            raise RecordUnreadable(f"line {number} is longer than {LONGEST_LINE >> 20} MiB, as no event is")


def parse(lines: Iterable[bytes]) -> Iterator[RecordedEvent]:
    """Read a log's lines, all of which are whole, one by one.

    Raises:
        RecordUnreadable: As `read_events`, without the path.
    """
    numbered = enumerate(lines, 1)
    _, first = next(numbered, (1, b""))
    _check_header(first)
    for number, line in numbered:
        if line.count(b",") + line.count(b"[") + line.count(b"{") > MOST_VALUES:
            raise RecordUnreadable(f"line {number} has more than {MOST_VALUES:,} values, as no event has")
        try:
            data = json.loads(line)
            read = _READERS.get(data["event"])
            event = None if read is None else read(data)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise RecordUnreadable(f"line {number} is not a valid event") from error
        if event is not None:  # else a later release's, of which we need not know
            yield event


def _check_header(line: bytes) -> None:
    try:
        data = json.loads(line)
        known = data["format"] == FORMAT
        version = int(data["version"])
    except (ValueError, TypeError, LookupError):
        known, version = False, 0
    if not known:
        raise RecordUnreadable("it is not the event log of a batch")
    if version > VERSION:
        raise RecordUnreadable("a newer release has written it; use that release")


def _reader(kind: Callable[..., RecordedEvent], names: Iterable[str]) -> Callable[[Mapping[str, Any]], RecordedEvent]:
    """Read what has the keys of a class; others may have been added by a later release."""
    known = frozenset(names)
    return lambda data: kind(**{name: value for name, value in data.items() if name in known})


def _begun(
    *,
    at: float,
    jobs: Sequence[Mapping[str, Any]],
    pools: Sequence[Mapping[str, Any]],
    jobs_file: str,
    streamed: bool = False,
    socket: str = "",
    id: str = "",  # noqa: A002  (the key's name)
) -> Begun:
    return Begun(
        at=float(at),
        jobs=_plan(jobs),
        pools=_pools(pools),
        jobs_file=jobs_file,
        streamed=streamed,
        socket=socket,
        id=id,
    )


def _replanned(*, at: float, jobs: Sequence[Mapping[str, Any]]) -> Replanned:
    return Replanned(at=float(at), jobs=_plan(jobs))


def _plan(groups: Sequence[Mapping[str, Any]]) -> Plan:
    return Plan.of_groups((Planned.read(alike), alike["names"]) for alike in groups)


def _rerun(*, at: float, jobs: Sequence[str]) -> Rerun:
    return Rerun(at=float(at), jobs=tuple(jobs))


def _resumed(*, at: float, pools: Sequence[Mapping[str, Any]]) -> Resumed:
    return Resumed(at=float(at), pools=_pools(pools))


def _pools(pools: Sequence[Mapping[str, Any]]) -> tuple[PoolFacts, ...]:
    names = fields_dict(PoolFacts)
    return tuple(PoolFacts(**{name: value for name, value in pool.items() if name in names}) for pool in pools)


def _ended(
    *,
    at: float,
    state: str,
    warnings: Sequence[str] = (),
    memory_limit: Mapping[str, Any] | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
    **others: Any,  # noqa: ANN401  (JSON)
) -> Ended:
    return Ended(
        at=float(at),
        state=JobState(state),
        warnings=tuple(warnings),
        memory_limit=MemoryLimit.read(memory_limit),
        steps=tuple(map(StepUse.read, steps)),
        **others,
    )


def _given_up(*, at: float, jobs: Sequence[str], state: str, why: str) -> GivenUp:
    return GivenUp(at=float(at), jobs=tuple(jobs), state=JobState(state), why=why)


_NAMES: Mapping[type[BatchEvent], str] = {
    Begun: "begun",
    Resumed: "resumed",
    Replanned: "replanned",
    Rerun: "rerun",
    Started: "started",
    Joined: "joined",
    Ended: "ended",
    GivenUp: "given_up",
    Over: "over",
}

_READERS: Mapping[str, Callable[[Mapping[str, Any]], RecordedEvent]] = {
    "begun": _reader(_begun, fields_dict(Begun)),
    "resumed": _reader(_resumed, fields_dict(Resumed)),
    "replanned": _reader(_replanned, fields_dict(Replanned)),
    "rerun": _reader(_rerun, fields_dict(Rerun)),
    "started": _reader(Started, fields_dict(Started)),
    "joined": _reader(Joined, fields_dict(Joined)),
    "ended": _reader(_ended, fields_dict(Ended)),
    "given_up": _reader(_given_up, fields_dict(GivenUp)),
    "over": _reader(Over, fields_dict(Over)),
    "instance": _reader(InstanceEvent, fields_dict(InstanceEvent)),
    "decision": _reader(read_decision, fields_dict(DecisionEvent)),
}
