"""Why an instance is there, still there, not there yet, or gone: what is known about one instance."""

from collections.abc import Iterator, Mapping
from operator import attrgetter

from attrs import frozen

from fleeting import State
from fleeting.config import did_you_mean
from fleeting.core import Instance, Plan, Stage
from fleeting.plugins import span
from taskscaler._observe import label_of
from taskscaler._wording import counted, enumerated, finite, iso
from taskscaler.core._mediator import Core
from taskscaler.core._slots import AWAY, FINAL, Assignment, Node
from taskscaler.diagnose._answer import ScalerAnswer
from taskscaler.diagnose._explain import view_of
from taskscaler.diagnose._forecast import Next, Upcoming
from taskscaler.diagnose._snapshot import Snapshot


@frozen(kw_only=True)
class JobOnInstance:
    """A slot of an instance that is held."""

    key: str
    """What its slot was acquired under."""

    slot: int
    """The number of the slot, from 0."""

    since: float
    """Seconds since the epoch."""

    suspended: bool
    """Whether it sleeps."""

    expires_at: float | None = None
    """When it expires unless it is resumed by then, seconds since the epoch; None: it does not."""

    reattach_by: float | None = None
    """When it is given up unless it is reattached by then, seconds since the epoch; None: it is not."""

    detached: bool = False
    """Whether nobody holds it: its manager ended, or its holder let go of it."""

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {
            "key": self.key,
            "slot": self.slot,
            "since": iso(self.since),
            "suspended": self.suspended,
            "expires_at": None if self.expires_at is None else iso(self.expires_at),
            "detached": self.detached,
            "reattach_by": None if self.reattach_by is None else iso(self.reattach_by),
        }


@frozen(kw_only=True)
class InstanceExplanation(ScalerAnswer):
    """One instance, and what time alone will bring to it."""

    about = "instance"

    id: str
    """The instance's id."""

    pool: str
    """Empty if the instance is not known."""

    state: str
    """As `InstanceView.state`; also ``gone`` or ``unknown``."""

    since: float | None
    """When it was first seen, or went if it is gone; None if that is not known."""

    ready_since: float | None
    """Since when it is ready, in seconds since the epoch; None if it is not."""

    slots: int
    """How many it has; 0 until it is ready."""

    jobs: tuple[JobOnInstance, ...]
    """What runs on it."""

    uses: int
    """How often it was given work."""

    max_uses: int
    """How often it may be; 0: any number."""

    why: str
    """Why it is there, on its way, or gone."""

    why_no_work: str
    """Why it gets no work, or no more of it; empty if it does."""

    holds: str
    """What an operator wants of it, such as ``cordoned (a disk fails), retained``; empty: nothing."""

    @property
    def answer(self) -> str:
        """Why it is (still) there, in one sentence."""
        return f"{self.id} {_BEGINNINGS[self.state]}: {self.why}"

    def details(self) -> Iterator[str]:
        """One thought each."""
        if self.why_no_work:
            yield f"it gets no {'more ' if self.jobs else ''}work: {self.why_no_work}"
        if self.holds:
            yield f"an operator holds it: {self.holds}"
        for job in self.jobs:
            ends = " and is suspended" if job.suspended else " and is detached" if job.detached else ""
            yield f"{job.key} has held slot {job.slot} for {span(self.at - job.since)}{ends}"
        if self.slots:
            uses = f"{self.uses} of {self.max_uses} uses" if self.max_uses else counted(self.uses, "use")
            yield f"{uses}, {counted(self.slots, 'slot')}"
        if self.since is not None:
            ready = f", ready for {span(self.at - self.ready_since)}" if self.ready_since is not None else ""
            first = "it went away" if self.state == "gone" else "first seen"
            yield f"{first} {span(self.at - self.since)} ago{ready}"

    def data(self) -> Mapping[str, object]:
        """See `Answer.data`."""
        return {
            "id": self.id,
            "pool": self.pool or None,
            "state": self.state,
            "since": None if self.since is None else iso(self.since),
            "ready_since": None if self.ready_since is None else iso(self.ready_since),
            "slots": self.slots,
            "jobs": [job.as_dict() for job in self.jobs],
            "uses": self.uses,
            "max_uses": self.max_uses,
            "why": self.why,
            "why_no_work": self.why_no_work,
            "holds": self.holds,
        }


_BEGINNINGS = {
    "creating": "is booting",
    "pending": "is not ready yet",
    "running": "is ready",
    "suspended": "is suspended",
    "resuming": "is resuming",
    "deleting": "is being removed",
    "unusable": "is unusable",
    "gone": "is gone",
    "unknown": "is unknown",
}


def explain_instance(snapshot: Snapshot, name: str) -> InstanceExplanation:
    """Describe an instance by its id, or by ``pool/id`` where several pools use the same."""
    core, now = snapshot.core, snapshot.now
    for plan in core.plans.values():
        id_ = name.removeprefix(f"{plan.pool}/")
        if id_ in plan.instances:
            return _known(snapshot, plan, plan.instances[id_])
    for plan in core.plans.values():
        departure = plan.departed(name.removeprefix(f"{plan.pool}/"))
        if departure is not None:
            return _absent(name, now, pool=plan.pool, state="gone", since=departure.at, why=departure.why)
    known = (instance for plan in core.plans.values() for instance in plan.instances)
    hint = did_you_mean(name, known)
    return _absent(name, now, why="it was never seen, or is long gone" + (f"; {hint}" if hint else ""))


def _absent(
    name: str, now: float, *, why: str, pool: str = "", state: str = "unknown", since: float | None = None
) -> InstanceExplanation:
    return InstanceExplanation(
        at=now,
        id=name,
        pool=pool,
        state=state,
        since=since,
        ready_since=None,
        slots=0,
        jobs=(),
        uses=0,
        max_uses=0,
        why=why,
        why_no_work="",
        holds="",
    )


def _known(snapshot: Snapshot, plan: Plan, instance: Instance) -> InstanceExplanation:
    core = snapshot.core
    node = core.ledger.node(plan.pool, instance.id)
    items = snapshot.upcoming_of(plan.pool, instance.id)
    leases = sorted(node.leases, key=attrgetter("slot")) if node else []
    return InstanceExplanation(
        at=snapshot.now,
        id=instance.id,
        pool=plan.pool,
        state=label_of(instance),
        since=instance.first_seen,
        ready_since=instance.ready_since,
        slots=node.pool_slots.per_node if node else 0,
        jobs=tuple(_job(core, each) for each in leases),
        uses=node.uses if node else 0,
        max_uses=core.pools[plan.pool].max_use_count,
        why=_Reasons(snapshot, plan.pool, instance, items).why(node),
        why_no_work=_why_no_work(core, node),
        holds=view_of(core, plan, instance).holds,
        next=tuple(items),
    )


def _job(core: Core, assignment: Assignment) -> JobOnInstance:
    return JobOnInstance(
        key=assignment.key,
        slot=assignment.slot,
        since=assignment.since,
        suspended=assignment.suspended,
        expires_at=core.ledger.expiries.at(assignment.key),
        detached=assignment.detached,
        reattach_by=finite(assignment.reattach_by),
    )


def _why_no_work(core: Core, node: Node | None) -> str:
    if node is None:
        return ""
    if node.cordoned is not None:
        return f"it is cordoned{node.cordoned and f' ({node.cordoned})'}"
    if node.closed is not None:
        return node.why_closed
    if shut := core.ledger.shut or core.ledger.pools[node.pool].why_blocked:
        return shut
    return "it has reached max_use_count" if node.uses_left <= 0 else ""


@frozen
class _Reasons:
    """Why an instance is as it is."""

    snapshot: Snapshot
    pool: str
    instance: Instance
    items: list[Upcoming]
    """What will happen to it."""

    def why(self, node: Node | None) -> str:
        """In one sentence without its subject."""
        if self.instance.stage in {Stage.REMOVING, Stage.HELD}:
            return self._leaving()
        if self.instance.stage is Stage.ASLEEP:
            return self._asleep()
        if node is None or node.closed in AWAY:
            return self._coming()
        return self._busy(node) if node.busy else self._free(node)

    def _leaving(self) -> str:
        instance = self.instance
        if instance.stage is Stage.HELD:
            return f"{instance.removing}, but it is retained"
        deletion = instance.deletion
        if deletion is None:
            return instance.removing
        ago = span(self.snapshot.now - deletion.asked_at)
        if deletion.tries > 1:
            tries = f"{deletion.tries} times, most recently {ago} ago"
            return f"{instance.removing}; its deletion was requested {tries}, without effect"
        answered = "" if deletion.sent else ", not answered yet"
        return f"{instance.removing}; its deletion was requested {ago} ago{answered}"

    def _asleep(self) -> str:
        instance, resuming = self.instance, self.snapshot.core.plans[self.pool].resuming
        sleep = instance.sleep
        since = self.snapshot.now if sleep is None or sleep.since is None else sleep.since
        parts = [f"{instance.asleep}; for {span(self.snapshot.now - since)} so far"]
        if instance.state is not State.SUSPENDED:
            parts.append(f"the cloud reports it as {instance.state.value}")
        if resuming.active(self.snapshot.now):
            parts.append(f"resuming is paused for {span(resuming.until - self.snapshot.now)}: {resuming.reason}")
        return "; ".join(parts)

    def _coming(self) -> str:
        instance = self.instance
        if instance.stage is Stage.WAITING or instance.state is not State.RUNNING:
            return f"the cloud reports it as {instance.state.value}"
        if instance.trouble:
            return f"its readiness steps have failed so far: {instance.trouble}"
        return instance.paused or "its readiness steps are running"

    def _busy(self, node: Node) -> str:
        awake = [assignment.key for _, assignment in sorted(node.awake.items()) if not assignment.detached]
        detached = [assignment.key for _, assignment in sorted(node.awake.items()) if assignment.detached]
        asleep = [assignment.key for _, assignment in sorted(node.asleep.items())]
        parts = [f"{enumerated(awake)} {'is' if len(awake) == 1 else 'are'} running on it"] if awake else []
        parts += [f"{enumerated(detached)} {'is' if len(detached) == 1 else 'are'} detached on it"] if detached else []
        parts += [f"{enumerated(asleep)} {'is' if len(asleep) == 1 else 'are'} suspended on it"] if asleep else []
        cleaning = len(node.cleaning)
        parts += [f"{counted(cleaning, 'slot')} {'is' if cleaning == 1 else 'are'} being cleaned"] if cleaning else []
        done_for = node.closed in FINAL or node.uses_left <= 0
        ends = ", and it will be removed once it is free" if done_for and not node.retained else ""
        return f"{' and '.join(parts)}{ends}"

    def _free(self, node: Node) -> str:
        idle = f"idle for {span(self.snapshot.now - node.idle_since)}"
        leaves = [item for item in self.items if item.what is Next.GIVE_UP]
        if node.retained:
            return f"{idle}, and retained"
        if leaves:
            return f"{idle}, to be removed {leaves[0].when}: {leaves[0].why}"
        if node.closed is not None:
            return f"the scaler waits for it: {node.why_closed}"
        if blocked := self.snapshot.core.ledger.pools[self.pool].why_blocked:
            return f"{idle}: {blocked}"
        if self.snapshot.core.ledger.over:
            return f"{idle}; nothing is removed while no slots are handed out"
        return f"{idle}, but {self._needed(node)}"

    def _needed(self, node: Node) -> str:
        _, decision = self.snapshot.foreseen
        claims = (
            (decision.demand.reserved, "reserved"),
            (decision.demand.pending, "waiting"),
            (decision.idle_target, "to keep idle (idle_count)"),
        )
        words = enumerated([f"{count} {claim}" for count, claim in claims if count])
        free = counted(self.snapshot.core.ledger.usable, "free slot")
        needed = f"needed: {words}, with {free}" if words else f"needed: {free}, none to spare"
        if node.usable > decision.spare > 0:
            return f"{needed}; it has more slots than the {decision.spare} to spare"
        return f"{needed}; others go first" if decision.spare else needed
