"""What becomes of the jobs of a batch, as it happens: written down, applied to what is known of them, and shown."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
from attrs import define

from taskscaler.batch._event_log import EventLog
from taskscaler.batch._events import Ended, GivenUp, Joined, Started
from taskscaler.batch._state import BatchState, JobChanged

Observer = Callable[[JobChanged], None]
"""Hears of every change as it happens; must be quick. What it raises is logged."""

COMMIT_RETRIES = 30
"""How often it is tried again to write down what became of a try: a disk that one job has filled may have room again
when that job is over."""

COMMIT_PAUSE = 1.0
"""Seconds between."""

log = logging.getLogger("taskscaler.batch")
units = logging.getLogger("taskscaler.work")


@define
class History:
    """The events of a batch on their way to the log, to the state, and to those that watch."""

    state: BatchState
    _events: EventLog
    _observer: Observer | None
    _changed: Callable[[Sequence[JobChanged]], None]
    """Hears of changes before the observer does."""

    async def commit(
        self, event: Started | Joined | Ended, *, leaves: Sequence[Path] = (), then: Callable[[], object] | None = None
    ) -> None:
        """Let nobody know of a change to a try that a later run would not know of; see `EventLog.commit`.

        Raises:
            OSError: It cannot be written, though the disk was given time to have room again.
        """
        for _ in range(COMMIT_RETRIES):
            with suppress(OSError):
                await self._events.commit(event, leaves=leaves, then=then)
                break
            await anyio.sleep(COMMIT_PAUSE)
        else:
            try:
                await self._events.commit(event, leaves=leaves, then=then)
            except OSError as error:
                log.warning("try_not_recorded", extra={"job": event.job, "error": str(error)})
                raise
        self._take(event)

    def put(self, event: Ended | GivenUp) -> None:
        """Have it written soon: a later command that does not know of it does no harm."""
        self._events.put(event)
        self._take(event)

    def _take(self, event: Started | Joined | Ended | GivenUp) -> None:
        """Have the event change the jobs, and report it."""
        changes = self.state.apply(event)
        self._changed(changes)
        for change in changes:
            self._show(change)
        if units.isEnabledFor(logging.INFO):
            self._log(event)

    def _log(self, event: Started | Joined | Ended | GivenUp) -> None:
        """Have each try be one event of the log, once it is over."""
        match event:
            case Ended():
                tries = self.state[event.job].attempts
                about = {
                    "job": event.job,
                    "try": len(tries),
                    "state": event.state.value,
                    "exit_code": event.exit_code,
                    "why": event.why,
                    "pool": tries[-1].pool,
                    "instance": tries[-1].instance,
                    "slot": tries[-1].slot,
                    "duration_s": round(tries[-1].duration, 3),
                    "cpu_time_s": event.cpu_time,
                    "peak_memory": event.peak_memory,
                    "disk_written": event.disk_written,
                }
                units.info("try_ended", extra=about)
            case GivenUp():
                units.info(
                    "jobs_given_up", extra={"jobs": len(event.jobs), "state": event.state.value, "why": event.why}
                )

    def _show(self, change: JobChanged) -> None:
        """Notify the observer, which cannot end the batch."""
        if self._observer:
            try:
                self._observer(change)
            except Exception:
                log.exception("batch_observer_failed", extra={"job": change.record.name})
