"""Watches from outside: what managers do to the cloud, and which jobs really run where.

Nothing here asks a scaler for its books. What exists is known from the cloud itself, what was durable from the
disk, and what a manager can know from the views that it was given.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import Factory, define

from fleeting import Capability, Notice, NoticeKind, Observation, RateLimited, State
from fleeting.testing import FakeCloud, IncreaseFault, Machine
from taskscaler import Lease
from tests.chaos.growth import Demand, Growth, most_wanted
from tests.chaos.story import Job, Story

if TYPE_CHECKING:
    from tests.chaos.process import Life

RESTING = frozenset({State.SUSPENDING, State.SUSPENDED, State.RESUMING})
"""How a view shows what sleeps, or did a moment ago."""

EPOCH = 1_700_000_000.0
"""Where time starts: at this size a float second is coarse, as it is in production."""


@define(eq=False)
class Run:
    """A job on an instance, right now."""

    job: Job
    life: "Life"
    lease: Lease
    began: float

    @property
    def undisturbed(self) -> bool:
        """Whether its process lives and nobody told it to stop."""
        return not self.life.dead and self.lease.loss is None


class Sleep(NamedTuple):
    """Where a job is suspended, and for how long."""

    instance: str
    slot: int
    expires_at: float


@define(eq=False)
class _Asking:
    """An increase that has not reached the cloud yet."""

    intent: str
    count: int
    life: "Life"
    since: float


@define(eq=False)
class Heard:
    """What reached the managers, rightly or not."""

    viewed: frozenset[str] = frozenset()
    """What the last view showed."""

    rested: set[str] = Factory(set)
    """Instances that a view has shown as suspended, or nearly: a notice may be outlived in sleep."""

    notices: dict[tuple[int, str], list[Notice]] = Factory(dict)
    """By life and instance."""


@define(eq=False)
class Left:
    """Jobs with persistent leases whose managers are dead."""

    places: dict[str, tuple[str, int]] = Factory(dict)
    """By the key of each that still runs: the instance and the slot."""

    given_up: dict[str, float] = Factory(dict)
    """When nobody had come back in time, by key: of those that have not begun again."""


class WatchedCloud(FakeCloud):
    """Tells the observer which instances it makes, and which of them nobody asked for."""

    observer: "Observer"

    def _new_id(self) -> str:
        """An id that no other pool's cloud gives."""
        return f"{self.observer.prefix}{super()._new_id()}"

    def notice(self, instance: str, *, in_seconds: float, kind: NoticeKind = NoticeKind.PREEMPTION) -> Notice:
        """Note what has to be over when."""
        notice = super().notice(instance, in_seconds=in_seconds, kind=kind)
        self.observer.on_notice(self.observer, notice)
        return notice

    def create(self, wanted: int, intent: str, fault: IncreaseFault) -> int:
        """Note what is new."""
        known = set(self.machines)
        answer = super().create(wanted, intent, fault)
        new = [id_ for id_ in self.machines if id_ not in known]
        self.observer.say(f"increase for {intent} makes {', '.join(new) or 'nothing'}, and says {answer}")
        self.observer.created(intent, new[len(new) - fault.surplus :] if fault.surplus else [])
        return answer

    def withdraw(self, wanted: int) -> int:
        """Note what was taken back though nobody waited for it any longer."""
        known = dict(self.machines)
        taken = super().withdraw(wanted)
        self.observer.withdrawn([machine for id_, machine in known.items() if id_ not in self.machines])
        self.observer.say(f"withdraw({wanted}) takes back {taken}")
        return taken

    def launch(self, number: int = 1) -> list[str]:
        """Note them as the cloud's own."""
        new = super().launch(number)
        self.observer.extra.update(new)
        return new

    def come_back(self, instance: str) -> None:
        """What was gone and is there again was asked for by nobody."""
        super().come_back(instance)
        self.observer.extra.add(instance)


class Observer:
    """Everything that is seen in one story, as far as one pool is concerned, and what is wrong with it."""

    def __init__(self, story: Story, records: dict[str, dict[str, Any]], number: int = 0) -> None:  # noqa: PLR0915  (each is one fact that is seen)
        """Watch a new cloud, and the records on the disk; *number*: which of the story's pools."""
        self._pool, arguments = story.pools[number]
        self.prefix = f"{self._pool.name}-" if number else ""
        self.cloud = WatchedCloud(**arguments)  # type: ignore[arg-type]
        self.cloud.observer = self
        self.all: list[Observer] = [self]
        """Those of all pools, in order of preference."""

        self.on_notice: Callable[[Observer, Notice], None] = lambda _, __: None
        self.on_decrease: Callable[[Observer, Sequence[str]], None] = lambda _, __: None
        self.violations: list[str] = []
        self.say: Callable[[str], None] = lambda _: None
        self.on_violation: Callable[[], None] = lambda: None
        self.running: dict[str, Run] = {}
        """By the job's key."""

        self.starts: dict[str, int] = {}
        """By instance: how many jobs were really started there."""

        self.begun: set[tuple[str, str]] = set()
        """Which jobs were, by key, and on which instances."""

        self.sleeping: dict[str, Sleep] = {}
        """By the key of each job that was suspended: what it has to come back to, and by when."""

        self.tainted: set[str] = set()
        """Instances on which a job ran when its manager died."""

        self.broke: set[tuple[int, str]] = set()
        """Life and instance of every lease that was lost."""

        self.extra: set[str] = set()
        """Instances that the cloud has added by itself, or so late that nobody waited any more."""

        self.shown: dict[str, State] = {}
        """The last state in which an instance was shown to a manager."""

        self.heard = Heard()
        self.omitted: dict[str, int] = {}
        """In how many views in a row, to one manager, an instance was missing."""

        self.told_gone: set[str] = set()
        """Instances of which the cloud has let a manager believe that they are no more: if they are shown again after
        that, nobody has asked for them."""

        self.unreachable: set[str] = set()
        """Instances to which a connection died at some time."""

        self.deleting: set[str] = set()
        """Instances whose deletion was asked for."""

        self.dirty: set[tuple[str, int]] = set()
        """Slots on which a job ran after they were last cleaned, where that is wanted; by instance."""

        self.cleaning: Counter[tuple[int, str, int]] = Counter()
        """Clean-ups that run, by life, instance and slot."""

        self._beats: dict[tuple[int, str], float] = {}
        """When an instance last showed a manager that it lives."""

        self.growth, self.demand, self.left = Growth(), Demand(), Left()
        self._policy, self._keep_used, self._over_all = story.policy, story.keep_used, story.max_instances or inf
        self._late = story.commit_time + 1.0
        """Seconds that a hand-over may take that was begun in time."""

        self._records = records
        self._asking: list[_Asking] = []
        self._surplus = defaultdict[str | None, list[str]](list)
        """By intent: which of its instances the cloud made beyond what was asked for."""

        self._viewer = self._mistaken = 0

    def join(self, first: "Observer") -> None:
        """Watch together with the observer of the first pool: jobs go wherever there is a slot."""
        first.all.append(self)
        self.all = first.all
        self.violations, self.running, self.sleeping = first.violations, first.running, first.sleeping
        self.left = first.left
        self.demand = first.demand

    @property
    def pool(self) -> str:
        """The name of the pool."""
        return self._pool.name

    @property
    def ceiling(self) -> float:
        """Instances that the pool may have; infinite: any number."""
        return min(self._pool.max_instances or inf, self.cloud.max_size if self.cloud.max_size is not None else inf)

    @property
    def unexplained(self) -> set[str]:
        """Instances that nobody asked for, as far as a manager can know; also such as a view has made up."""
        return self.extra | self.told_gone | (self.heard.viewed - self.cloud.machines.keys())

    def violate(self, what: str) -> None:
        """Something is not as it was promised."""
        self.violations.append(f"at {self.cloud.now - EPOCH:.2f}: {what}")
        self.say(f"WRONG {what}")
        self.on_violation()

    # --- ceilings ----------------------------------------------------------------------------------------

    @contextmanager
    def increasing(self, life: "Life", count: int, intent: str) -> Iterator[None]:
        """Check the ceiling, and count what is asked for until it has reached the cloud."""
        self.say(f"process {life.number} calls increase({count}) for {intent}")
        entry = _Asking(intent, count, life, self.cloud.now)
        if intent not in self.cloud._answers:
            self._asking.append(entry)
        if intent not in self._stored("intent"):
            self.violate(f"increase for intent {intent}, which is not in the journal")
        if (charged := self._charged()) > self.ceiling + self._confusion():
            self.violate(f"increase({count}) by process {life.number} makes {charged}, above {self.ceiling}")
        self._check_all_pools(life, count)
        self._check_growth(life, count)
        try:
            yield
        except RateLimited as error:
            self.growth.told_to_wait(life.number, self.cloud.now, error.retry_after or 0.0)
            raise
        finally:
            if entry in self._asking:
                self._asking.remove(entry)

    def _check_growth(self, life: "Life", count: int) -> None:
        """Check that somebody wants what is owed now, and that the cloud has not asked to be left alone."""
        now, records = self.cloud.now, self._records.get("intent", {})
        if until := self.growth.hasty(life.number, now, self._late):
            self.violate(f"increase({count}) by process {life.number}, told to wait until {until - EPOCH:.2f}")
        stored = self._stored("intent")
        owed = [each for each in self.cloud.machines.values() if self._is_owed(each, stored)]
        on_the_way = self._on_the_way()
        intents = {machine.intent for machine in owed} | on_the_way.keys()
        decided = [records[f"{self.pool}/{intent}"].requested_at for intent in intents & stored]
        number = len(owed) + sum(on_the_way.values())
        jobs = self.demand.peak(min([now, *decided]))  # a journal that fails delays what was decided
        most = most_wanted(self._policy, self._pool, jobs)
        if number > most + self._confusion():
            self.violate(f"increase({count}) by process {life.number} makes {number} owed, and {most} would do")

    def _is_owed(self, machine: Machine, stored: set[str]) -> bool:
        """Whether the cloud may still show it for the first time, and somebody waits for that."""
        unseen = machine.id not in self.shown and machine.id not in self.extra and machine.id not in self.told_gone
        return unseen and machine.intent in stored and self.cloud.now < machine.gone_at

    def _check_all_pools(self, life: "Life", count: int) -> None:
        """Check what concerns all pools: their ceiling, and that what another may still deliver is not forgotten."""
        confusion = sum(each._confusion() for each in self.all)
        charged = sum(each._charged() for each in self.all)
        if len(self.all) > 1 and charged > self._over_all + confusion:
            self.violate(f"increase({count}) by process {life.number} makes {charged} in all, above {self._over_all}")
        for each in self.all if len(self.all) > 1 else []:
            if (unfilled := each._unfilled()) > each._outstanding() + each._confusion():
                self.violate(f"increase({count}) of {self.pool} while {each.pool} may still fill {unfilled} requests")

    def _unfilled(self) -> int:
        """Requests that the cloud may still fill, and that nobody has had reason to give up."""
        now = self.cloud.now
        waiting = [machine for machine in self.cloud.machines.values() if machine.exists_at > now]
        return sum(machine.id not in self.extra and not self._expired(machine.intent) for machine in waiting)

    def _outstanding(self) -> int:
        """Instances that are expected for the requests in the journal."""
        records = [record for key, record in self._records.get("intent", {}).items() if key.startswith(f"{self.pool}/")]
        return sum((each.count if each.accepted is None else each.accepted) - each.matched for each in records)

    def created(self, intent: str, surplus: Sequence[str]) -> None:
        """An increase has reached the cloud."""
        self._asking = [entry for entry in self._asking if entry.intent != intent]
        self._surplus[intent] += surplus
        self.extra.update(surplus)

    def withdrawn(self, taken: Sequence[Machine]) -> None:
        """Requests were taken back; those that nobody made or that had expired, the manager takes for others."""
        self._mistaken += sum(machine.id in self.extra or self._expired(machine.intent) for machine in taken)

    def _charged(self) -> int:
        """What exists, or may come to exist, because it was asked for."""
        now = self.cloud.now
        intents = self._stored("intent")
        exist = 0
        for machine in self.cloud.machines.values():
            if machine.gone_at <= now or machine.id in self.extra or machine.id in self.told_gone:
                continue
            if self._is_news(machine, intents):
                self.extra.add(machine.id)
                continue
            exist += 1
        return exist + sum(self._on_the_way().values())

    def _on_the_way(self) -> dict[str, int]:
        """By intent: what the cloud has not heard yet, and may; a dead manager's request and its repeat are one."""
        return {
            each.intent: each.count
            for each in self._asking
            if not each.life.dead or self.cloud.now < each.since + self._pool.intent_timeout - 1
        }

    def _is_news(self, machine: Machine, intents: set[str]) -> bool:
        """Whether no view has shown it, and what asked for it was given up in time."""
        return machine.id not in self.shown and machine.intent not in intents and self._nobody_waits_for(machine)

    def _nobody_waits_for(self, machine: Machine) -> bool:
        """Whether what asked for it, and is closed, had expired, or was met by one that the cloud made beyond that."""
        taken_for_it = next((id_ for id_ in self._surplus[machine.intent] if id_ in self.extra & self.shown.keys()), "")
        self.extra.discard(taken_for_it)
        return bool(taken_for_it) or self._expired(machine.intent)

    def _expired(self, intent: str | None) -> bool:
        """Whether nobody had to wait for it any longer."""
        asked = [
            call.at for call in self.cloud.calls if call.method == "increase" and call.arguments["intent"] == intent
        ]
        return not asked or self.cloud.now >= asked[-1] + self._pool.intent_timeout - 1

    def _confusion(self) -> int:
        """How far off the best manager's count may be.

        Where instances carry no intent, one that the cloud has added or made up may pass for one asked for.
        """
        if Capability.NAMED_CREATE in self.cloud.capabilities:
            return self._mistaken
        return self._mistaken + len([id_ for id_ in self.shown if id_ in self.extra or id_ not in self.cloud.machines])

    def view_given(self, life: "Life", view: Observation) -> None:
        """Note what its manager knows from now on, and what it has been made to believe."""
        if life.dead:
            return
        if life.number != self._viewer:
            self._viewer = life.number
            self.omitted.clear()
        states = {id_: each.state for id_, each in view.instances.items()}
        self.heard.viewed = frozenset(states)
        intents = self._stored("intent")
        shown = [self.cloud.machines[id_] for id_ in states if id_ in self.cloud.machines]
        self.extra.update(machine.id for machine in shown if self._is_news(machine, intents))
        self.heard.rested.update(id_ for id_, state in states.items() if state in RESTING)
        for id_, state in states.items():
            self.omitted[id_] = 0
            if state is State.DELETED:
                self.told_gone.add(id_)
        for id_ in self.shown.keys() - states.keys():
            self.omitted[id_] = self.omitted.get(id_, 0) + 1
            leaving = id_ in self.deleting or self.shown[id_] is State.DELETING or id_ in self.unreachable
            if self.omitted[id_] > 1 or leaving:
                self.told_gone.add(id_)
        self.shown.update(states)

    def connection_died(self, *instances: str) -> None:
        """A connection died or was refused: what the last view did not show is gone, as far as its manager knows."""
        self.unreachable.update(instances)
        self.told_gone.update(id_ for id_ in instances if self.omitted.get(id_))

    # --- jobs --------------------------------------------------------------------------------------------

    def started(self, job: Job, life: "Life", lease: Lease) -> Run:
        """A job starts; check that it may, and may there."""
        instance = lease.instance
        here = [run for run in self.running.values() if run.lease.instance == instance]
        where = f"{job.key} starts on {instance} slot {lease.slot}"
        if job.key in self.running:
            self.violate(f"{where}, and runs already")
        if not 0 <= lease.slot < self._pool.capacity_per_instance:
            self.violate(f"{where}, of which there are {self._pool.capacity_per_instance}")
        if any(run.lease.slot == lease.slot for run in here):
            self.violate(f"{where}, which is in use")
        if instance in self.tainted and not self._keep_used:
            self.violate(f"{where}, where something ran when its manager died")
        if (life.number, instance) in self.broke:
            self.violate(f"{where}, where a lease was lost before")
        if instance in self.deleting:
            self.violate(f"{where}, whose deletion was asked for")
        self._check_heard(where, life, instance)
        self.starts[instance] = self.starts.get(instance, 0) + 1
        self.begun.add((job.key, instance))
        if 0 < self._pool.max_use_count < self.starts[instance]:
            self.violate(f"{where}, its use {self.starts[instance]} of {self._pool.max_use_count}")
        self._check_wear(where, life, lease)
        if job.key not in self._stored("lease"):
            self.violate(f"{where}, and its lease is not in the journal")
        if (instance, lease.slot) in self.left.places.values():
            self.violate(f"{where}, which a detached lease has")
        self.left.given_up.pop(job.key, None)
        self.running[job.key] = run = Run(job, life, lease, self.cloud.now)
        return run

    def _check_heard(self, where: str, life: "Life", instance: str) -> None:
        """A view has shown the instance, and no notice that reached the manager has put its end before now."""
        if self.shown.get(instance) is None:
            self.violate(f"{where}, which no view has shown")
        for notice in self.heard.notices.get((life.number, instance), ()):
            if notice.deadline + self._late < self.cloud.now and instance not in self.heard.rested:
                self.violate(f"{where}, whose announced end, {notice.deadline - EPOCH:.2f}, is past")

    def suspended(self, run: Run) -> None:
        """A job sleeps, as far as its manager knows."""
        self.ended(run)
        if run.undisturbed:
            self.sleeping[run.job.key] = Sleep(run.lease.instance, run.lease.slot, self.cloud.now + run.job.ttl)

    def resumed(self, job: Job, life: "Life", lease: Lease) -> Run:
        """A job goes on; check that it does so where it slept, and that nobody else is there."""
        place = lease.instance, lease.slot
        where = f"{job.key} goes on on {lease.instance} slot {lease.slot}"
        if self.sleeping.pop(job.key, place)[:2] != place:
            self.violate(f"{where}, and slept elsewhere")
        if job.key in self.running:
            self.violate(f"{where}, and runs already")
        if any((run.lease.instance, run.lease.slot) == place for run in self.running.values()):
            self.violate(f"{where}, which is in use")
        if lease.instance in self.deleting:
            self.violate(f"{where}, whose deletion was asked for")
        if job.key not in self._stored("lease"):
            self.violate(f"{where}, and its lease is not in the journal")
        self.running[job.key] = run = Run(job, life, lease, self.cloud.now)
        return run

    def expired(self, job: Job) -> None:
        """A job that slept is told that its lease has expired; check that it had to."""
        slept = self.sleeping.pop(job.key, None)
        if slept is not None and self.cloud.now < slept.expires_at:
            self.violate(f"{job.key} has expired before {slept.expires_at - EPOCH:.2f}, its time")

    def check_in_time(self, job: Job, asked_at: float) -> None:
        """A job that slept goes on under the same manager; check that it was asked for before it had expired."""
        slept = self.sleeping.get(job.key)
        if slept is not None and asked_at > slept.expires_at + self._late:
            self.violate(f"{job.key} goes on though it expired at {slept.expires_at - EPOCH:.2f}")

    def reattached(self, job: Job, life: "Life", lease: Lease, *, since: float) -> Run:
        """Somebody came back for a job; check that it is where it ran, if it did, and that it was not given up.

        A key that was given up may have been given a lease again, *since* when its manager died before the job began.
        """
        place = lease.instance, lease.slot
        where = f"{job.key} goes on on {lease.instance} slot {lease.slot}"
        if since <= self.left.given_up.pop(job.key, -inf):
            self.violate(f"{where}, and was given up")
        if job.key not in self.left.places:  # it was on its way to the job, or from it, when its manager died
            if (job.key, lease.instance) not in self.begun:
                self.starts[lease.instance] = self.starts.get(lease.instance, 0) + 1
                self.begun.add((job.key, lease.instance))
            self.dirty.update({place} if self._pool.cleans else ())
        elif self.left.places.pop(job.key) != place:
            self.violate(f"{where}, and ran elsewhere")
        return self.resumed(job, life, lease)

    def lost_detached(self, key: str, *, died: bool, given_up: bool) -> None:
        """A lease is lost; if nobody held it, what ran there may still run, unless the instance is gone."""
        if died and key in self._stored("lease"):
            return
        place = self.left.places.pop(key, None)
        if given_up:
            self.left.given_up[key] = self.cloud.now
            if key in self.running:
                self.violate(f"{key} was given up, and runs")
            if place is not None and not self._pool.cleans:
                self.tainted.add(place[0])

    def lost_asleep(self, job: Job) -> None:
        """A job that slept is told that its instance is lost."""
        self.sleeping.pop(job.key, None)

    def suspending(self, instances: Sequence[str]) -> None:
        """A suspension is asked for; check that nothing runs there."""
        self.say(f"suspend({', '.join(instances)}) is called")
        for run in self.running.values():
            if run.lease.instance in instances and run.undisturbed:
                self.violate(f"suspend of {run.lease.instance}, on which {run.job.key} runs")
        self._check_left("suspend", instances)
        self.connection_died(*instances)

    def _check_wear(self, where: str, life: "Life", lease: Lease) -> None:
        """The slot is clean, the instance not too old, and it has shown that it lives, as far as that is wanted."""
        pool, instance = self._pool, lease.instance
        slot = instance, lease.slot
        if any(slot == slept[:2] and self.cloud.now < slept.expires_at for slept in self.sleeping.values()):
            self.violate(f"{where}, in which another job sleeps")
        if pool.cleans:
            if slot in self.dirty:
                self.violate(f"{where}, which was not cleaned since its last job")
            if self.cleaning[life.number, instance, lease.slot]:
                self.violate(f"{where}, which is being cleaned")
            self.dirty.add(slot)
        age = self.cloud.now - self.cloud.machines[instance].exists_at
        if 0 < pool.max_instance_age < age - self._late:
            self.violate(f"{where}, which is {age:.1f} s old")
        stored = self._records.get("lease", {}).get(lease.key)
        since = self.cloud.now if stored is None else stored.since
        if pool.heartbeat_on_acquire and self._beats.get((life.number, instance), -inf) < since:
            self.violate(f"{where}, which has not shown that it lives")

    def beat(self, life: "Life", instance: str) -> None:
        """An instance showed that it lives."""
        self._beats[life.number, instance] = self.cloud.now

    @contextmanager
    def being_cleaned(self, life: "Life", instance: str, slot: int) -> Iterator[None]:
        """A clean-up runs; check that nothing else does there."""
        place = life.number, instance, slot
        for run in self.running.values():
            if (run.lease.instance, run.lease.slot) == (instance, slot):
                self.violate(f"slot {slot} of {instance} is cleaned while {run.job.key} runs there")
        if (instance, slot) in self.left.places.values():
            self.violate(f"slot {slot} of {instance} is cleaned, which a detached lease has")
        self.cleaning[place] += 1
        try:
            yield
        finally:
            self.cleaning[place] -= 1

    def cleaned(self, life: "Life", instance: str, slot: int) -> None:
        """A clean-up has ended well; of a dead manager's nobody knows."""
        if not life.dead:
            self.dirty.discard((instance, slot))

    def hear(self, life: "Life", notice: Notice) -> None:
        """A notice has reached a manager."""
        self.heard.notices.setdefault((life.number, notice.instance), []).append(notice)

    def _check_notices(self, run: Run) -> None:
        """No job outlives the end of its instance that was announced, unless it declared that it would not."""
        if run.job.declared and not run.job.sleeps:
            return
        for notice in self.cloud.notices_given:
            late = notice.deadline + self._late < self.cloud.now
            if notice.instance == run.lease.instance and run.began < notice.deadline and late and not run.life.dead:
                self.violate(f"{run.job.key} ran on {notice.instance} beyond {notice.deadline - EPOCH:.2f}, its end")

    def ended(self, run: Run) -> None:
        """A job runs no more, for whatever reason."""
        if Capability.NOTICES in self.cloud.capabilities:
            self._check_notices(run)
        if run.lease.loss is not None:
            self.broke.add((run.life.number, run.lease.instance))
        if self.running.get(run.job.key) is run:
            del self.running[run.job.key]

    def died(self, life: "Life") -> int:
        """A manager was killed; what ran under it is not to be trusted. Returns how many jobs that were."""
        cut_off = [run for run in self.running.values() if run.life is life and run.lease.pool == self.pool]
        leases = self._records.get("lease", {}).values()
        kept = [lease for lease in leases if lease.suspended or lease.persistent]
        spared = {lease.host.partition("/")[2] for lease in kept if self._pool.cleans}
        for run in cut_off:
            stored = self._records.get("lease", {}).get(run.job.key)
            if stored is not None and stored.persistent:
                self.left.places[run.job.key] = run.lease.instance, run.lease.slot
            elif run.lease.instance not in spared:  # else the slot is cleaned, for the sake of what sleeps beside it
                self.tainted.add(run.lease.instance)
            del self.running[run.job.key]
        return len(cut_off)

    def decreasing(self, instances: Sequence[str]) -> None:
        """A deletion is asked for; check that nothing runs there."""
        self.say(f"decrease({', '.join(instances)}) is called")
        self.on_decrease(self, instances)
        for run in self.running.values():
            if run.lease.instance in instances and run.undisturbed:
                self.violate(f"decrease of {run.lease.instance}, on which {run.job.key} runs")
        self._check_left("decrease", instances)
        self.deleting.update(instances)

    def _check_left(self, what: str, instances: Sequence[str]) -> None:
        """The instances of detached leases stay as they are."""
        for key, (instance, _) in self.left.places.items():
            if instance in instances:
                self.violate(f"{what} of {instance}, on which {key} has a detached lease")

    def _stored(self, kind: str) -> set[str]:
        """The keys in the journal, without the pool's name."""
        return {key.removeprefix(f"{self._pool.name}/") for key in self._records.get(kind, {})}

    def check_doom(self, notice: Notice) -> None:
        """The time that was announced is over: nothing runs there any more but what was declared to be done by now."""
        for run in self.running.values():
            over = run.lease.instance == notice.instance and run.began < notice.deadline
            if over and run.undisturbed and not run.job.declared:
                self.violate(f"{run.job.key} outlives {notice}")
