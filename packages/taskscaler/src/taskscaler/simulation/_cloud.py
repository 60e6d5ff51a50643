"""The cloud of one pool in virtual time: it does what a plan asks, as late and as badly as its environment says.

It is the other side of a plan's actions, each of which ends in one fact. An instance is billed from when the cloud
accepts it until it is gone, but not while it is suspended.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from random import Random

from attrs import define, field

from fleeting import NoticeKind, Observation, Observed, State
from fleeting.core import messages
from taskscaler._cost import Tariff
from taskscaler.simulation._distributions import Constant, Distribution, InOrder
from taskscaler.simulation._environment import Course, Fate, PoolEnvironment

OUT_OF_STOCK = "the cloud has no capacity"
"""Why requests are refused during a stock-out."""

MOMENT = 0.002
"""Seconds after which somebody notices that an instance was taken, at the time at which it was recorded."""

SHORTEST = 1.0
"""Seconds that a stock-out takes at least, and the time until the next: else no other time would ever come."""

Schedule = Callable[[float, Callable[[], None]], None]
"""Has something done so many seconds from now."""


@define(eq=False)
class Machine:
    """One instance."""

    id: str
    intent: str
    created_at: float
    state: State = State.CREATING
    billed_since: float | None = None
    """None: it is not paid for at the moment."""

    deletes_in: float | None = None
    """Seconds that its deletion takes; None: as the environment has it."""

    ready_in: float | None = None
    """Seconds that its readiness steps take the first time; None: as the environment has it."""

    takes_no_jobs: bool = False
    """Whether it never passes the readiness steps."""


@define(eq=False)
class Bill:
    """What the instances of one pool have come to, in microseconds, so that sums are exact."""

    tariff: Tariff
    ran: int = 0
    increments: int = 0

    def add(self, since: float, until: float) -> None:
        """An instance ran from then until then."""
        micros = max(0, round((until - since) * 1e6))
        self.ran += micros
        self.increments += self.tariff.increments(micros)


@define(eq=False)
class Cloud:
    """What exists in one pool."""

    pool: str
    environment: PoolEnvironment
    bill: Bill
    _now: Callable[[], float]
    _schedule: Schedule
    _feed: Callable[[str, messages.Fact], None]
    """Lets the core take in a fact of the pool."""

    _feed_all: Callable[[str, Sequence[messages.Fact]], None]
    """Lets it take in several at once, each of another instance."""

    _grown: Callable[[], None]
    """Is called when instances have come into being."""

    _is_busy: Callable[[str, str], bool]
    """Whether jobs run on an instance of the pool: their connections notice when it dies."""

    _random: Callable[[str], Random]
    """A stream of numbers of its own for each subject: what one draws changes nothing for the others."""

    machines: dict[str, Machine] = field(factory=dict, init=False)
    """All that are not gone."""

    bought: int = field(default=0, init=False)
    deleted: int = field(default=0, init=False)
    failed: int = field(default=0, init=False)
    """Instances that never came to take jobs."""

    preempted: dict[str, float] = field(factory=dict, init=False)
    """When the cloud took each instance that it took back."""

    calls: int = field(default=0, init=False)
    peak: int = field(default=0, init=False)
    """The most that existed at once."""

    refused: int = field(default=0, init=False)
    """Instances that were asked for during stock-outs."""

    _shown: dict[str, Observed] = field(factory=dict, init=False)
    """The view."""

    _changed: dict[str, None] = field(factory=dict, init=False)
    """What the last one showed otherwise, in the order in which it changed."""

    _preparing: dict[float, list[str]] = field(factory=dict, init=False)
    """Instances whose readiness steps end at the same moment, by when that is."""

    _asked: int = field(default=0, init=False)
    """Requests for more so far."""

    _is_out_of_stock: bool = field(default=False, init=False)
    _streams: dict[str, Random] = field(factory=dict, init=False)
    _places: dict[str, int] = field(factory=dict, init=False)
    """Where times that come in order stand, by subject."""

    _answer_times: deque[float] = field(factory=deque, init=False)
    """What the next calls take, drawn in advance by `skip_views`."""

    def begin(self) -> None:
        """Let its troubles take their course."""
        if self.environment.stock_outs is not None:
            every = self.environment.stock_outs.every.sample(self._stream("stock-outs"))
            self._schedule(max(SHORTEST, every), self._run_out)

    def view(self) -> messages.Updated:
        """What it shows now."""
        changed, self._changed = self._changed, {}
        if self.environment.course is not None:  # what was recorded of one view may be microseconds apart
            changed = dict.fromkeys(sorted(changed))
        return messages.Updated(Observation(self._shown), tuple(changed))

    @property
    def has_news(self) -> bool:
        """Whether a view would show something that the last one did not."""
        return bool(self._changed)

    def skip_views(self, at: float, interval: float, until: float) -> float:
        """Count views that show nothing new as answered, and draw what they take. O(views).

        The last one that is answered before *until* is left to be fetched: it brings all else up to date.

        Args:
            at: When the next view is due.
            interval: Seconds from the answer of one to the next.
            until: When something else happens.

        Returns:
            When the first view is due that was not skipped.
        """
        answer, took = self.environment.answer, self._answer_time()
        # times are added up one by one, as the core does: a product may differ in its last digit
        if isinstance(answer, Constant):  # half a million views in a year, of which each costs only this
            while (following := at + took + interval) + took < until:
                self.calls += 1
                at = following
            return at
        while True:
            following, following_took = at + took + interval, self._answer_time()
            if following + following_took >= until:
                self._answer_times.extend((took, following_took))
                return at
            self.calls += 1
            at, took = following, following_took

    def perform(self, action: messages.Action) -> None:
        """Do what a plan asks."""
        match action:
            case messages.Prepare(_, instance):
                self._prepare(instance)
            case messages.Update():
                self._answer(self._show)
            case messages.Increase(_, intent, count):
                self._answer(partial(self._create, intent, count, self._now()))
            case messages.Decrease(_, instances):
                self._answer(partial(self._delete, instances, self._now()))
            case messages.Heartbeat(_, instance):
                self._answer(partial(self._beat, instance))
            case messages.Suspend(_, instances):
                self._answer(partial(self._suspend, instances))
            case messages.Resume(_, instances):
                self._answer(partial(self._resume, instances))
            case messages.Withdraw(_, count):
                self._answer(partial(self._feed, self.pool, messages.Withdrawn(count, 0)))

    def _ready_time(self, instance: str) -> float:
        """Seconds that the readiness steps take this time."""
        machine = self.machines.get(instance)
        if machine is None or machine.ready_in is None:
            return self._draw("ready", self.environment.ready)
        took, machine.ready_in = machine.ready_in, None
        return took

    def clean_time(self) -> float:
        """Seconds that cleaning a slot takes this time."""
        return self._draw("clean", self.environment.clean)

    def settle(self) -> None:
        """Bill what still exists up to now."""
        for machine in self.machines.values():
            self._stop_billing(machine)

    # --- answering ---------------------------------------------------------------------------------------

    def _answer(self, answer: Callable[[], None]) -> None:
        self.calls += 1
        self._schedule(self._answer_time(), answer)

    def _answer_time(self) -> float:
        """Seconds that the cloud takes to answer this time."""
        if self._answer_times:
            return self._answer_times.popleft()
        return self._draw("answer", self.environment.answer)

    def _show(self) -> None:
        self._feed(self.pool, self.view())

    def _create(self, intent: str, count: int, asked_at: float) -> None:
        course = self.environment.course or Course()
        number, self._asked = self._asked, self._asked + 1
        refused = OUT_OF_STOCK if self._is_out_of_stock else course.refusals.get(number, "")
        if refused:
            self.refused += count
            self._feed(self.pool, messages.IncreaseFailed(intent, refused))
            return
        environment, now = self.environment, self._now()
        failures = self._stream("boot failures")
        looks = Observed(state=State.CREATING, created_at=now, intent=intent)
        runs = Observed(state=State.RUNNING, created_at=now, intent=intent)
        booting: dict[float, list[Machine]] = {}
        for _ in range(count):
            fate = course.fates[self.bought] if self.bought < len(course.fates) else None
            machine = Machine(self._new_id(), intent, now, billed_since=now)
            self.bought += 1
            self.machines[machine.id] = machine
            self._shown[machine.id] = looks
            self._changed[machine.id] = None
            if fate is not None:
                self._follow(machine, runs, fate, now - asked_at)
                continue
            fails = environment.boot_failure and failures.random() < environment.boot_failure
            took = self._draw("boot", environment.boot)
            if fails:
                self._schedule(took, partial(self._fail, machine))
            else:
                booting.setdefault(took, []).append(machine)
        for took, together in booting.items():
            self._schedule(took, partial(self._boot_all, together, runs))
        self.peak = max(self.peak, len(self.machines))
        self._grown()
        self._feed(self.pool, messages.Increased(intent, count))

    def _delete(self, instances: tuple[str, ...], asked_at: float) -> None:
        late = self._now() - asked_at
        for machine in self._known(instances):
            if machine.state is not State.DELETING:
                self.deleted += 1
                self._enter(machine, State.DELETING)
                recorded = machine.deletes_in
                took = self._draw("delete", self.environment.delete) if recorded is None else recorded - late
                if took:
                    self._schedule(took, partial(self._remove, machine))
                else:
                    self._remove(machine)
        self._feed(self.pool, messages.Decreased(instances, instances))

    def _prepare(self, instance: str) -> None:
        """Begin its readiness steps; those that end together are one turn of the core."""
        took = self._ready_time(instance)
        at = self._now() + took
        among = self._preparing.get(at)
        if among is None:
            self._preparing[at] = [instance]
            self._schedule(took, partial(self._end_preparing, at))
        else:
            among.append(instance)

    def _end_preparing(self, at: float) -> None:
        self._feed_all(self.pool, [self._prepared(instance) for instance in self._preparing.pop(at)])

    def _prepared(self, instance: str) -> messages.Fact:
        """What has come of its readiness steps."""
        machine = self.machines.get(instance)
        if machine is None:
            return messages.PrepareFailed(instance, "it cannot be reached", final=False)
        if machine.takes_no_jobs:
            self.failed += 1
            return messages.PrepareFailed(instance, "a readiness step failed")
        return messages.Prepared(instance)

    def _beat(self, instance: str) -> None:
        machine = self.machines.get(instance)
        alive = machine is not None and machine.state is State.RUNNING
        passed = messages.HeartbeatPassed(instance)
        self._feed(self.pool, passed if alive else messages.HeartbeatFailed(instance, "it cannot be reached"))

    def _suspend(self, instances: tuple[str, ...]) -> None:
        for machine in self._known(instances):
            if machine.state is State.RUNNING:
                self._enter(machine, State.SUSPENDING)
                took = self._draw("suspend", self.environment.suspend)
                self._schedule(took, partial(self._sleep, machine))
        self._feed(self.pool, messages.SuspendAccepted(instances, self._those_there(instances)))

    def _resume(self, instances: tuple[str, ...]) -> None:
        if self._is_out_of_stock:
            self._feed(self.pool, messages.ResumeFailed(instances, OUT_OF_STOCK))
            return
        for machine in self._known(instances):
            if machine.state is State.SUSPENDED:
                self._enter(machine, State.RESUMING)
                machine.billed_since = self._now()
                took = self._draw("resume", self.environment.resume)
                self._schedule(took, partial(self._wake, machine))
        self._feed(self.pool, messages.ResumeAccepted(instances, self._those_there(instances)))

    # --- what happens to instances -----------------------------------------------------------------------

    def _follow(self, machine: Machine, runs: Observed, fate: Fate, late: float) -> None:
        """Let what was recorded happen to it, which was asked for so many seconds ago."""
        machine.takes_no_jobs, machine.ready_in, machine.deletes_in = fate.never_ready, fate.ready, fate.delete
        if fate.boot < inf:
            ends = partial(self._fail, machine) if fate.fails else partial(self._run, machine, runs)
            self._schedule(fate.boot - late, ends)
        if fate.taken < inf:
            self._schedule(fate.taken - late, partial(self._vanish, machine))

    def _vanish(self, machine: Machine) -> None:
        """It is gone as somebody noticed a moment later: by a view that was due then, or because they lost touch."""
        if self._let_go(machine):
            self._schedule(MOMENT, partial(self.cut_off, machine.id))

    def _run(self, machine: Machine, runs: Observed) -> None:
        """It runs, unless it was deleted or taken meanwhile."""
        if machine.state is State.CREATING:
            machine.state = State.RUNNING
            self._shown[machine.id] = runs
            self._changed[machine.id] = None

    def _boot_all(self, machines: Iterable[Machine], runs: Observed) -> None:
        """They run from this moment on."""
        for machine in machines:
            self._boot(machine, runs)

    def _boot(self, machine: Machine, runs: Observed) -> None:
        """It runs, and perhaps does not for long."""
        if machine.state is not State.CREATING:
            return
        self._run(machine, runs)
        share = self.environment.ready_failure
        machine.takes_no_jobs = bool(share) and self._stream("ready failures").random() < share
        preemptions = self.environment.preemptions
        if preemptions is not None:
            after = self._draw("preemptions", preemptions.after)
            if preemptions.notice:
                deadline = self._now() + after
                self._schedule(max(0.0, after - preemptions.notice), partial(self._announce, machine, deadline))
            self._schedule(after, partial(self._preempt, machine))

    def _fail(self, machine: Machine) -> None:
        if machine.state is State.CREATING:
            self.failed += 1
            self._enter(machine, State.FAILED)

    def _sleep(self, machine: Machine) -> None:
        if machine.state is State.SUSPENDING:
            self._enter(machine, State.SUSPENDED)
            self._stop_billing(machine)

    def _wake(self, machine: Machine) -> None:
        if machine.state is State.RESUMING:
            self._enter(machine, State.RUNNING)

    def _announce(self, machine: Machine, deadline: float) -> None:
        if self._is_there(machine):
            self._feed(self.pool, messages.Noticed(machine.id, deadline, NoticeKind.PREEMPTION))

    def _preempt(self, machine: Machine) -> None:
        if self._is_there(machine):
            busy = self._is_busy(self.pool, machine.id)
            self._let_go(machine)
            if busy:
                self.cut_off(machine.id)

    def _let_go(self, machine: Machine) -> bool:
        """It is gone, and not because of us; False: we have deleted it."""
        if machine.id not in self.machines or machine.state is State.DELETING:
            return False
        self.preempted[machine.id] = self._now()
        self._remove(machine)
        return True

    def cut_off(self, instance: str) -> None:
        """Let the scaler notice that a job's connection to an instance that was taken is dead."""
        self._feed(self.pool, messages.ConnectionDied(instance, "the connection broke"))

    def _run_out(self) -> None:
        """A stock-out begins."""
        if self.environment.stock_outs is not None:
            self._is_out_of_stock = True
            lasts = self.environment.stock_outs.lasts.sample(self._stream("stock-outs"))
            self._schedule(max(SHORTEST, lasts), self._restock)

    def _restock(self) -> None:
        self._is_out_of_stock = False
        self.begin()

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _is_there(self, machine: Machine) -> bool:
        """Whether there is something to take: what is suspended runs nowhere."""
        return machine.id in self.machines and machine.state in (State.RUNNING, State.SUSPENDING, State.RESUMING)

    def _enter(self, machine: Machine, state: State) -> None:
        machine.state = state
        self._changed[machine.id] = None
        self._shown[machine.id] = Observed(state=state, created_at=machine.created_at, intent=machine.intent)

    def _remove(self, machine: Machine) -> None:
        if self.machines.pop(machine.id, None) is not None:
            machine.state = State.DELETED  # what it was about to become comes to nothing
            del self._shown[machine.id]
            self._changed[machine.id] = None
            self._stop_billing(machine)

    def _new_id(self) -> str:
        """An id; those of a recorded course are in its order, however views are gone through."""
        return f"i-{self.bought}" if self.environment.course is None else f"i-{self.bought:08}"

    def _stop_billing(self, machine: Machine) -> None:
        if machine.billed_since is not None:
            self.bill.add(machine.billed_since, self._now())
            machine.billed_since = None

    def _known(self, instances: Sequence[str]) -> Iterator[Machine]:
        return (self.machines[instance] for instance in instances if instance in self.machines)

    def _those_there(self, instances: Sequence[str]) -> tuple[str, ...]:
        return tuple(machine.id for machine in self._known(instances))

    def _draw(self, subject: str, distribution: Distribution) -> float:
        """The next time of that kind."""
        if isinstance(distribution, Constant):  # as many are, and no stream is drawn from
            return distribution.seconds
        if isinstance(distribution, InOrder):
            place = self._places[subject] = self._places.get(subject, -1) + 1
            if place < len(distribution.values):
                return distribution.values[place]
        return distribution.sample(self._stream(subject))

    def _stream(self, subject: str) -> Random:
        stream = self._streams.get(subject)
        if stream is None:
            stream = self._streams[subject] = self._random(subject)
        return stream
