"""Notes which transitions instances, intents and leases went through: for coverage, never for a verdict."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleeting import GroupInfo
from fleeting.core import Drop, Instance, Plan, Put, Step, Write, messages
from fleeting.core._stages import Asleep, Ready, Unhealthy, Waiting
from fleeting.journal import Recovered
from taskscaler import Taskscaler
from taskscaler.core._decide import OVER_ALL, Decision
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Break, Check, Clean, Deliver, Node, Refuse

REQUIRED = (
    # instances
    "instance: asked for -> creating",
    "instance: unexplained -> removing",
    "instance: came back -> removing",
    "instance: creating -> preparing",
    "instance: creating -> removing",
    "instance: creating -> gone",
    "instance: preparing -> ready",
    "instance: preparing -> removing",
    "instance: preparing -> gone",
    "instance: preparing -> preparing",
    "instance: ready -> paused",
    "instance: paused -> ready",
    "instance: paused -> gone",
    "instance: ready -> unhealthy",
    "instance: unhealthy -> removing",
    "instance: ready -> doomed",
    "instance: doomed -> removing",
    "instance: doomed -> gone",
    "instance: ready -> removing",
    "instance: ready -> gone",
    "instance: removing -> gone",
    "instance: ready -> old",
    "instance: preparing -> old",
    "instance: old -> removing",
    "instance: ready -> suspect",
    "instance: suspect -> ready",
    "instance: suspect -> unhealthy",
    "instance: ready -> asleep",
    "instance: paused -> asleep",
    "instance: asleep -> waking",
    "instance: asleep -> removing",
    "instance: asleep -> gone",
    "instance: waking -> asleep",
    "instance: waking -> preparing",
    "instance: recovered",
    "instance: recovered, removing",
    # intents
    "intent: requested -> matched",
    "intent: requested -> failed",
    "intent: requested -> withdrawn",
    "intent: requested -> expired",
    "intent: unknown outcome",
    "intent: asked again",
    "intent: recovered, answered",
    "intent: recovered, unanswered",
    # leases
    "lease: assigned",
    "lease: committed",
    "lease: delivered",
    "lease: not delivered any more",
    "lease: released",
    "lease: broken, vanished",
    "lease: broken, deleted",
    "lease: broken, failed",
    "lease: broken, preempted",
    "lease: broken, unhealthy",
    "lease: broken, killed",
    "lease: recovered, dropped",
    "lease: checked",
    "lease: taken back",
    "slot: dirty",
    "slot: clean again",
    "slot: not to be cleaned",
    "slot: recovered dirty",
    "clean-up: not wanted any more",
    "acquire: refused",
    "acquire: timed out",
    "acquire: cancelled while waiting",
    "acquire: cancelled while running",
    "reservation: kept",
    "reservation: refused",
    "reservation: given up",
    "job: done",
    "job: retried after a loss",
    "job: retried after a loss in its sleep",
    "job: retried after it expired",
    "job: resumed after a crash",
    "job: retried after a broken connection",
    "job: retried after a crash",
    "job: reattached after a crash",
    "lease: given up",
    "lease: lost while detached",
    "last call: LeaseLost",
    "last call: NoCapacity",
    "pool: another takes over what it does not deliver",
    "pool: another than the preferred is asked",
    "pool: limited by the ceiling over all",
    "pool: set back",
    "journal: failed",
    "journal: recovered",
)
"""What must be met over many stories."""


class Witness:
    """Attached to one manager after the other."""

    def __init__(self, met: Counter[str], say: Callable[[str], None]) -> None:
        """Count into *met*, and tell of everything."""
        self.met = met
        self._say = say
        self._fact = ""
        self._stage: dict[str, str] = {}
        self._asked: set[str] = set()
        self.ticks = 0
        """How often a core was woken."""

        self.commits = 0
        """How often something was stored, but for forgetting what was lost an hour ago."""

    def attach(self, scaler: Taskscaler) -> None:
        """Listen to what its core will decide, from when it is built."""
        runtime = scaler._runtime
        build, perform = runtime._build, runtime._perform_other

        def built(infos: Mapping[str, GroupInfo], recovered: Recovered, now: float) -> Core:
            self._recovered(recovered.records, keep_used=scaler._keep_used)
            core = build(infos, recovered, now)
            self._listen_to(core)
            return core

        def performed(action: Any) -> None:  # noqa: ANN401  (whatever the core decides)
            self._ledger_action(action, runtime.core)
            perform(action)

        runtime._build, runtime._perform_other = built, performed

    def _listen_to(self, core: Core) -> None:
        handle, tick, route = core.handle, core.tick, core._route

        def heard(pool: str, fact: messages.Fact, now: float) -> Step:
            self._fact = type(fact).__name__
            if isinstance(fact, messages.IncreaseFailed) and not fact.outcome_known:
                self.met["intent: unknown outcome"] += 1
            return handle(pool, fact, now)

        def ticked(now: float) -> Step:
            self._fact = "tick"
            self.ticks += 1
            return tick(now)

        def routed(pool: str, step: Step, now: float) -> None:
            self._plan_step(step, core.plans[pool])
            route(pool, step, now)

        core.handle, core.tick, core._route = heard, ticked, routed  # type: ignore[method-assign]
        remember = core._remember

        def remembered(decision: Decision) -> None:
            self._note_decision(decision, next(iter(core.pools)))
            remember(decision)

        core._remember = remembered  # type: ignore[method-assign]
        self._listen_to_ledger(core)
        for method in ("journal_failed", "journal_recovered"):
            self._count_calls(core, method, f"journal: {method.removeprefix('journal_')}")

    def _note_decision(self, decision: Decision, preferred: str) -> None:
        """What of it concerns several pools."""
        for pool in decision.pools:
            self.met["pool: another takes over what it does not deliver"] += bool(pool.moved)
            self.met["pool: set back"] += bool(pool.set_back)
            self.met["pool: limited by the ceiling over all"] += pool.limited_by == OVER_ALL
            self.met["pool: another than the preferred is asked"] += pool.pool != preferred and pool.increase > 0

    def _listen_to_ledger(self, core: Core) -> None:
        take_back, cleaned = core.ledger.take_back, core.cleaned

        def taken_back(node: Node, now: float) -> Step:
            self.met["lease: taken back"] += sum(not assignment.delivered for assignment in node.leases)
            return take_back(node, now)

        def ended(clean: Clean, failure: str, now: float) -> Step:
            outcome = ("not to be cleaned" if failure else "clean again") if core.ledger.wants(clean) else ""
            self.met[f"slot: {outcome}" if outcome else "clean-up: not wanted any more"] += 1
            return cleaned(clean, failure, now)

        core.ledger.take_back, core.cleaned = taken_back, ended  # type: ignore[method-assign]

    def _recovered(self, records: Mapping[str, Mapping[str, Any]], *, keep_used: bool) -> None:
        """A new manager starts from these."""
        self._stage.clear()
        self._asked.clear()
        used = {record.host for kind in ("lease", "dirty") for record in records.get(kind, {}).values()}
        used = set() if keep_used else used
        self.met["slot: recovered dirty"] += len(records.get("dirty", {}))
        for key, record in records.get("instance", {}).items():
            self._stage[_id(key)] = "removing" if record.removing or key in used else "creating"
            self.met["instance: recovered, removing" if record.removing else "instance: recovered"] += 1
        for record in records.get("intent", {}).values():
            self.met[f"intent: recovered, {'unanswered' if record.accepted is None else 'answered'}"] += 1
        self.met["lease: recovered, dropped"] += len(records.get("lease", {}))

    def committed(self, writes: Sequence[Write]) -> None:
        """These are durable."""
        self.commits += any(write.kind != "lost" for write in writes)
        for write in writes:
            if write.kind == "lease":
                self.met["lease: committed" if isinstance(write, Put) else "lease: released"] += 1
            self.met["slot: dirty"] += write.kind == "dirty" and isinstance(write, Put)

    def _count_calls(self, core: Any, method: str, what: str) -> None:  # noqa: ANN401  (any method of it)
        call = getattr(core, method)

        def heard(*args: object) -> Step:
            self.met[what] += 1
            step: Step = call(*args)
            return step

        setattr(core, method, heard)

    def _plan_step(self, step: Step, plan: Plan) -> None:
        appeared = {write.record.intent for write in step.writes if isinstance(write, Put) and write.kind == "instance"}
        for write in step.writes:
            self._plan_write(write, appeared)
        for action in step.actions:
            match action:
                case messages.Prepare(_, instance):
                    self._move(instance, "preparing")
                case messages.Increase(_, intent, _):
                    self.met["intent: asked again"] += intent in self._asked
                    self._asked.add(intent)
        for event in step.events:
            stage = stage_of(plan.instances[event.instance]) if isinstance(event, messages.Changed) else ""
            if stage:
                self._move(event.instance, stage)

    def _plan_write(self, write: Write, appeared: set[str | None]) -> None:
        match write:
            case Put("instance", key, record) if record.removing:
                self._move(_id(key), "removing")
            case Put("instance", key, record):
                self._stage.setdefault(_id(key), "asked for" if record.intent else "unexplained")
                if self._stage[_id(key)] in {"asked for", "unexplained"}:
                    self._move(_id(key), "creating" if record.intent else "unexplained")
            case Put("lost", key, _):
                self._stage[_id(key)] = "came back"
            case Drop("instance", key):
                self._move(_id(key), "gone")
            case Drop("intent", key):
                end = {"IncreaseFailed": "failed", "NotAsked": "not asked", "Withdrawn": "withdrawn"}
                if self._fact == "Updated" and _id(key) not in appeared:
                    end["Updated"] = "expired"
                self.met[f"intent: requested -> {end.get(self._fact, 'matched')}"] += 1

    def _move(self, instance: str, stage: str) -> None:
        before = self._stage.get(instance, "unknown")
        if before == "came back" and stage == "unexplained":
            return
        if before != stage or stage == "preparing":
            self.met[f"instance: {before} -> {stage}"] += 1
            self._say(f"{instance}: {before} -> {stage}")
        self._stage[instance] = stage

    def _ledger_action(self, action: object, core: Core) -> None:
        match action:
            case Check():
                self.met["lease: checked"] += 1
            case Deliver(lease):
                self.met["lease: assigned"] += 1
                stands = core.ledger.find(lease) is not None
                self.met["lease: delivered" if stands else "lease: not delivered any more"] += 1
            case Break(lease, loss):
                self.met[f"lease: broken, {loss.kind.value}"] += 1
                self._say(f"{lease.key}: broken ({loss})")
            case Refuse():
                self.met["acquire: refused"] += 1


def stage_of(instance: Instance) -> str:
    """What it has come to be, where no write and no action says so; empty: nothing of that kind."""
    match instance.phase:
        case Unhealthy():
            return "unhealthy"
        case Ready(too_old=too_old, suspect=suspect):
            if instance.notice is not None or too_old:
                return "doomed" if instance.notice is not None else "old"
            suspected = "suspect" if suspect else "ready"
            return "paused" if instance.paused else suspected
        case Asleep():
            return "asleep"
        case Waiting() if instance.announced:
            return "waking"
        case _:
            return ""


def _id(key: str) -> str:
    """Without the pool's name."""
    return key.partition("/")[2]
