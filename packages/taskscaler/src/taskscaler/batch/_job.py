"""One job of a batch."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import overload

from attrs import field, frozen, validators

from fleeting import Duration
from fleeting.config import in_words
from taskscaler.batch._plan import Plan, Planned, When
from taskscaler.batch._retries import Retries, as_retries
from taskscaler.executors import JobSpec

LOG_LIMIT = 64 << 20
"""Bytes that a job's log has at most, unless the job says otherwise."""

LEAST_LOG_LIMIT = 4096
"""Bytes: room for the beginning, the end, and what stands between them."""


@frozen(kw_only=True, field_transformer=in_words)
class Job:
    """What to run, and how."""

    spec: JobSpec
    """What to run."""

    executor: str = "instance"
    """Name of the executor that runs it."""

    retries: Retries = field(default=Retries(), converter=as_retries)
    """How often it is tried again, and when; a number is that of retries after its instance was lost."""

    needs: tuple[str, ...] = ()
    """Names of the jobs, and of the groups of jobs, that have to be over before it begins."""

    when: When = "on_success"
    """Whether it begins only if all that it needs has succeeded, or always."""

    group: str = ""
    """Name of the jobs that it is one of; a job that needs a group needs all of it. Empty: it is in none."""

    max_parallel: int = field(default=0, validator=validators.ge(0))
    """How many of its group may be under way at once, the same for each of them; 0: any number."""

    expected_duration: Duration | None = field(default=None, validator=validators.optional(validators.ge(0)))
    """Seconds it is expected to take, so that it is not begun where it could not end."""

    log_limit: int = field(default=LOG_LIMIT, validator=validators.ge(LEAST_LOG_LIMIT))
    """Bytes that its log has at most, in all tries; of a longer one the beginning and the end are kept."""

    detach: bool | None = None
    """Whether it outlives the command that runs it, where its executor and the instance can do that: a later command
    goes on with it. None: unless jobs of its group have shown that they take less than a second."""

    @property
    def name(self) -> str:
        """Its name, unique in the batch."""
        return self.spec.name


class LazyJobs(Sequence[Job], ABC):
    """Jobs that are made when somebody looks, and not all kept."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """What is planned, without making the jobs."""

    @property
    @abstractmethod
    def executors(self) -> frozenset[str]:
        """Names of the executors that the jobs use."""


class PlannedJobs(LazyJobs):
    """Jobs of which the plan is there, and each is made by its number."""

    _plan: Plan

    @property
    def plan(self) -> Plan:
        """What is planned."""
        return self._plan

    def __len__(self) -> int:
        """How many there are."""
        return len(self._plan)

    @overload
    def __getitem__(self, number: int) -> Job: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Job]: ...
    def __getitem__(self, number: int | slice) -> Job | Sequence[Job]:
        """Make the job with a number, from 0."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        return self._make(range(len(self))[number])

    @abstractmethod
    def _make(self, number: int) -> Job:
        """Make the job with a number, which there is."""


def planned(jobs: Iterable[Job]) -> Plan:
    """Return what is planned of jobs, in their order."""
    if isinstance(jobs, LazyJobs):
        return jobs.plan
    return Plan(
        Planned(
            name=job.name,
            retries=job.retries,
            group=job.group,
            needs=job.needs,
            when=job.when,
            max_parallel=job.max_parallel,
        )
        for job in jobs
    )


def executors_of(jobs: Iterable[Job]) -> frozenset[str]:
    """Return which executors jobs use, by their names."""
    return jobs.executors if isinstance(jobs, LazyJobs) else frozenset(job.executor for job in jobs)
