"""Who made what is found on a daemon, and whether anybody still needs it.

Everything that is made for a job bears labels: which manager, which run of it, which job on which lease. What was made
by a run of the same manager that is over, killed or not, is cleared away by the next job there. All else is left alone,
for it may be in use: two managers may share a daemon, and both call an instance of theirs by one name.

What outlives the manager bears the name of its try instead of a run. It is cleared away by the next such job on the
same slot, unless a process works for its batch. What this run has ended, but could not reach, or what the daemon was
still making, goes with the next such job on that daemon, when it begins and when it ends.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field, frozen

from taskscaler.executors.runs import Latest, Runs, batch_of, check_try, is_try

MANAGER = "taskscaler.manager"
RUN = "taskscaler.run"
UNIT = "taskscaler.unit"
INSTANCE = "taskscaler.instance"
SLOT = "taskscaler.slot"
JOB = "taskscaler.job"
KIND = "taskscaler.kind"
TRY = "taskscaler.try"
LIMITED_BY = "taskscaler.memory-limit"
LIMITED_WHY = "taskscaler.memory-limit-why"
"""What has set a job's memory limit, for whoever follows it once its manager was killed."""

CACHE = "cache"

Labels = Mapping[str, str]

_NOT_AN_INSTANCE = dict.fromkeys(("fleeting.group", "fleeting.intent", "fleeting.owner", "fleeting.host-key"), "")
"""Labels that an image may bear, and its containers with it: by them a job would pass for an instance of a group."""


@frozen(kw_only=True)
class Unit:
    """One try at one job, and all that is made for it."""

    id: str
    """Unique, short, and fit for names."""

    labels: Labels

    @property
    def is_kept(self) -> bool:
        """Whether it outlives its manager."""
        return TRY in self.labels

    def of_kind(self, kind: str) -> dict[str, str]:
        """Labels of one thing: a job's container, a service's, a network."""
        return {**_NOT_AN_INSTANCE, **self.labels, KIND: kind}


@define
class Owner:
    """This run of a manager. Nothing is opened before the first job."""

    _root: Path | None = None
    _runs: Runs = field(init=False)
    _ended: Latest = field(factory=Latest, init=False)
    """Tries that nobody needs any more. Something of them may be left, or come late: a daemon goes on
    with what it was asked for by a manager that was killed."""

    @_runs.default
    def _runs_of_root(self) -> Runs:
        return Runs("docker", self._root)

    def directory(self) -> Path:
        """Where all runs of the manager keep what they know; see `Runs.directory`."""
        return self._runs.directory()

    def claim(self) -> None:
        """Take up the manager's identity; see `Runs.claim`."""
        self._runs.claim()

    @contextmanager
    def at_work(self, job: str, instance: str, slot: int) -> Iterator[Unit]:
        """Be at work for one try at a job."""
        with self._runs.at_work() as unit:
            labels = {
                MANAGER: self._runs.manager,
                RUN: self._runs.id,
                UNIT: unit,
                INSTANCE: instance,
                SLOT: str(slot),
                JOB: job,
            }
            yield Unit(id=unit, labels=labels)

    def hold(self, name: str, job: str, instance: str, slot: int) -> Unit:
        """Be at work for a try that outlives us, until `let_go` or the end of this process.

        Blocks shortly, as `claim` does.

        Raises:
            ValueError: That is no name of a try.
        """
        check_try(name)
        self._runs.claim()
        self._runs.hold(batch_of(name), name)
        labels = {
            MANAGER: self._runs.manager,
            TRY: name,
            UNIT: name,
            INSTANCE: instance,
            SLOT: str(slot),
            JOB: job,
        }
        return Unit(id=name, labels=labels)

    def let_go(self, name: str) -> None:
        """Be at work for it no more, and need nothing of it."""
        self._ended.add(name)
        self._runs.let_go(batch_of(name), name)

    def is_over(self, found: Labels, unit: Unit) -> bool:
        """Whether something, by its labels, is of a try that we have ended, or that lost its slot to this one."""
        name = found.get(TRY, "")
        if name in self._ended and found.get(MANAGER) == self._runs.manager:
            return True
        of_slot = all(found.get(label) == unit.labels[label] for label in (MANAGER, INSTANCE, SLOT))
        return of_slot and name != unit.id and is_try(name) and not self._runs.is_held(batch_of(name))

    def is_leftover(self, found: Labels) -> bool:
        """Whether something, by its labels, is our manager's, and needed no more for sure."""
        return self._runs.is_over(found.get(MANAGER, ""), found.get(RUN, ""), found.get(UNIT, ""))
