"""Goes on with a job that an earlier process has begun, with the settings with which it was begun."""

import logging
from collections.abc import Callable

from attrs import evolve, frozen

from fleeting.errors import SystemRefused
from fleeting.plugins import one_line
from gitlab_jobs import Job
from taskscaler.executors import Executor
from taskscaler_gitlab._noted_settings import NotedSettings
from taskscaler_gitlab._record import Left, Record, Stage
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._work import Runs, Shop, Work
from taskscaler_gitlab.cells._cell import Cell

log = logging.getLogger("taskscaler.gitlab")


@frozen(kw_only=True)
class Resuming:
    """What that takes; every method blocks."""

    runs: Runs
    executor: Executor
    """What runs jobs now."""

    make: Callable[[RunnerSettings], Executor]
    """Makes what runs jobs with other settings."""

    settings: NotedSettings
    have_changed: bool
    """Whether an earlier process may have begun jobs with others."""

    say: Callable[[str], object]
    """Prints a line."""

    def resume(self, cell: Cell, left: Left, job: Job) -> Work:
        """Go on with a job of a cell; what cannot be continued is seen to its end."""
        shop, record, why = cell.shop, left.standing, left.reason
        is_ended_by = left.record is not None or not self.have_changed
        if record.settings not in ("", cell.noted) and not why and record.stage is not Stage.ENDED:
            has_begun = self.runs.has_begun(left.directory.path)
            changed = None if has_begun else self._with_settings(cell.noted, left, record)
            if changed is None:
                shop, why = self._shop_with(cell, record.settings, job)
                is_ended_by = not why
            else:
                record = changed
        return Work(shop, job, left.directory, record, is_ended_by, why)

    @staticmethod
    def _with_settings(name: str, left: Left, record: Record) -> Record | None:
        """Note down that a job is begun with the settings of now; None: it cannot be, so it keeps the others.

        Otherwise the next start would look for it with those.
        """
        changed = evolve(record, settings=name)
        try:
            left.directory.note(changed)
        except OSError as error:
            log.warning("settings_not_noted_down", extra={"error": str(SystemRefused(error))})
            return None
        return changed

    def _shop_with(self, cell: Cell, settings: str, job: Job) -> tuple[Shop, str]:
        """What a job needs that was begun with other settings, or why that cannot be had."""
        now = cell.settings
        try:
            noted = self.settings.read(settings, now)
            executor = self.make(noted) if _differ(noted, now) else self.executor
        except Exception as error:  # noqa: BLE001  (it is said, and ends the job)
            why = (isinstance(error, OSError) and error.strerror) or one_line(str(error))
            return cell.shop, f"the settings that it started with cannot be used: {why}"
        if noted.kind != now.kind:
            self.say(
                f'note: the job {job.id} was started with executor = "{noted.executor}", and keeps it;'
                f" later ones run with {now.executor}"
            )
        return evolve(cell.shop, settings=noted, executor=executor), ""


def _differ(noted: RunnerSettings, now: RunnerSettings) -> bool:
    """Whether jobs with these settings need executors of their own."""
    noted_kind, now_kind = ((each.kind, each.docker, each.has_sidecars) for each in (noted, now))
    return noted_kind != now_kind or noted.taskscaler.tailor_memory != now.taskscaler.tailor_memory
