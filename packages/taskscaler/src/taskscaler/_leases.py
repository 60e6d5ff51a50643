"""The leases of one scaler: who waits for a slot, who holds one, and what becomes of both."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled
from attrs import define, frozen

from fleeting import ConnectInfo, Connection, ProviderError, Unreachable
from fleeting.core import Step, messages
from fleeting.events import Loss, LossKind
from fleeting.plugins import format_duration
from fleeting.runtime import Runtime
from taskscaler._connections import Connections
from taskscaler._errors import LeaseLost, NoCapacity
from taskscaler._lease import Lease, LeaseState
from taskscaler._meter import Meter
from taskscaler._observe import LeaseEvent, Observers
from taskscaler._tracer import Trace, Tracer
from taskscaler.core._mediator import Core
from taskscaler.core._slots import Closed, LeaseId

if TYPE_CHECKING:
    from taskscaler.diagnose._explain import Explanation

log = logging.getLogger("taskscaler")

FOREVER = 100 * 365.25 * 86400.0
"""Seconds for which a lease is suspended for good: who asks for more means that, and calendars end at some year."""

SHARED = 1.0
"""Seconds for which those who waited in vain share one explanation: it costs O(n) in instances, and a thousand may give
up at the same moment."""


_OPERATIONS = {
    "resumed": "resume",
    "reattached": "reattach",
    "suspended": "suspend",
    "detached": "detach",
}
"""What the metrics call that of which observers hear."""


@define(eq=False)
class _Waiter:
    """Somebody who waits for a lease, until there is a slot or a refusal."""

    held: LeaseId | None
    """The suspended or detached lease that is to be handed over again; None: any slot will do."""

    wakeup: "anyio.Event | None" = None
    """Made once it is clear that there is something to wait for."""

    lease: Lease | None = None
    trace: Trace | None = None
    """What follows the wait, and then the lease."""

    is_traced_alone: bool = False
    """Whether that trace is of nothing but this lease."""

    asked_at: float = 0.0
    """When it began to wait, if it is followed."""

    became: str = "acquired"
    """How the lease came to be held, as observers hear it."""

    refusal: str = ""
    lost: LeaseLost | None = None

    @property
    def answered(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.lease is not None or bool(self.refusal) or self.lost is not None

    def put_back(self) -> None:
        """Make of the lease again what it was before."""
        if self.lease is not None:
            undo = {"acquired": Lease.release, "resumed": Lease.suspend_again, "reattached": Lease.detach}
            undo[self.became](self.lease)

    def wake(self) -> None:
        """It was answered."""
        if self.wakeup is not None:
            self.wakeup.set()


@frozen
class _Why:
    """Why somebody waited in vain; put into words only if somebody reads it."""

    what: str
    """What did not happen in time."""

    timeout: float
    setting: str
    explanations: Sequence[object]

    def __str__(self) -> str:
        """For people."""
        first = f"{self.what} within {format_duration(self.timeout)}{self.setting}"
        return "\n".join([first, *map(str, self.explanations)])


class Leases:
    """Wakes those who wait, breaks what is lost, and does what leases ask (`LeaseOwner`)."""

    def __init__(
        self,
        runtime: Runtime[Core],
        observers: Observers,
        meter: Meter | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Nobody waits or holds anything yet."""
        self._tracer = tracer
        self._runtime = runtime
        self._observers = observers
        self._meter = meter
        self._waiters: dict[str, _Waiter] = {}
        self._states: dict[LeaseId, LeaseState] = {}
        self._ended: anyio.Event | None = None
        """Made by those who wait for leases to end, which hardly anybody does."""

        self._connections = Connections(
            runtime.start_soon,
            lambda pool: runtime.drivers[pool].calls.dial,
            self.connect_info,
            self.note_death,
            None if meter is None else meter.dialled,
            None if tracer is None else self._now,
        )
        self._explanation: Explanation | None = None
        """The last one that somebody got who waited in vain."""

    # --- waiting -----------------------------------------------------------------------------------------

    async def wait(
        self, key: str, step: Step, timeout: float, setting: str = "", *, held: LeaseId | None = None
    ) -> Lease:
        """Wait for what was asked of the core under the key, in that step.

        Args:
            key: What was asked for.
            step: The core's answer; taken here, because it may hand the slot over at once.
            timeout: Seconds to wait.
            setting: What the timeout is, for people.
            held: The suspended or detached lease that is to be handed over again; None: any slot will do.

        Raises:
            LeaseLost: The instance of that lease was lost meanwhile.
            NoCapacity: There was no slot in time, or there will be none.
        """
        waiter = self._waiters[key] = _Waiter(held)
        if self._tracer is not None:
            self._follow(waiter, self._tracer, key)
        self._runtime.take(step)
        try:
            if waiter.answered:
                await checkpoint()
            else:
                waiter.wakeup = anyio.Event()
                with anyio.move_on_after(timeout):
                    await waiter.wakeup.wait()
                await checkpoint_if_cancelled()  # at the same moment: the caller may never see the lease
        except BaseException:
            self._give_up(key, waiter, "cancelled")
            raise
        if waiter.lease is not None:
            return waiter.lease
        if waiter.lost is not None:
            self._note_wait(waiter, "LeaseLost")
            raise waiter.lost
        if waiter.refusal:
            self._give_up(key, waiter)
            raise NoCapacity(waiter.refusal, capacity=self._core.capacity())
        what, *explanations = self._explain_held(held) if held else ("no slot became free", self._explain())
        why, capacity = _Why(str(what), timeout, setting, explanations), self._core.capacity()
        self._give_up(key, waiter)
        raise NoCapacity(why, possible=True, capacity=capacity)

    def _explain_held(self, held: LeaseId) -> Sequence[object]:
        """Say to somebody who still waits for a lease what did not happen, and explain what is so instead."""
        from taskscaler.diagnose._explain_instance import explain_instance  # as for `_explain`
        from taskscaler.diagnose._explain_key import explain_key
        from taskscaler.diagnose._snapshot import Snapshot

        became = "reattached" if held.key in self._core.ledger.detached else "resumed"
        snapshot = Snapshot(self._core, self._now())
        where = explain_instance(snapshot, f"{held.pool}/{held.instance}")
        return (f"the lease {held.key!r} was not {became}", explain_key(snapshot, held.key).answer, where)

    def _explain(self) -> "Explanation":
        """Explain to somebody who still waits why there is no capacity."""
        from taskscaler.diagnose._explain import explain  # a tenth of what importing taskscaler takes
        from taskscaler.diagnose._snapshot import Snapshot

        now = self._now()
        if self._explanation is None or self._explanation.at < now - SHARED:
            self._explanation = explain(Snapshot(self._core, now))
        return self._explanation

    def _follow(self, waiter: _Waiter, tracer: Tracer, key: str) -> None:
        """Have what is asked for be a part of what this task is at, or a trace by itself."""
        waiter.trace = tracer.job()
        if waiter.trace is None:
            waiter.trace, waiter.is_traced_alone = tracer.begin_lease(key), True
        if waiter.trace.is_followed:
            waiter.asked_at = self._now()

    def _note_wait(self, waiter: _Waiter, error: str) -> None:
        """Nothing has come of a wait."""
        if waiter.trace is not None and waiter.trace.is_followed:
            now = self._now()
            waiter.trace.waited(waiter.asked_at, now, error)
            if waiter.is_traced_alone:
                waiter.trace.end(now, error)

    def _give_up(self, key: str, waiter: _Waiter, error: str = "NoCapacity") -> None:
        """Stop waiting; a slot that came at the last moment goes back."""
        if waiter.lease is None:
            self._note_wait(waiter, error)
        if waiter.lease is not None:
            waiter.put_back()
        else:
            if self._meter is not None and waiter.held is None:
                self._meter.tasks["acquire_failure"] += 1
            self._waiters.pop(key, None)
            self._runtime.take(self._core.cancel(key, self._now()))
            self.note_end()

    # --- what the core has decided -----------------------------------------------------------------------

    def deliver(self, id_: LeaseId) -> None:
        """Hand a slot over to the one that waits for it, unless it is lost or given up by now."""
        was_detached = id_.key in self._core.ledger.detached
        if self._core.deliver(id_):
            waiter = self._waiters.pop(id_.key)
            assignment = self._core.ledger.leases[id_.key]
            state = self._states[id_] = LeaseState(id_, assignment.ticket, persistent=assignment.persistent)
            if assignment.node.closed is Closed.UNHEALTHY:  # it was found to be while the lease was detached or asleep
                state.mark_unhealthy(assignment.node.why_closed)
            waiter.lease = Lease(state, self)
            waiter.became = "acquired" if waiter.held is None else "reattached" if was_detached else "resumed"
            if waiter.trace is not None:
                state.trace, state.is_traced_alone = waiter.trace, waiter.is_traced_alone
                if waiter.trace.is_followed:
                    now = self._now()
                    is_new = waiter.held is None
                    asked_at = assignment.asked_at if is_new else waiter.asked_at
                    waiter.trace.acquired(asked_at, assignment.since if is_new else now, now, id_)
            waiter.wake()
            if self._meter is not None:
                if waiter.held is None:
                    self._meter.acquired(assignment.since - assignment.asked_at)
                else:
                    self._meter.tasks[_OPERATIONS[waiter.became]] += 1
            if self._observers:
                self._observers.notify(self._event(id_, waiter.became))

    def mark_unhealthy(self, id_: LeaseId, why: str) -> None:
        """The instance is unhealthy; who has just given the slot back need not know."""
        if id_ in self._states:
            self._states[id_].mark_unhealthy(why)

    def note_expiry(self, id_: LeaseId) -> None:
        """Nobody has resumed a lease in time: nobody holds it, nor waits for it."""
        log.info("lease_expired", extra={"key": id_.key, "pool": id_.pool, "instance": id_.instance})
        if self._meter is not None:
            self._meter.tasks["expire"] += 1
        if self._observers:
            self._observers.notify(self._event(id_, "expired"))
        self.note_end()

    def lose(self, id_: LeaseId, loss: Loss) -> None:
        """A slot is lost, or kept for the next manager; who has just given it back need not know."""
        kept = False
        if self._observers or self._meter is not None or self._tracer is not None:
            assignment = self._core.ledger.find(id_)
            kept = assignment is not None and assignment.detached
            if self._meter is not None:
                self._meter.lost(loss, kept=kept)
            self._observers.notify(self._event(id_, "detached" if kept else "lost", str(loss)))
        state = self._states.pop(id_, None)
        waiter = self._waiters.get(id_.key)
        if state is not None:
            self._follow_no_more(state, "" if kept else "LeaseLost")
            state.end(loss)
        elif waiter is not None and waiter.held == id_:
            del self._waiters[id_.key]
            waiter.lost = LeaseLost(id_.key, id_.instance, loss)
            waiter.wake()
        self.note_end()

    def refuse(self, key: str, why: str) -> None:
        """The one that waits under the key gets nothing; it may have given up just now."""
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            waiter.refusal = why
            waiter.wake()

    def end_all(self, why: str) -> None:
        """Nothing more will be decided: nobody may go on as if it would."""
        for id_ in list(self._states):
            self.lose(id_, Loss(LossKind.KILLED, why))
        for key in list(self._waiters):
            self.refuse(key, why)

    async def wait_while(self, in_use: Callable[[], int]) -> None:
        """Wait until nothing is in use any more; looked at each time that a lease or a clean-up ends."""
        while in_use():
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    def note_end(self) -> None:
        """A lease or a clean-up has ended."""
        if self._ended is not None:
            self._ended.set()
            self._ended = None

    # --- what leases ask (`LeaseOwner`) ------------------------------------------------------------------

    def release(self, id_: LeaseId) -> None:
        """Take a slot back. If it is lost by now, somebody else may use the key already."""
        if self._end(id_, "released"):
            self._runtime.take(self._core.release(id_.key, self._now()))
        self.note_end()

    def note_replacement(self, id_: LeaseId, why: str) -> None:
        """A lease gives its slot up for another; its holder has it no more, as if it had been released."""
        if id_ in self._states:
            state = self._states.pop(id_)
            self._follow_no_more(state, "")
            state.end()
        if self._meter is not None:
            self._meter.tasks["replace"] += 1
        if self._observers:
            self._runtime.take(Step(actions=(self._event(id_, "replaced", why),)))

    def suspend(self, id_: LeaseId, ttl: float | None) -> None:
        """Let a lease sleep."""
        if self._end(id_, "suspended"):
            now = self._now()
            expires_at = None if ttl is None else now + ttl if ttl < FOREVER else math.inf
            self._runtime.take(self._core.suspend(id_, now, expires_at))
        self.note_end()

    def detach(self, id_: LeaseId) -> None:
        """Keep a lease for somebody to reattach."""
        if self._end(id_, "detached"):
            self._runtime.take(self._core.detach(id_, self._now()))
        self.note_end()

    def mark_unreachable(self, id_: LeaseId, why: str) -> None:
        """Take a slot away whose instance is unhealthy and cannot be reached: work goes on only where it can."""
        self._runtime.take(self._core.mark_unreachable(id_, Loss(LossKind.UNHEALTHY, why), self._now()))

    def mark_suspect(self, id_: LeaseId, why: str) -> None:
        """The instance misbehaves although the cloud shows it: it gets no new work, and is replaced."""
        self._runtime.take(self._core.mark_suspect(id_.pool, id_.instance, why, self._now()))

    async def connect_info(self, id_: LeaseId) -> ConnectInfo:
        """How to connect.

        Raises:
            Unreachable: It cannot be found out.
        """
        pool, instance = id_.pool, id_.instance
        try:
            return await self._runtime.drivers[pool].calls.connect_info(instance)
        except (ProviderError, OSError) as error:
            raise Unreachable(f"no connection details for {instance}: {error}") from error

    def dial(self, state: LeaseState) -> AbstractAsyncContextManager[Connection]:
        """Connect. When the connection dies, the cloud is asked for the instance at once."""
        return self._connections.dial(state)

    def note_death(self, state: LeaseState, why: str) -> None:
        """A connection to the lease's instance died, or could not be made."""
        state.cut_off = True
        self._runtime.feed(state.id.pool, messages.ConnectionDied(state.id.instance, why))

    # --- inside ------------------------------------------------------------------------------------------

    @property
    def _core(self) -> Core:
        return self._runtime.core

    def _now(self) -> float:
        return self._runtime.clock.now()

    def _end(self, id_: LeaseId, what: str) -> bool:
        """Its holder gives a lease back: say whether it still stands. Observers learn of it once that is durable."""
        if (state := self._states.pop(id_, None)) is not None:
            self._follow_no_more(state, "")
        stands = self._core.ledger.find(id_) is not None
        if stands and self._meter is not None:
            if what == "released":
                self._meter.released += 1
            else:
                self._meter.tasks[_OPERATIONS[what]] += 1
        if stands and self._observers:  # before what it leads to
            self._runtime.take(Step(actions=(self._event(id_, what),)))
        return stands

    def _follow_no_more(self, state: LeaseState, error: str) -> None:
        """A lease has ended; a job that had it may have another."""
        if state.is_traced_alone and state.trace is not None and state.trace.is_followed:
            state.trace.end(self._now(), error)

    def _event(self, id_: LeaseId, what: str, why: str = "") -> LeaseEvent:
        return LeaseEvent(
            at=self._now(),
            key=id_.key,
            pool=id_.pool,
            instance=id_.instance,
            slot=id_.slot,
            what=what,
            why=why,
        )
