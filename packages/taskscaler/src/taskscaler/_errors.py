"""What goes wrong with commands, jobs and slots, one class per thing a caller would do differently.

FleetingError
└── TaskscalerError
    ├── ResultsInTheWay   name another directory for the results
    ├── CannotResume      there is no batch to go on with, or not for us
    ├── ReportFailed      correct the report's command; the results are there
    ├── RecordUnreadable  use the release that has written the event log of the batch
    ├── NotRecorded       name the directory of the results, and what they describe
    ├── PicturesMissing   install what draws
    ├── TraceUnreadable   correct the trace, or say what its columns are
    ├── SimulationStuck   give the fleet what its jobs need
    ├── NoDaemon          start a daemon, or name its socket
    ├── SocketRefused     stop the other daemon, or name another socket
    ├── DaemonRefused     ask for something else, or be somebody else
    ├── NoCapacity        no slot, and why; `possible` says whether one can still come
    ├── KeyInUse          use another key, or release the one that holds it
    ├── NotSuspended      no lease sleeps under the key; it may have been lost
    │   └── LeaseExpired  one did, for longer than its `ttl`
    ├── NotDetached       nothing waits to be reattached under the key; `held` says whether somebody has it
    ├── NotHeld           no lease is held under the key; acquire one
    ├── NoSuchInstance    look at `instances()`; it may be gone, or going
    ├── LeaseLost         the slot is gone; the work may be tried again
    ├── ScriptFailed      look at what it printed, and correct it
    └── CallFailed        look at the traceback, and correct it

Each class has an entry in the catalogue of errors, ``docs/reference/errors.md``; CONTRIBUTING says how to add one.
"""

from typing import TYPE_CHECKING

from fleeting import FleetingError
from fleeting.config import harmless
from fleeting.errors import CatalogueEntry
from fleeting.events import Loss
from fleeting.plugins import one_line
from taskscaler._wording import iso

if TYPE_CHECKING:
    from taskscaler.core._slots import Capacity

LAST_WORDS = 2000
"""Characters of the output that an error shows."""


_LOOKED_AT = 64 * 1024
"""Bytes of the output that are looked at for that: escape sequences are left out of them."""


class TaskscalerError(FleetingError):
    """Base class of everything that taskscaler raises on purpose."""

    entry = CatalogueEntry(
        "TS100",
        "A program uses a part of taskscaler at the wrong time or with the wrong arguments.",
        "Do what the message says; use a scaler inside `async with`, and a scaler from taskscaler.sync inside `with`.",
    )


class ResultsInTheWay(TaskscalerError):
    """The directory for the results holds something; results are never mixed."""

    entry = CatalogueEntry(
        "TS103",
        "The directory for the results is not empty; results of two batches are never mixed.",
        "Name another directory with --output, or empty this one.",
    )


class CannotResume(TaskscalerError):
    """There is no batch to go on with, or not for us."""

    entry = CatalogueEntry(
        "TS104",
        "The directory holds no batch, or one that cannot be resumed here and now.",
        "Do what the message says; if nothing helps, start a new batch in another directory.",
    )


class ReportFailed(TaskscalerError):
    """The report's command did not exit with 0, took too long, or could not be started."""

    entry = CatalogueEntry(
        "TS105",
        "The command under [report] failed or took too long; the jobs and their results are not affected.",
        "Correct the command, and run it by hand in the results directory.",
    )


class RecordUnreadable(TaskscalerError):
    """The event log of a batch is damaged, is none, or was written by a later release."""

    entry = CatalogueEntry(
        "TS106",
        "The batch's event log, events.jsonl, is damaged, or a later release wrote it.",
        "Use the release that wrote it, or a later one; if it is damaged, read results.json and the logs.",
    )


class NotRecorded(TaskscalerError):
    """There are no results where they were looked for, or they say nothing about what was asked."""

    entry = CatalogueEntry(
        "TS107",
        "The directory holds no readable results of a batch, or none for the job or instance that was asked for.",
        "Name the directory that `taskscaler run` wrote the results to, and a job or an instance of that batch.",
    )


class PicturesMissing(TaskscalerError):
    """The library that draws is not installed."""

    entry = CatalogueEntry(
        "TS108",
        "Drawing a timeline or a report needs matplotlib, which is not installed or does not work.",
        "Install taskscaler[pictures]; the results are not affected, and taskscaler report draws the timeline later.",
    )


class TraceUnreadable(TaskscalerError):
    """A trace is damaged, too large, or does not say when jobs were submitted and how long they ran."""

    entry = CatalogueEntry(
        "TS112",
        "A trace of jobs is damaged, too large, or does not say when jobs were submitted and how long they ran.",
        "Correct the line that the message names, or say with --columns which columns have what.",
    )


class SimulationStuck(TaskscalerError):
    """Jobs of a simulation are left, and none has ended for days."""

    entry = CatalogueEntry(
        "TS113",
        "In a simulation, jobs are left and none has ended for days: the fleet cannot run them.",
        "Check max_instances, the shares of failures, and how long instances last, against how long jobs run.",
    )


class NoDaemon(TaskscalerError):
    """No daemon answers."""

    entry = CatalogueEntry(
        "TS109",
        "No daemon answers on the socket, or there is none.",
        "Start one with taskscaler serve, or name the socket of one that runs with --socket or TASKSCALER_SOCKET.",
    )


class SocketRefused(TaskscalerError):
    """The daemon cannot listen where it should."""

    entry = CatalogueEntry(
        "TS110",
        "The daemon's socket cannot be made, or another daemon has it.",
        "Stop the other daemon, or name another socket with --socket.",
    )


class DaemonRefused(TaskscalerError):
    """The daemon does not do this, or not for us."""

    entry = CatalogueEntry(
        "TS111",
        "The daemon refuses a request: it is malformed, too large, or only its own user may make it.",
        "Do what the message says; clients and daemon should be of the same release.",
    )

    def __init__(self, why: str, *, status: int = 400) -> None:
        """Take the reason, and HTTP's status for it."""
        self.status = status
        super().__init__(why)


class NoCapacity(TaskscalerError):
    """There is no slot."""

    entry = CatalogueEntry(
        "TS201",
        "No slot became free in time, or none ever will; or a lease could not be resumed or reattached in time.",
        "Raise max_instances or instance_acquire_timeout, or remove what the message says keeps instances from coming.",
    )

    def __init__(self, why: object, *, possible: bool = False, capacity: "Capacity | None" = None) -> None:
        """Take what there is to say of it.

        Args:
            why: The reason; its `str()` is the message.
            possible: Whether a slot may come later: ask again then.
            capacity: The slots at that moment, by state; None where there is no scaler that could count them.
        """
        self.possible = possible
        self.capacity = capacity
        super().__init__(why)


class KeyInUse(TaskscalerError):
    """The key holds a slot, is reserved, or waits already."""

    entry = CatalogueEntry(
        "TS202",
        "Two pieces of work use the same key at the same time.",
        "Release the slot that the key holds, or use another key.",
    )

    def __init__(self, key: str) -> None:
        """Take the key."""
        self.key = key
        super().__init__(f"key {key!r} is in use; release it, or use another key")


class NotSuspended(TaskscalerError):
    """No lease is suspended under this key."""

    entry = CatalogueEntry(
        "TS203",
        "The lease to resume is not suspended: it never was, it was resumed already, or its instance was lost.",
        "Acquire a new slot, and start the work again.",
    )

    def __init__(self, key: str) -> None:
        """Take the key."""
        self.key = key
        super().__init__(f"no lease is suspended under the key {key!r}; its instance may have been lost")


class LeaseExpired(NotSuspended):
    """A lease was suspended under this key, and nobody has resumed it in time."""

    entry = CatalogueEntry(
        "TS208",
        "The lease to resume was suspended with a `ttl`, which is over: its slot was freed.",
        "Acquire a new slot, and start the work again; suspend with a longer `ttl`, or with none.",
    )

    def __init__(self, key: str, at: float) -> None:
        """Take the key, and when the lease expired, in seconds since the epoch."""
        self.key = key
        self.at = at
        TaskscalerError.__init__(self, f"the suspended lease of the key {key!r} expired at {iso(at)}")


class NotDetached(TaskscalerError):
    """No lease is detached under this key."""

    entry = CatalogueEntry(
        "TS209",
        "The lease to reattach is not detached: it never was persistent, somebody has reattached it, or it has ended.",
        "If somebody holds it, leave it alone; otherwise acquire a new slot, and start the work again.",
    )

    def __init__(self, key: str, why: str, *, held: bool) -> None:
        """Take the key, what is so instead, and whether the key holds a slot."""
        self.key = key
        self.held = held
        super().__init__(f"the lease {key!r} {why}")


class NotHeld(TaskscalerError):
    """No lease is held or suspended under this key."""

    entry = CatalogueEntry(
        "TS210",
        "The lease to replace is not held: it never was, it has ended, or it is detached.",
        "Acquire a new slot; reattach a detached lease first.",
    )

    def __init__(self, key: str, *, detached: bool = False) -> None:
        """Take the key, and whether a lease under it is detached."""
        self.key = key
        self.detached = detached
        what = "the lease {!r} is detached; reattach it first" if detached else "no lease is held under the key {!r}"
        super().__init__(what.format(key))


class NoSuchInstance(TaskscalerError):
    """No instance of this name can be cordoned or retained."""

    entry = CatalogueEntry(
        "TS205",
        "The instance to cordon or retain is unknown, exists in several pools, or is being removed.",
        "Look its name up in `instances()`; write pool/id where two pools have the same id.",
    )

    def __init__(self, instance: str, why: str) -> None:
        """Take the name that was given, and what is wrong with it."""
        self.instance = instance
        super().__init__(why)


class LeaseLost(TaskscalerError):
    """The slot was taken away while it was held."""

    entry = CatalogueEntry(
        "TS204",
        "The instance of a slot was lost or taken away while work ran on it.",
        "Try the work again; it gets another instance.",
    )

    def __init__(self, key: str, instance: str, loss: Loss) -> None:
        """Take the lease's key, its instance and why it was lost."""
        self.key = key
        self.instance = instance
        self.loss = loss
        super().__init__(f"{key} lost its slot on {instance} ({loss})")


class ScriptFailed(TaskscalerError):
    """A script ended otherwise than well, and the caller asked for an error; see `futures.Result.check`."""

    entry = CatalogueEntry(
        "TS206",
        "A script that was submitted to a FleetExecutor did not succeed.",
        "Read its output, which the error shows, and correct the script.",
    )

    def __init__(self, why: str, output: bytes = b"") -> None:
        """Take why, in a few words, and what the script printed."""
        self.why = why
        self.output = output
        super().__init__(f"the script failed: {why}")
        _add_note(self, output)


class CallFailed(TaskscalerError):
    """A function raised on the instance, or could not be called there."""

    entry = CatalogueEntry(
        "TS207",
        "A function that was submitted to a FleetExecutor raised on the instance, or could not be called there.",
        "Read the traceback that the error shows; correct the function, or send along what it imports.",
    )

    def __init__(self, function: str, why: str, output: bytes = b"", traceback: str = "") -> None:
        """Take what was called, why it failed, what it printed, and where it raised if it did."""
        self.function = function
        self.why = why
        self.output = output
        self.traceback = traceback
        super().__init__(one_line(f"{function} failed: {why}"))
        _add_note(self, traceback.encode(errors="replace") or output)


def _add_note(error: Exception, said: bytes) -> None:
    """Have what was said on the instance shown below the error."""
    text = harmless(said[-_LOOKED_AT:].decode(errors="replace")).strip()[-LAST_WORDS:]
    if text:
        error.add_note(f"On the instance:\n{text}")
