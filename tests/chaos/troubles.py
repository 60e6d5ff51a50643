"""What can go wrong, by name: with calls to the cloud, with instances, with the disk, with the manager itself.

A trouble with a call waits for the next such call and counts as met when that comes. A trouble with an instance
counts at once, if there is an instance that it could befall; else it is tried again a little later.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from random import Random
from typing import Generic, Protocol, TypeVar

from attrs import define

from fleeting import (
    AuthFailed,
    Capability,
    CapacityUnavailable,
    InstanceNotFound,
    NoticeKind,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
    Unreachable,
)
from fleeting.testing import DecreaseFault, Fault, IncreaseFault, SuspendFault, UpdateFault
from tests.chaos.observer import WatchedCloud
from tests.chaos.process import Disk, Life

F = TypeVar("F", bound=Fault)

BURST = 6
"""Jobs that come at once."""

SEVERAL = 3
"""Instances that have to be lost for their pool to be asked later."""


class Scene(Protocol):
    """What a trouble may lay hands on."""

    cloud: WatchedCloud
    disk: Disk
    random: Random
    ready_fails: int
    """So many ready commands to come fail."""

    @property
    def life(self) -> Life:
        """The manager of the moment."""
        ...

    @property
    def bad_cleanups(self) -> list[str]:
        """What goes wrong with the clean-ups to come."""
        ...

    @property
    def busy(self) -> Sequence[str]:
        """Instances on which jobs run."""
        ...

    @property
    def cleaning(self) -> int:
        """So many slots are being cleaned."""
        ...

    @property
    def races(self) -> list[str]:
        """The kinds of those that wait for an instance that is about to be removed, to bring jobs just then."""
        ...

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Do it then, or when all troubles end."""
        ...

    def bring(self, number: int, patience: float = inf) -> None:
        """Bring so many more jobs, which wait for a slot for so long."""
        ...

    def met(self, kind: str) -> None:
        """Count it."""
        ...


Happen = Callable[[Scene], bool]
"""Lets a trouble happen, or be laid in wait; False: there was nothing that it could happen to."""


@define(frozen=True)
class Kind:
    """A kind of trouble."""

    happen: Happen
    needs: frozenset[Capability] = frozenset()
    counts_itself: bool = False
    """Whether it is counted when it is met, not when it is laid in wait."""


class Ambush(Generic[F]):
    """In the place of a script: gives each call the trouble that waits for it, and counts that."""

    def __init__(self, scene: Scene, none: F) -> None:
        """Let nothing wait."""
        self._scene = scene
        self._none = none
        self._waiting: list[tuple[str, Callable[[], F | None]]] = []

    def lay(self, kind: str, make: Callable[[], F | None]) -> None:
        """The next call for which it makes a fault meets it; counted unless the kind is empty, as it goes on."""
        self._waiting.append((kind, make))

    def clear(self) -> None:
        """From now on nothing goes wrong."""
        self._waiting.clear()

    def take(self) -> F:
        """Give the fault that the call now made meets."""
        for ambush in self._waiting:
            kind, make = ambush
            fault = make()
            if fault is not None:
                self._waiting.remove(ambush)
                if kind:
                    self._scene.met(kind)
                return fault
        return self._none


def lay_ambushes(scene: Scene) -> None:
    """Replace all scripts of the scene's cloud."""
    scripts = scene.cloud.faults
    scripts.update = Ambush(scene, UpdateFault())  # type: ignore[assignment]
    scripts.increase = Ambush(scene, IncreaseFault())  # type: ignore[assignment]
    scripts.decrease = Ambush(scene, DecreaseFault())  # type: ignore[assignment]
    scripts.suspend = Ambush(scene, SuspendFault())  # type: ignore[assignment]
    scripts.resume = Ambush(scene, SuspendFault())  # type: ignore[assignment]
    for method in ("init", "connect_info", "heartbeat", "withdraw", "dial", "mark_owner"):
        setattr(scripts, method, Ambush(scene, Fault()))


# --- with calls ---------------------------------------------------------------------------------------------


def _calls() -> Iterator[tuple[str, Kind]]:
    """By method: what it answers instead, or how long it takes."""
    increase = {
        "refused": lambda: IncreaseFault(refuse=ProviderError("internal error")),
        "no capacity": lambda: IncreaseFault(refuse=CapacityUnavailable("none of this left")),
        "over quota": lambda: IncreaseFault(refuse=QuotaExceeded("limit of 7 reached")),
        "not authorised": lambda: IncreaseFault(refuse=AuthFailed("role was revoked")),
        "throttled": lambda: IncreaseFault(refuse=RateLimited("slow down")),
        "throttled for a time": lambda: IncreaseFault(refuse=RateLimited("slow down", retry_after=17.0)),
        "unknown, done": lambda: IncreaseFault(lose=True),
        "unknown, not done": lambda: IncreaseFault(refuse=OutcomeUnknown("connection reset")),
        "accepted none": lambda: IncreaseFault(accept=0),
        "accepted one": lambda: IncreaseFault(accept=1),
        "brought too many": lambda: IncreaseFault(surplus=1),
        "claimed too many": lambda: IncreaseFault(overstate=1),
        "late": lambda: IncreaseFault(late=25.0),
        "too late": lambda: IncreaseFault(late=130.0),
        "hangs in creating": lambda: IncreaseFault(hang=True),
        "brought a broken one": lambda: IncreaseFault(broken=True),
        "slow": lambda: IncreaseFault(slow=12.0),
        "unanswered, done": lambda: IncreaseFault(slow=400.0),
    }
    decrease = {
        "refused": lambda: DecreaseFault(refuse=ProviderError("internal error")),
        "throttled": lambda: DecreaseFault(refuse=RateLimited("slow down")),
        "throttled for a time": lambda: DecreaseFault(refuse=RateLimited("slow down", retry_after=21.0)),
        "unknown, done": lambda: DecreaseFault(lose=True),
        "unknown, not done": lambda: DecreaseFault(refuse=OutcomeUnknown("connection reset")),
        "accepted none": lambda: DecreaseFault(accept=0),
        "accepted one": lambda: DecreaseFault(accept=1),
        "had no effect": lambda: DecreaseFault(ignore=True),
        "hangs in deleting": lambda: DecreaseFault(hang=True),
        "slow": lambda: DecreaseFault(slow=12.0),
    }
    plain = {
        "refused": lambda: Fault(refuse=ProviderError("internal error")),
        "throttled": lambda: Fault(refuse=RateLimited("slow down", retry_after=5.0)),
        "slow": lambda: Fault(slow=12.0),
    }
    lost = {"unknown, done": lambda: Fault(lose=True)}
    unfound = {"not found": lambda: Fault(refuse=InstanceNotFound("i-0"))}
    unreached = {"unreachable": lambda: Fault(refuse=Unreachable("no route")), "slow": plain["slow"]}
    update = {
        "refused": lambda: UpdateFault(refuse=ProviderError("internal error")),
        "throttled": lambda: UpdateFault(refuse=RateLimited("slow down", retry_after=9.0)),
        "unanswered": lambda: UpdateFault(lose=True),
        "stale": lambda: UpdateFault(stale=True),
        "slow": lambda: UpdateFault(slow=12.0),
        "timed out": lambda: UpdateFault(slow=150.0),
    }
    withdraws = frozenset({Capability.WITHDRAW})
    for method, faults, needs in (
        ("increase", increase, frozenset[Capability]()),
        ("decrease", decrease, frozenset[Capability]()),
        ("update", update, frozenset[Capability]()),
        ("connect_info", {**plain, **unfound}, frozenset[Capability]()),
        ("heartbeat", plain, frozenset[Capability]()),
        ("withdraw", {**plain, **lost}, withdraws),
        ("dial", unreached, frozenset[Capability]()),
    ):
        for what, make in faults.items():
            kind = f"{method} {what}"
            yield kind, Kind(_ambush(method, kind, make), needs, counts_itself=True)


def _ambush(method: str, kind: str, make: Callable[[], Fault | None]) -> Happen:
    def happen(scene: Scene) -> bool:
        getattr(scene.cloud.faults, method).lay(kind, make)
        return True

    return happen


def _view(kind: str, times: int, make: Callable[[Scene, str], UpdateFault]) -> Happen:
    """A view, or several in a row, that lie about the same instance."""

    def happen(scene: Scene) -> bool:
        chosen = ""

        def lie() -> UpdateFault | None:
            nonlocal chosen
            chosen = chosen or pick(scene, running(scene))
            return make(scene, chosen) if chosen else None

        for number in range(times):
            scene.cloud.faults.update.lay("" if number else kind, lie)  # type: ignore[attr-defined]
        return True

    return happen


def _views() -> Iterator[tuple[str, Kind]]:
    lies: Mapping[str, tuple[int, Callable[[Scene, str], UpdateFault]]] = {
        "misses one": (1, lambda _, id_: UpdateFault(hide=[id_])),
        "misses one for long": (4, lambda _, id_: UpdateFault(hide=[id_])),
        "misses all": (2, lambda scene, _: UpdateFault(hide=list(scene.cloud.machines))),
        "shows one too many": (1, lambda _, id_: UpdateFault(states={f"phantom-of-{id_}": State.RUNNING})),
        "shows one as failed": (1, lambda _, id_: UpdateFault(states={id_: State.FAILED})),
        "shows one as deleted": (1, lambda _, id_: UpdateFault(states={id_: State.DELETED})),
        "shows one as deleting": (2, lambda _, id_: UpdateFault(states={id_: State.DELETING})),
        "shows one as suspended": (2, lambda _, id_: UpdateFault(states={id_: State.SUSPENDED})),
        "shows one as creating": (2, lambda _, id_: UpdateFault(states={id_: State.CREATING})),
    }
    for what, (times, make) in lies.items():
        kind = f"update {what}"
        yield kind, Kind(_view(kind, times, make), counts_itself=True)


# --- with instances -----------------------------------------------------------------------------------------


def alive(scene: Scene) -> list[str]:
    """Instances that exist and are shown, in the order of their ids' appearance."""
    cloud = scene.cloud
    return [id_ for id_, each in cloud.machines.items() if each.exists(cloud.now) and each.state(cloud.now) is not None]


def running(scene: Scene) -> list[str]:
    """Instances that run."""
    cloud = scene.cloud
    return [id_ for id_ in alive(scene) if cloud.machines[id_].state(cloud.now) is State.RUNNING]


def pick(scene: Scene, instances: Sequence[str]) -> str:
    """Any of them; empty if there is none."""
    return scene.random.choice(instances) if instances else ""


def _befalls(choose: Callable[[Scene], Sequence[str]], do: Callable[[Scene, str], object]) -> Happen:
    def happen(scene: Scene) -> bool:
        instance = pick(scene, choose(scene))
        if instance:
            do(scene, instance)
        return bool(instance)

    return happen


def _busy(scene: Scene) -> Sequence[str]:
    return scene.busy


def _idle(scene: Scene) -> Sequence[str]:
    return [id_ for id_ in running(scene) if id_ not in scene.busy]


def _in(state: State) -> Callable[[Scene], Sequence[str]]:
    def choose(scene: Scene) -> Sequence[str]:
        cloud = scene.cloud
        return [id_ for id_ in alive(scene) if cloud.machines[id_].state(cloud.now) is state]

    return choose


def _gone(scene: Scene) -> Sequence[str]:
    return [
        id_
        for id_, each in scene.cloud.machines.items()
        if each.exists_at <= scene.cloud.now and each.gone_at <= scene.cloud.now
    ]


def _vanish_for_a_while(scene: Scene, instance: str) -> None:
    scene.cloud.vanish(instance)
    scene.later(scene.random.choice([4.0, 15.0]), lambda: scene.cloud.come_back(instance))


def _sicken(scene: Scene, instance: str, seconds: float) -> None:
    scene.cloud.sicken(instance)
    scene.later(seconds, lambda: scene.cloud.heal(instance))


def _hang(scene: Scene, instance: str) -> None:
    scene.cloud.hang(instance)
    scene.later(scene.random.choice([30.0, 200.0]), lambda: scene.cloud.release(instance))


def _cut(scene: Scene, instance: str) -> None:
    scene.cloud.observer.connection_died(instance)
    scene.cloud.cut(instance)


def _notice(seconds: float, kind: NoticeKind) -> Callable[[Scene, str], object]:
    return lambda scene, instance: scene.cloud.notice(instance, in_seconds=seconds, kind=kind)


def _preempt_early(scene: Scene, instance: str) -> None:
    scene.cloud.notice(instance, in_seconds=30.0)
    scene.later(1.5, lambda: scene.cloud.vanish(instance))


def _foreign(scene: Scene) -> bool:
    scene.cloud.launch(1)
    return True


def _stock_out(scene: Scene) -> bool:
    scene.cloud.run_out()
    scene.later(scene.random.choice([20.0, 70.0]), scene.cloud.restock)
    return True


def _ready_fails(scene: Scene) -> bool:
    scene.ready_fails += 1
    return True


def _instances() -> Iterator[tuple[str, Kind]]:
    noticing = frozenset({Capability.NOTICES})
    yield "instance vanishes, busy", Kind(_befalls(_busy, lambda scene, id_: scene.cloud.vanish(id_)))
    yield "instance vanishes, idle", Kind(_befalls(_idle, lambda scene, id_: scene.cloud.vanish(id_)))
    yield "instance vanishes, creating", Kind(_befalls(_in(State.CREATING), lambda scene, id_: scene.cloud.vanish(id_)))
    yield "instance vanishes and comes back", Kind(_befalls(running, _vanish_for_a_while))
    yield "instance comes back", Kind(_befalls(_gone, lambda scene, id_: scene.cloud.come_back(id_)))
    yield "instance fails", Kind(_befalls(running, lambda scene, id_: scene.cloud.fail(id_)))
    yield "instance sick for a moment", Kind(_befalls(running, lambda scene, id_: _sicken(scene, id_, 20.0)))
    yield "instance sick for long", Kind(_befalls(running, lambda scene, id_: _sicken(scene, id_, 200.0)))
    yield "instance hangs in creating", Kind(_befalls(_in(State.CREATING), _hang))
    yield "instance hangs in deleting", Kind(_befalls(alive, _hang))
    yield "connections cut", Kind(_befalls(_busy, _cut))
    yield "instance unasked for", Kind(_foreign)
    yield "stock-out", Kind(_stock_out)
    yield "ready command fails", Kind(_ready_fails, counts_itself=True)
    for name, seconds, kind in (
        ("preempted soon", 4.0, NoticeKind.PREEMPTION),
        ("preempted later", 60.0, NoticeKind.PREEMPTION),
        ("maintenance", 10.0, NoticeKind.MAINTENANCE),
        ("rebalanced", 30.0, NoticeKind.REBALANCE),
    ):
        yield f"notice: {name}", Kind(_befalls(alive, _notice(seconds, kind)), noticing)
    yield "notice: preempted before its time", Kind(_befalls(_busy, _preempt_early), noticing)


# --- with the disk and the manager --------------------------------------------------------------------------


def _disk_full(scene: Scene) -> bool:
    def noticed() -> None:
        scene.disk.refused = lambda: None
        scene.met("disk full")

    def room_again() -> None:
        scene.disk.full = False

    if scene.disk.full:
        return False
    scene.disk.full = True
    scene.disk.refused = noticed
    scene.later(scene.random.choice([1.0, 8.0, 30.0]), room_again)
    return True


def _crash_now(scene: Scene) -> bool:
    if not scene.life.dead:
        scene.life.kill("at rest")
    return True


def _crash_busy(scene: Scene) -> bool:
    if not scene.busy or scene.life.dead:
        return False
    scene.life.kill("while jobs ran")
    return True


def _crash_calling(scene: Scene) -> bool:
    if not scene.life.calls or scene.life.dead:
        return False
    scene.life.kill("during a call")
    return True


def _crash_cleaning(scene: Scene) -> bool:
    if not scene.cleaning or scene.life.dead:
        return False
    scene.life.kill("while a slot was cleaned")
    return True


def _crash_at(place: str, *, after: bool) -> Happen:
    def happen(scene: Scene) -> bool:
        if scene.life.dead or scene.life.lethal is not None:
            return False
        scene.life.lethal = place, after
        return True

    return happen


def _processes() -> Iterator[tuple[str, Kind]]:
    yield "disk full", Kind(_disk_full, counts_itself=True)
    yield "crash at rest", Kind(_crash_now, counts_itself=True)
    yield "crash while jobs ran", Kind(_crash_busy, counts_itself=True)
    yield "crash during a call", Kind(_crash_calling, counts_itself=True)
    for place in ("commit", "increase", "decrease", "update", "connect_info"):
        for after in (False, True):
            kind = f"crash {'after' if after else 'before'} {place}"
            yield kind, Kind(_crash_at(place, after=after), counts_itself=True)


def _cleanups() -> Iterator[tuple[str, Kind]]:
    for what in ("clean-up fails", "clean-up hangs"):
        yield what, Kind(_bad_cleanup(what), counts_itself=True)
    yield "crash while a slot was cleaned", Kind(_crash_cleaning, counts_itself=True)


def _sleeping() -> Iterator[tuple[str, Kind]]:
    faults = {
        "refused": lambda: SuspendFault(refuse=ProviderError("internal error")),
        "no capacity": lambda: SuspendFault(refuse=CapacityUnavailable("none of this left")),
        "throttled for a time": lambda: SuspendFault(refuse=RateLimited("slow down", retry_after=12.0)),
        "unknown, done": lambda: SuspendFault(lose=True),
        "unknown, not done": lambda: SuspendFault(refuse=OutcomeUnknown("connection reset")),
        "accepted none": lambda: SuspendFault(accept=0),
        "had no effect": lambda: SuspendFault(ignore=True),
        "slow": lambda: SuspendFault(slow=12.0),
    }
    for method in ("suspend", "resume"):
        for what, make in faults.items():
            kind = f"{method} {what}"
            yield kind, Kind(_ambush(method, kind, make), counts_itself=True)
        for after in (False, True):
            kind = f"crash {'after' if after else 'before'} {method}"
            yield kind, Kind(_crash_at(method, after=after), counts_itself=True)
    asleep = _in(State.SUSPENDED)
    yield "instance vanishes, asleep", Kind(_befalls(asleep, lambda scene, id_: scene.cloud.vanish(id_)))
    yield "instance fails, asleep", Kind(_befalls(asleep, lambda scene, id_: scene.cloud.fail(id_)))
    yield "somebody else suspends one", Kind(_befalls(running, _suspend_for_a_while))
    yield "somebody else resumes one", Kind(_befalls(asleep, _resume))


def _pools() -> Iterator[tuple[str, Kind]]:
    yield "pool loses all that runs", Kind(_sweep)


def _sweep(scene: Scene) -> bool:
    """Several at once, or it is no more than chance."""
    instances = running(scene)
    for instance in instances if len(instances) >= SEVERAL else []:
        scene.cloud.vanish(instance)
    return len(instances) >= SEVERAL


def _suspend_for_a_while(scene: Scene, instance: str) -> None:
    scene.cloud.observer.connection_died(instance)
    scene.cloud.suspend([instance], SuspendFault())
    scene.later(scene.random.choice([5.0, 40.0]), lambda: _resume(scene, instance))


def _resume(scene: Scene, instance: str) -> None:
    with suppress(CapacityUnavailable):
        scene.cloud.resume([instance], SuspendFault())


def _bad_cleanup(what: str) -> Happen:
    def happen(scene: Scene) -> bool:
        scene.bad_cleanups.append(what)
        return True

    return happen


RACES = ("job as a removal is stored", "job as a removal is asked for")
"""An instance that is idle is to be removed, and jobs come just then."""


def _peers() -> Iterator[tuple[str, Kind]]:
    """What users of comparable autoscalers lost machines, jobs or money by."""
    for what in RACES:
        yield what, Kind(_race(what), counts_itself=True)
    for what, happen in (
        ("success retried under throttling", _retried_success),
        ("burst over before growth answers", _drained_burst),
        ("time-out and a late refill", _late_refill),
    ):
        needs = frozenset({Capability.NAMED_CREATE}) if happen is _retried_success else frozenset[Capability]()
        yield what, Kind(happen, needs, counts_itself=True)
    yield "view times out while the cloud refills", Kind(_befalls(running, _refill_unseen))


def _race(what: str) -> Happen:
    def happen(scene: Scene) -> bool:
        scene.races.append(what)
        return True

    return happen


def _retried_success(scene: Scene) -> bool:
    """A request is carried out, its answer is lost, and the retries are throttled before one of them succeeds."""
    script = scene.cloud.faults.increase
    script.lay("success retried under throttling", lambda: IncreaseFault(lose=True))  # type: ignore[attr-defined]
    for _ in range(2):
        throttled = RateLimited("slow down", retry_after=6.0)
        script.lay("", lambda throttled=throttled: IncreaseFault(refuse=throttled))  # type: ignore[attr-defined]
    return True


def _drained_burst(scene: Scene) -> bool:
    """Those who wait give up while the request for them is under way, and as many come before it is answered."""

    def slow() -> IncreaseFault:
        scene.bring(BURST, patience=2.0)
        scene.later(7.0, lambda: scene.bring(BURST, patience=4.0))
        return IncreaseFault(slow=20.0)

    script = scene.cloud.faults.increase
    script.lay("burst over before growth answers", slow)  # type: ignore[attr-defined]
    return True


def _late_refill(scene: Scene) -> bool:
    """A request times out, and what it asked for comes about when it is given up."""

    def late() -> IncreaseFault:
        return IncreaseFault(slow=30.0, lose=True, late=scene.random.choice([20.0, 45.0, 80.0, 110.0]))

    script = scene.cloud.faults.increase
    script.lay("time-out and a late refill", late)  # type: ignore[attr-defined]
    return True


def _refill_unseen(scene: Scene, instance: str) -> None:
    """One is lost, the view that would show it times out, and the cloud by itself has another in its place by then."""
    scene.cloud.vanish(instance)
    scene.cloud.faults.update.lay("", lambda: UpdateFault(slow=150.0))  # type: ignore[attr-defined]
    scene.later(20.0, lambda: scene.cloud.launch(1))


KINDS: Mapping[str, Kind] = dict(
    [*_calls(), *_views(), *_instances(), *_processes(), *_cleanups(), *_sleeping(), *_pools(), *_peers()]
)
"""All kinds of trouble, by name."""

CLEANUP_KINDS = tuple(name for name, _ in _cleanups())
"""Those that only stories with clean-ups have."""

SLEEP_KINDS = tuple(name for name, _ in _sleeping())
"""Those that only stories have in which instances can be suspended."""

POOL_KINDS = tuple(name for name, _ in _pools())
"""Those that only stories with several pools have."""

PEER_NEEDS = {name: kind.needs for name, kind in _peers()}
"""What a cloud has to be able to for those that others had."""

_RARE = {*CLEANUP_KINDS, *SLEEP_KINDS, *POOL_KINDS, *PEER_NEEDS}

NEEDS = {name: kind.needs for name, kind in KINDS.items() if name not in _RARE}
"""What a cloud has to be able to for one of the others."""
