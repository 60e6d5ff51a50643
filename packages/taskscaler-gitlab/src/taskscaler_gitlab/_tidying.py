"""Removes what a runner keeps of jobs that are over, and caches on its machine, beyond the limits of its settings."""

import logging
from pathlib import Path

from anyio import to_thread

from taskscaler_gitlab._finished import FinishedJob
from taskscaler_gitlab._keeping import Limits, outdated
from taskscaler_gitlab._manager_caches import tidy
from taskscaler_gitlab._settings import OwnSettings

REMEMBERED = 100
"""Jobs that are over of which the daemon still knows, if they are within the limits of ``retention``."""

log = logging.getLogger("taskscaler.gitlab")


async def tidy_jobs(finished: dict[str, FinishedJob], own: OwnSettings, now: float) -> None:
    """Keep the logs of the last jobs that are over.

    Args:
        finished: The jobs by the names of their directories; those that go are removed from it.
        own: The limits.
        now: Seconds since the epoch.
    """
    limits = Limits(age=own.retention.age, size=own.retention.size, most=REMEMBERED)
    kept = [*finished.values()]
    sizes = await to_thread.run_sync(lambda: [each.kept for each in kept])
    for name in outdated(sizes, limits, now):
        if (job := finished.pop(name, None)) is not None:  # somebody else may have forgotten it meanwhile
            await to_thread.run_sync(job.directory.remove)


async def tidy_caches(own: OwnSettings, now: float) -> None:
    """Keep the caches on this machine within the limits; *now* is in seconds since the epoch."""
    if own.cache_on_manager is None:
        return
    limits = Limits(age=own.cache_retention.age, size=own.cache_retention.size)
    if gone := await to_thread.run_sync(tidy, Path(own.cache_on_manager), limits, now):
        log.info("caches_removed", extra={"caches": len(gone)})
