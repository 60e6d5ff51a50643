"""What a runner says itself in a job's log: once, and in the same words again after a restart.

What is said is written down before, and so it is masked here: what an executor says of an image has that image's name,
and that may be made of a secret.
"""

from collections.abc import Iterable
from importlib.metadata import version

from anyio import to_thread
from attrs import define, field

from fleeting.plugins import one_line
from gitlab_jobs import Masker, Outcome, shorten
from gitlab_jobs.client import Reporting
from taskscaler.executors import Leased
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner import _talk
from taskscaler_gitlab.runner._record import Record


@define(kw_only=True)
class JobLog:
    """A job's log, for what its runner says in it."""

    reporting: Reporting
    record: Record

    sections: bool
    """Whether GitLab wants marks where sections begin and end."""

    _phrases: tuple[str, ...] = field(default=(), init=False, repr=False)

    def hide(self, phrases: tuple[str, ...]) -> None:
        """Mask these from now on, in the log and in what is written down."""
        self._phrases = phrases
        self.reporting.hide(phrases)

    def masked(self, text: str) -> str:
        """A text that may be written down."""
        masker = Masker(self._phrases)
        return (masker.feed(text.encode(errors="replace")) + masker.end()).decode(errors="replace")

    def write(self, text: str) -> None:
        """Write it; whoever goes on with the job writes it at the same place, or it is of no use then."""
        self.reporting.log(text.encode(errors="replace"))

    async def say(self, text: str) -> None:
        """Write what comes after the last leg, once it is written down."""
        said = self.masked(text)
        self.record.said.append(said)
        await to_thread.run_sync(self.record.save)
        self.write(said)

    def repeat(self) -> None:
        """Write what was said after the last leg before a restart."""
        self.write("".join(self.record.said))

    def end_section(self, name: str, now: float) -> None:
        """End a section."""
        self.write(_talk.end_of_section(name, now, marks=self.sections))

    def greet(self, settings: RunnerSettings, lease: Leased, problems: Iterable[str]) -> None:
        """Say who runs the job, where, and what is strange about it."""
        began, name = self.record.began, "prepare_executor"
        self.write(f"Running with taskscaler-gitlab {version('taskscaler-gitlab')}\n")
        self.write(f"  on {one_line(settings.name) or 'a runner without a name'} {shorten(settings.token)}\n")
        self.write(_talk.section(name, f'Preparing the "{settings.executor}" executor', began, marks=self.sections))
        self.write(f"Using slot {lease.slot} of the instance {one_line(lease.instance)}\n")
        for problem in problems:
            self.write(_talk.warning(problem))
        self.end_section(name, began)

    async def finish(self, outcome: Outcome, why: str) -> Outcome:
        """Say how the job ended, once that is written down."""
        self.record.outcome = outcome
        await self.say(_talk.success("Job succeeded") if outcome.is_success else _talk.failure(f"Job failed: {why}"))
        return outcome
