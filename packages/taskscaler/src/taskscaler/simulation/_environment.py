"""What a simulated cloud is like: how long things take there, and what goes wrong."""

from collections.abc import Mapping, Sequence
from math import inf

from attrs import field, frozen
from attrs.validators import ge, le

from taskscaler.simulation._distributions import Constant, Distribution

AT_ONCE = Constant(0.0)
SECONDS = Constant(10.0)
A_MINUTE = Constant(60.0)


@frozen(kw_only=True)
class StockOuts:
    """Times in which the cloud has no capacity: every request for more is refused. None is shorter than a second."""

    every: Distribution
    """Seconds from the end of one to the begin of the next."""

    lasts: Distribution
    """Seconds."""


@frozen(kw_only=True)
class Preemptions:
    """The cloud takes instances back."""

    after: Distribution
    """Seconds for which an instance has run by then."""

    notice: float = field(default=0.0, validator=ge(0))
    """Seconds before which it is announced; 0: it is not."""


@frozen(kw_only=True)
class Fate:
    """What became of one instance, in seconds since it was asked for."""

    boot: float
    """Until the cloud showed it as running, or as failed; infinite: it was taken before."""

    fails: bool = False
    """Whether it failed instead of coming to run."""

    ready: float | None = None
    """Seconds from then until it took jobs; None: it did not."""

    never_ready: bool = False
    """Whether it ran and never passed the readiness steps."""

    delete: float | None = None
    """Seconds from the request for its deletion until it was gone; None: it was not deleted, or that was not seen."""

    taken: float = inf
    """Until the cloud took it; infinite: it did not."""


@frozen(kw_only=True)
class Course:
    """What one recorded run met, one after the other; after that, chance has its way."""

    fates: Sequence[Fate] = ()
    """Of its instances, in the order in which they were requested."""

    refusals: Mapping[int, str] = field(factory=dict)
    """Why requests were refused, by their number from 0."""


@frozen(kw_only=True)
class PoolEnvironment:
    """What the cloud of one pool is like."""

    boot: Distribution = A_MINUTE
    """From an accepted request until the cloud shows the instance as running."""

    ready: Distribution = AT_ONCE
    """What connecting and the readiness steps take from then."""

    delete: Distribution = AT_ONCE
    """From an accepted deletion until the instance is gone."""

    suspend: Distribution = SECONDS
    """From an accepted suspension until the instance is suspended, and paid for no more."""

    resume: Distribution = SECONDS
    """From an accepted resumption until the cloud shows the instance as running."""

    clean: Distribution = AT_ONCE
    """What cleaning a slot takes, where the pool does that."""

    answer: Distribution = AT_ONCE
    """What the cloud takes to answer any call."""

    boot_failure: float = field(default=0.0, validator=[ge(0), le(1)])
    """The share of new instances that fail instead of coming to run."""

    ready_failure: float = field(default=0.0, validator=[ge(0), le(1)])
    """The share of instances that run and never pass the readiness steps."""

    stock_outs: StockOuts | None = None
    """None: there is always capacity."""

    preemptions: Preemptions | None = None
    """None: an instance stays until it is deleted."""

    course: Course | None = None
    """What comes before all that; None: nothing does."""


@frozen(kw_only=True)
class Environment:
    """What the clouds of all pools are like."""

    pools: Mapping[str, PoolEnvironment] = field(factory=dict)
    """Of some pools, by name."""

    default: PoolEnvironment = PoolEnvironment()
    """Of all others."""

    def of(self, pool: str) -> PoolEnvironment:
        """What the cloud of that pool is like."""
        return self.pools.get(pool, self.default)
