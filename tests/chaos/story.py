"""What one seed stands for: a cloud, a pool, a policy, jobs, and what goes wrong when. Nothing happens here."""

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf
from random import Random
from types import MappingProxyType

from attrs import Factory, evolve, field, frozen

from fleeting import Capability, Preexisting, ScaleThrottle
from fleeting.testing import FakeCloud
from taskscaler import Policy
from taskscaler._types import PoolSettings

JOBS = 100
"""At least so many in a story."""

FAULTS = 20
"""At least so many are met in a story."""

SLEEPY = 0.4
"""Share of the stories in which jobs and instances sleep."""

LEARNING = 0.3
"""Share of the stories whose policy has an `idle_time` in which it learns how long idling pays."""

LASTING = 0.4
"""Share of the stories in which jobs have persistent leases."""

POOLED = 0.4
"""Share of the stories that have three pools."""

PEERS = 0.3
"""Share of the stories in which there are troubles that comparable autoscalers had."""

READY_COMMAND = "are you ready"

CLEANUP_COMMAND = "clean up"


class Wish(Enum):
    """What whoever brings a job does besides running it."""

    PLAIN = "plain"
    DIAL = "dial"
    """Runs it as a command over a connection."""

    RESERVE = "reserve"
    """Reserves before, and acquires under the same key."""

    UNRESERVE = "unreserve"
    """Reserves, and brings no job after all."""

    CANCEL = "cancel"
    """Is cancelled after some time, waiting or running."""

    IMPATIENT = "impatient"
    """Waits only so long for a slot."""


@frozen(kw_only=True)
class Job:
    """One job, of whoever wants it run."""

    key: str
    at: float
    """Seconds from the story's beginning."""

    duration: float
    declared: bool = False
    """Whether its duration is told beforehand."""

    wish: Wish = Wish.PLAIN
    patience: float = inf
    """Seconds: from reserving to acquiring, to the cancellation, or of waiting."""

    sleeps: float = 0.0
    """Seconds for which it is suspended half-way; 0: it is not."""

    ttl: float = inf
    """Seconds for which it may be, before it has to begin anew."""

    returns: float | None = None
    """Seconds after a restart at which its owner comes back for it, if its lease is persistent; None: it is not."""


@frozen(kw_only=True)
class Trouble:
    """Something that goes wrong, by its name in `tests.chaos.troubles`."""

    at: float
    kind: str


@frozen(kw_only=True)
class CrashPoint:
    """Where a scripted manager is killed: at the so-manieth time it comes there."""

    place: str
    """``commit``, or a method of the group."""

    number: int
    """Counted from 1."""

    after: bool
    """Whether what it does there has happened."""


@frozen(kw_only=True)
class Story:
    """Everything that is settled before it begins."""

    seed: int
    pool: PoolSettings
    policy: Policy
    jobs: tuple[Job, ...]
    troubles: tuple[Trouble, ...] = ()
    crash: CrashPoint | None = None
    cloud: Mapping[str, object] = Factory(dict)
    """Arguments of `FakeCloud`."""

    others: tuple[tuple[PoolSettings, Mapping[str, object]], ...] = ()
    """Pools that are asked after the first, in that order, each with the arguments of its cloud."""

    max_instances: int = 0
    """Over all pools; 0: any number."""

    delete_on_shutdown: bool = False
    keep_used: bool = False
    """Whether instances that were in use when a manager died are used on."""

    reattach_timeout: float = 600.0
    """Seconds for which persistent leases are kept after a restart."""

    backend: str = "asyncio"
    commit_time: float = 0.0
    """Seconds that the journal takes."""

    least_faults: int = field(default=FAULTS)

    @property
    def pools(self) -> tuple[tuple[PoolSettings, Mapping[str, object]], ...]:
        """All of them, in order of preference, each with the arguments of its cloud."""
        return ((self.pool, self.cloud), *self.others)

    @property
    def renews(self) -> bool:
        """Whether idle instances are replaced as they grow old, for ever."""
        return bool(self.pool.max_instance_age and self.policy.idle_count)

    def make_cloud(self) -> FakeCloud:
        """A cloud of this story's kind, for whoever needs only that."""
        return FakeCloud(**self.cloud)  # type: ignore[arg-type]


def story_of(
    seed: int,
    kinds: Mapping[str, frozenset[Capability]],
    cleanup_kinds: Sequence[str] = (),
    sleep_kinds: Sequence[str] = (),
    pool_kinds: Sequence[str] = (),
    *,
    peer_kinds: Mapping[str, frozenset[Capability]] = MappingProxyType({}),
) -> Story:
    """Make up the story of a seed.

    Args:
        seed: Decides everything.
        kinds: What can go wrong, and which capabilities a cloud needs for it.
        cleanup_kinds: What can go wrong besides where slots are cleaned between jobs.
        sleep_kinds: What can go wrong besides where instances can be suspended.
        pool_kinds: What can go wrong besides where there are several pools.
        peer_kinds: What went wrong with others, and which capabilities a cloud needs for it.
    """
    story = _pooled(_expiring(_sleepy(_worn(_plain_story(seed, kinds), cleanup_kinds), sleep_kinds)), pool_kinds)
    return _learning(_lasting(_with_troubles_of_peers(story, peer_kinds)))


def _plain_story(seed: int, kinds: Mapping[str, frozenset[Capability]]) -> Story:
    """Instances of any age are used as they are."""
    random = Random(seed)
    capabilities = frozenset(
        each for each in (Capability.NAMED_CREATE, Capability.WITHDRAW, Capability.NOTICES) if random.random() < 0.7
    )
    length = random.uniform(120, 220)
    pool = _pool(random)
    return Story(
        seed=seed,
        pool=pool,
        policy=_policy(random),
        jobs=_jobs(random, length),
        troubles=_troubles(random, length, [kind for kind, needs in kinds.items() if needs <= capabilities]),
        cloud=_cloud(random, capabilities, pool.max_instances),
        delete_on_shutdown=random.random() < 0.2,
        backend="trio" if seed % 10 == 0 else "asyncio",
        commit_time=random.choice([0.0, 0.0, 0.01, 0.3]),
    )


def _worn(story: Story, cleanup_kinds: Sequence[str]) -> Story:
    """The same, but that instances wear: they grow too old, leave dirt between jobs, or have to show that they live.

    What is drawn here is drawn by itself, so that all else in a story stays as it was without it.
    """
    random = Random(f"{story.seed}/wear")
    cleans = random.random() < 0.4
    number = random.randrange(1, 6) if cleans else 0
    length = max(trouble.at for trouble in story.troubles)
    troubles = [Trouble(at=random.uniform(0, length), kind=random.choice(cleanup_kinds)) for _ in range(number)]
    return evolve(
        story,
        pool=evolve(
            story.pool,
            max_instance_age=random.choice(
                [0.0, 0.0, 40.0, 100.0] if not story.policy.idle_count else [0.0, 0.0, 200.0]
            ),
            instance_cleanup_command=CLEANUP_COMMAND if cleans else None,
            instance_cleanup_timeout=10.0,
            heartbeat_on_acquire=random.random() < 0.3,
        ),
        keep_used=cleans and random.random() < 0.3,
        troubles=tuple(sorted([*story.troubles, *troubles], key=lambda trouble: trouble.at)),
    )


def _sleepy(story: Story, sleep_kinds: Sequence[str]) -> Story:
    """The same, but in some stories jobs and instances sleep. Drawn by itself, as what wears is."""
    random = Random(f"{story.seed}/sleep")
    if not sleep_kinds or random.random() > SLEEPY:
        return story
    length = max(trouble.at for trouble in story.troubles)
    troubles = [Trouble(at=random.uniform(0, length), kind=random.choice(sleep_kinds)) for _ in range(8)]
    capabilities = story.cloud["capabilities"]
    assert isinstance(capabilities, frozenset)
    latency = story.cloud["latency"]
    assert isinstance(latency, Mapping)
    return evolve(
        story,
        pool=evolve(
            story.pool, suspended_count=random.choice([0, 0, 1, 3]), suspended_time=random.choice([20.0, 100.0])
        ),
        jobs=tuple(_perhaps_asleep(random, job) for job in story.jobs),
        troubles=tuple(sorted([*story.troubles, *troubles], key=lambda trouble: trouble.at)),
        cloud={
            **story.cloud,
            "capabilities": capabilities | {Capability.SUSPEND_RESUME, Capability.OWNER_MARK},
            "suspend_time": random.choice([0.0, 2.0, 8.0]),
            "resume_time": random.choice([0.0, 1.0, 6.0]),
            "latency": {**latency, "suspend": random.choice([0.0, 1.0]), "resume": random.choice([0.0, 1.0])},
        },
    )


def _expiring(story: Story) -> Story:
    """The same, but some jobs that sleep may do so only for a while. Drawn by itself, as what wears is."""
    random = Random(f"{story.seed}/ttl")
    return evolve(story, jobs=tuple(_perhaps_expiring(random, job) for job in story.jobs))


def _perhaps_expiring(random: Random, job: Job) -> Job:
    """One in two that sleep, too briefly, at the last moment, or for nearly long enough."""
    if not job.sleeps:
        return job
    return evolve(job, ttl=random.choice([inf, inf, job.sleeps / 2, job.sleeps, job.sleeps + 2.0, 0.0]))


def _pooled(story: Story, pool_kinds: Sequence[str]) -> Story:
    """The same, but in some stories there are three pools. Drawn by itself, as what wears is."""
    random = Random(f"{story.seed}/pools")
    if not pool_kinds or random.random() > POOLED:
        return story
    length = max(trouble.at for trouble in story.troubles)
    troubles = [Trouble(at=random.uniform(0, length), kind=random.choice(pool_kinds)) for _ in range(3)]
    others = tuple(_another_pool(random, story, name) for name in ("second", "third"))
    return evolve(
        story,
        others=others,
        max_instances=random.choice([0, 0, 4, 7]),
        troubles=tuple(sorted([*story.troubles, *troubles], key=lambda trouble: trouble.at)),
    )


def _with_troubles_of_peers(story: Story, kinds: Mapping[str, frozenset[Capability]]) -> Story:
    """The same, but in some stories goes wrong what did with others. Drawn by itself, as what wears is."""
    random = Random(f"{story.seed}/peers")
    capabilities = story.cloud["capabilities"]
    assert isinstance(capabilities, frozenset)
    possible = [kind for kind, needs in kinds.items() if needs <= capabilities]
    if not possible or random.random() > PEERS:
        return story
    length = max(trouble.at for trouble in story.troubles)
    troubles = [Trouble(at=random.uniform(0, length), kind=random.choice(possible)) for _ in range(3)]
    return evolve(story, troubles=tuple(sorted([*story.troubles, *troubles], key=lambda trouble: trouble.at)))


def _lasting(story: Story) -> Story:
    """The same, but in some stories jobs outlive their managers, and their owners come back. Drawn by itself."""
    random = Random(f"{story.seed}/lasting")
    if random.random() > LASTING:
        return story
    jobs = tuple(_perhaps_lasting(random, job) for job in story.jobs)
    return evolve(story, jobs=jobs, reattach_timeout=random.choice([5.0, 20.0, 60.0]))


def _perhaps_lasting(random: Random, job: Job) -> Job:
    """Half of those that nobody gives up, and that do not sleep."""
    returns = random.choice([0.0, 0.0, 3.0, 15.0, 100.0]) if random.random() < 0.5 else None
    return evolve(job, returns=returns) if job.wish in {Wish.PLAIN, Wish.DIAL} and not job.sleeps else job


def _learning(story: Story) -> Story:
    """The same, but in some stories the policy learns how long idling pays. Drawn by itself."""
    random = Random(f"{story.seed}/learning")
    if random.random() > LEARNING or not story.policy.idle_time:
        return story
    return evolve(story, policy=evolve(story.policy, mode="adaptive"))


def _another_pool(random: Random, story: Story, name: str) -> tuple[PoolSettings, Mapping[str, object]]:
    """One that differs in size and speed; the first may be so small that there is work for this one."""
    capabilities = story.cloud["capabilities"]
    assert isinstance(capabilities, frozenset)
    max_instances = random.choice([0, 2, 4])
    pool = evolve(
        story.pool,
        name=name,
        capacity_per_instance=random.choice([1, 1, 2, 3]),
        max_use_count=random.choice([0, 0, 2]),
        max_instances=max_instances,
        scale_throttle=random.choice([ScaleThrottle(), ScaleThrottle(limit=0.5, burst=2)]),
    )
    cloud = _cloud(random, capabilities, max_instances)
    return pool, {**story.cloud, **cloud, "identity": f"fake/{name}", "offering": f"{name}/small"}


def _perhaps_asleep(random: Random, job: Job) -> Job:
    """One in five that nobody gives up sleeps half-way."""
    sleeps = random.choice([0.1, 3.0, 20.0, 60.0]) if random.random() < 0.2 else 0.0
    return evolve(job, sleeps=sleeps) if job.wish in {Wish.PLAIN, Wish.DIAL} else job


def _cloud(random: Random, capabilities: frozenset[Capability], max_instances: int) -> Mapping[str, object]:
    """How the cloud behaves when it behaves."""
    lower = max_instances and random.random() < 0.15
    return {
        "capabilities": capabilities,
        "max_size": max(1, max_instances - 1) if lower else random.choice([None, 12]),
        "boot_time": random.choice([0.0, 2.0, 6.0, 15.0]),
        "appear_after": random.choice([0.0, 0.0, 1.0, 8.0]),
        "delete_time": random.choice([0.0, 2.0, 6.0]),
        "linger": random.choice([0.0, 0.0, 15.0]),
        "latency": {
            method: random.choice([0.0, 0.1, 1.0])
            for method in ("update", "increase", "decrease", "connect_info", "heartbeat", "withdraw", "dial")
        },
    }


def _pool(random: Random) -> PoolSettings:
    """Intervals are short, so that a story lives through all of them."""
    return PoolSettings(
        name="pool",
        capacity_per_instance=random.choice([1, 1, 2, 3, 4]),
        max_use_count=random.choice([0, 0, 1, 2, 5]),
        max_instances=random.choice([0, 3, 4, 5, 6, 8]),
        update_interval=random.choice([10.0, 20.0, 30.0]),
        update_interval_when_expecting=random.choice([2.0, 4.0]),
        deletion_retry_interval=random.choice([5.0, 15.0]),
        failure_threshold=random.choice([1, 2, 3]),
        heartbeat_interval=random.choice([15.0, 30.0]),
        heartbeat_timeout=5.0,
        scale_throttle=random.choice([ScaleThrottle(), ScaleThrottle(limit=0.5, burst=2), ScaleThrottle(limit=-1)]),
        preexisting=random.choice([Preexisting.REMOVE, Preexisting.REMOVE, Preexisting.ADOPT, Preexisting.REFUSE]),
        unhealthy_breaks_jobs=random.random() < 0.5,
        intent_timeout=random.choice([40.0, 80.0]),
        instance_ready_timeout=random.choice([60.0, 90.0]),
        backoff_initial=random.choice([1.0, 5.0]),
        backoff_cap=random.choice([5.0, 20.0]),
        instance_ready_command=random.choice([None, READY_COMMAND]),
        reservation_throttling=random.random() < 0.5,
    )


def _policy(random: Random) -> Policy:
    """One that holds all the time."""
    factor = random.choice([0.0, 0.0, 0.0, 0.5])
    return Policy(
        idle_count=random.choice([0, 0, 0, 1, 3]),
        idle_time=random.choice([0.0, 10.0, 40.0]),
        scale_factor=factor,
        scale_factor_limit=4 if factor else 0,
        preemptive_mode=random.choice([None, True, False]),
    )


def _jobs(random: Random, length: float) -> tuple[Job, ...]:
    """In bursts and one by one."""
    number = JOBS + random.randrange(5)
    times: list[float] = []
    while len(times) < number:
        at = random.uniform(0, length)
        times += [at + random.uniform(0, 0.02) for _ in range(random.choice([1, 1, 2, 8]))]
    return tuple(_job(random, f"job-{index}", at) for index, at in enumerate(sorted(times)[:number]))


def _job(random: Random, key: str, at: float) -> Job:
    """One of any kind."""
    wish = random.choices(list(Wish), weights=[8, 4, 3, 1, 2, 2])[0]
    patience = inf if wish in {Wish.PLAIN, Wish.DIAL} else random.choice([0.0, 0.5, 5.0, 20.0])
    return Job(
        key=key,
        at=at,
        duration=random.choice([0.0, random.uniform(0.1, 2), random.uniform(1, 6), random.uniform(3, 18)]),
        declared=random.random() < 0.3,
        wish=wish,
        patience=patience,
    )


def _troubles(random: Random, length: float, kinds: list[str]) -> tuple[Trouble, ...]:
    """More than are needed: some meet nothing that they could happen to."""
    number = FAULTS + 10 + random.randrange(8)
    troubles = [Trouble(at=random.uniform(0, length), kind=random.choice(kinds)) for _ in range(number)]
    return tuple(sorted(troubles, key=lambda trouble: trouble.at))
