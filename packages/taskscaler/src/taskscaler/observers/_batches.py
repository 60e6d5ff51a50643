"""The jobs of batches, for Prometheus: of the one that a command runs, or of those that were submitted to a daemon."""

from collections import Counter
from collections.abc import Callable, Iterable

from attrs import define, field
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from taskscaler.batch import BatchState, JobChanged, JobState
from taskscaler.observers._catalogue import BATCHES
from taskscaler.observers._families import Families


@define(eq=False)
class OfBatches(Collector):
    """Counts how jobs end, and shows where those stand that have not."""

    families: Families
    states: Callable[[], Iterable[BatchState]]
    """Gives those of the batches that are not over."""

    outcomes: Counter[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Start at nought."""
        self.outcomes = Counter({state.value: 0 for state in JobState if state.final})

    def changed(self, change: JobChanged) -> None:
        """Hear of a job; an observer of a batch."""
        if change.record.state.final:
            self.outcomes[change.record.state.value] += 1

    def describe(self) -> Iterable[Metric]:
        """Name the metrics."""
        return self.families.empty(BATCHES)

    def collect(self) -> Iterable[Metric]:
        """Count: O(batches)."""
        states = list(self.states())
        jobs = {each.value: sum(state.count(each) for state in states) for each in JobState}
        yield self.families.some("taskscaler_jobs", jobs)
        yield self.families.some("taskscaler_job_outcomes_total", self.outcomes)
        yield self.families.one("taskscaler_batches", len(states))
