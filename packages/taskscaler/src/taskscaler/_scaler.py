"""The scaler: slots on demand, over one or several pools. The async shell around the core."""

import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self, cast, overload

import anyio

from fleeting import Clock, Duration, GroupInfo, Journal
from fleeting.config import all_are, as_given, check
from fleeting.core import PLAN_RECORDS, Step, build_plan
from fleeting.journal import Recovered
from fleeting.plugins import format_duration, one_line
from fleeting.runtime import GroupDriver, Runtime, Upkeep
from taskscaler._arguments import check_settings, check_wait, refuse_with
from taskscaler._attempts import Attempt, Attempts, Tries
from taskscaler._errors import NoCapacity, TaskscalerError
from taskscaler._lease import Lease
from taskscaler._leases import Leases
from taskscaler._meter import Figures, Metered
from taskscaler._observe import DecisionEvent, InstanceEvent, LeaseEvent, Observers, ScalerObserver
from taskscaler._standing import figures_of
from taskscaler._tracer import Traced, Tracer
from taskscaler._types import Policy, Pool
from taskscaler._use_meter import UseMeter
from taskscaler.core._idling import IDLING_RECORDS
from taskscaler.core._mediator import AllRemoved, Core, InstanceLost
from taskscaler.core._slots import (
    LEDGER_RECORDS,
    Break,
    Capacity,
    Check,
    Clean,
    Deliver,
    DetachedLease,
    Expired,
    MarkUnhealthy,
    Refuse,
)

if TYPE_CHECKING:  # what explains is imported when somebody asks: it is a tenth of what importing taskscaler takes
    from taskscaler.diagnose._explain import Explanation, InstanceView
    from taskscaler.diagnose._explain_instance import InstanceExplanation
    from taskscaler.diagnose._explain_key import KeyExplanation
    from taskscaler.diagnose._queue import WaiterView

REPLACED = "its holder wanted another instance"
"""Why an instance gets no more work, if `replace` was not given a reason."""

REMOVAL_GRACE = 5.0
"""Seconds beyond the retries that instances have to go on shutdown."""

log = logging.getLogger("taskscaler")


class Taskscaler:
    """Hands out slots on instances, and keeps as many instances as that takes.

    An async context manager; entered once. Leaving it breaks what leases are still held (`drain` first to let
    work end), deletes the instances unless a journal remembers them, and closes the groups. Where they stay, persistent
    leases that are still held are left to the next scaler.
    """

    def __init__(
        self,
        pools: Pool | Sequence[Pool],
        *,
        policies: Sequence[Policy] = (),
        max_instances: int = 0,
        journal: Journal | None = None,
        clock: Clock | None = None,
        acquire_timeout: float = 900.0,
        reattach_timeout: float = 600.0,
        delete_instances_on_shutdown: bool | None = None,
        keep_instance_with_acquisitions: bool = False,
        observe_only: bool = False,
        observers: Sequence[ScalerObserver] = (),
        random: Callable[[], float] | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            pools: One, or several in order of preference, with names that differ.
            policies: What to keep idle, and when; the last that matches holds. None: nothing.
            max_instances: How many there may be over all pools, besides what each of them may have; 0: any number.
            journal: Where state outlives the process. None: nowhere.
            clock: None: the event loop's time.
            acquire_timeout: Seconds that an acquire waits unless it says otherwise. Files, and the error when they have
                passed, call it by GitLab's name, `instance_acquire_timeout`.
            reattach_timeout: Seconds from the start for which persistent leases of an earlier manager are kept for
                somebody to reattach. What was still running then is treated as if they had not been persistent.
            delete_instances_on_shutdown: Whether to remove every instance on the way out, but for retained ones.
                None: unless there is a journal. Without one nobody would know of them, and the next scaler would
                refuse to start; with one, the next scaler goes on with them. Those that were adopted go, too.
            keep_instance_with_acquisitions: Whether instances that were in use when an earlier manager stopped are
                used on. They are removed by default: what ran there may still run.
            observe_only: Whether to decide and explain, and ask nothing of the cloud or of an instance. What is there
                counts as usable, maybe beside its manager; who asks for a slot is refused. `explain` says from the
                start what would be done.
            observers: Called with every `ScalerEvent`, in order, once what led to it is durable. They must be
                quick; what they raise is logged. Those that are async context managers are entered first of all and
                left last of all.
            random: Gives numbers from 0 to 1, for jitter. None: as they come.
        """
        check_settings(
            max_instances=max_instances,
            acquire_timeout=acquire_timeout,
            reattach_timeout=reattach_timeout,
            delete_instances_on_shutdown=delete_instances_on_shutdown,
            keep_instance_with_acquisitions=keep_instance_with_acquisitions,
            observe_only=observe_only,
        )
        self._pools = [pools] if isinstance(pools, Pool) else all_are(Pool, pools, "pools")
        names = [pool.name for pool in self._pools]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"pools: expected at least one pool, each with its own name, found {names}")
        self._max_instances = max_instances
        if observe_only and journal is not None:
            raise ValueError("journal: expected None with observe_only, since it belongs to the groups' manager")
        for observer in (observers := list(observers)):
            if not callable(observer):
                raise TypeError(f"observers: expected functions that take an event, found {as_given(observer)}")
        self._observe_only = observe_only
        self._policies = all_are(Policy, policies, "policies")
        self._acquire_timeout = acquire_timeout
        self._reattach_timeout = reattach_timeout
        self._keep_used = keep_instance_with_acquisitions
        forgets = journal is None if delete_instances_on_shutdown is None else delete_instances_on_shutdown
        self._delete_on_shutdown = forgets and not observe_only
        self._all_observers = observers
        metered = [each for each in cast("list[object]", observers) if isinstance(each, Metered)]
        if len(metered) > 1:
            raise ValueError(f"observers: expected one for metrics, found {len(metered)}; a scaler is counted once")
        self._observers = Observers([each for each in observers if not _is_metered(each) and _hears(each)])
        self._meter = metered[0].meter if metered else None
        for each in metered:
            each.attach(self._look)
        traced = [each for each in cast("list[object]", observers) if isinstance(each, Traced)]
        if len(traced) > 1:
            raise ValueError(f"observers: expected one for traces, found {len(traced)}; a job has one trace")
        self._follower = traced[0] if traced else None
        if self._follower is not None:
            self._follower.tracer.now = self._now
        self._random = random
        self._journaled = journal is not None
        self._by_name = {pool.name: pool for pool in self._pools}
        drivers = [
            GroupDriver(
                pool.group,
                pool=pool.name,
                connector=pool.connector_config,
                dial=pool.dial,
                on_call=None if self._follower is None or not _hears(self._follower) else self._follower.called,
                upkeep=Upkeep(
                    ready_command=pool.instance_ready_command,
                    ready_hook=pool.ready_hook,
                    heartbeat_command=pool.instance_heartbeat_command,
                    heartbeat_timeout=pool.heartbeat_timeout,
                    notice_interval=pool.notice_interval,
                ),
            )
            for pool in self._pools
        ]
        kinds = {**PLAN_RECORDS, **LEDGER_RECORDS, **IDLING_RECORDS}
        self._runtime: Runtime[Core] = Runtime(
            drivers,
            self._build,
            self._perform,
            kinds=kinds,
            urgent=lambda action: isinstance(action, Break),
            on_end=self._ended,
            on_commit=None if self._meter is None else self._meter.histograms["journal_commit"].observe,
            on_owned=self._enter_metered,
            journal=journal,
            clock=clock,
            observe_only=observe_only,
        )
        of_leases = self._observers
        if self._follower is not None:  # it follows leases itself, and an event for each would cost more than it does
            of_leases = Observers([each for each in self._observers.observers if not _is_traced(each)])
        self._leases = Leases(self._runtime, of_leases, self._meter, self.tracer)

    @property
    def tracer(self) -> Tracer | None:
        """Where what happens to jobs is noted; None: nobody follows them."""
        return None if self._follower is None else self._follower.tracer

    @property
    def use_meter(self) -> UseMeter | None:
        """Where whoever runs jobs says what they used; None: nobody looks."""
        return None if self._meter is None else self._meter.uses

    # --- slots -------------------------------------------------------------------------------------------

    async def acquire_lease(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
        pools: Sequence[str] | None = None,
    ) -> Lease:
        """Wait for a slot.

        Args:
            key: Names the work. A reservation under the same key is used up.
            timeout: Seconds to wait. None: the scaler's `acquire_timeout`; infinite: for ever.
            expected_duration: Seconds that the work takes at the most, if that is known: work that would
                be done in time stays on an instance that the cloud announced to take away.
            place: `Lease.place` of an earlier lease of this scaler, one that was lost for instance: the work goes back
                to where it was in the queue. None: to its end. A reservation keeps its own place.
            persistent: Whether the lease outlives this scaler, unless it is released: if the scaler ends while it is
                held, killed or left without deleting the instances, the slot stays acquired and its instance as it is.
                The next scaler lists the lease as `detached` until somebody takes it up with `reattach`. Without a
                journal, nothing outlives the scaler.
            pools: Names of the pools of which the slot may be, in the order in which they are preferred. None: any, in
                the order of the scaler. Others who came later pass with slots of other pools.

        Returns:
            The lease, to be released by the caller.

        Raises:
            KeyInUse: The key holds a slot, or waits for one.
            NoCapacity: There was no slot in time, or there will be none.
            ValueError: *pools* are none of the scaler's.
        """
        check_wait(key, timeout, expected_duration)
        check("persistent", persistent, bool)
        bound_to = self._known_pools(pools)
        if self._runtime.ended:
            raise NoCapacity("the scaler has ended")
        step = self._core.acquire(key, self._now(), expected_duration, place, persistent=persistent, pools=bound_to)
        given = self._acquire_timeout if timeout is None else timeout
        setting = " (instance_acquire_timeout)" if timeout is None else ""
        return await self._leases.wait(key, step, given, setting)

    def _known_pools(self, pools: Sequence[str] | None) -> tuple[str, ...]:
        """The pools that are meant, each once; empty: any."""
        if pools is None:
            return ()
        wanted = tuple(dict.fromkeys([pools] if isinstance(pools, str) else pools))
        if not wanted or not set(wanted) <= self._by_name.keys():
            raise ValueError(f"pools: expected names among {', '.join(self._by_name)}, found {as_given(pools)}")
        return wanted if len(self._by_name) > 1 else ()

    @asynccontextmanager
    async def acquire(
        self,
        key: str,
        *,
        timeout: float | None = None,
        expected_duration: float = math.inf,
        place: int | None = None,
        persistent: bool = False,
        pools: Sequence[str] | None = None,
    ) -> AsyncIterator[Lease]:
        """Hold a slot for as long as the body runs. Arguments and errors are those of `acquire_lease`.

        Raises:
            LeaseLost: The instance was lost, and the body cancelled.
        """
        lease = await self.acquire_lease(
            key,
            timeout=timeout,
            expected_duration=expected_duration,
            place=place,
            persistent=persistent,
            pools=pools,
        )
        async with lease.hold():
            yield lease

    async def resume(self, key: str, *, timeout: float = math.inf) -> Lease:
        """Take up a lease that was suspended, perhaps by an earlier manager: the same slot on the same instance.

        Args:
            key: What it was acquired under.
            timeout: Seconds to wait for the instance to be ready.

        Raises:
            LeaseExpired: It was suspended for longer than its `ttl`; a `NotSuspended`.
            NotSuspended: No lease is suspended under the key.
            LeaseLost: Its instance was lost meanwhile.
            NoCapacity: The instance was not ready in time; the lease stays suspended.
        """
        check_wait(key, timeout)
        step = self._core.resume(key)
        return await self._leases.wait(key, step, timeout, held=self._core.ledger.leases[key].id)

    @property
    def detached(self) -> Sequence[DetachedLease]:
        """Persistent leases that an earlier scaler left, and that nobody has reattached yet; oldest first.

        They count as acquired. Each is given up when its `reattach_by` has passed.
        """
        return self._core.ledger.list_detached()

    async def reattach(self, key: str, *, timeout: float = math.inf) -> Lease:
        """Take up a persistent lease that an earlier scaler left: the same slot on the same instance.

        While this waits, the lease is not given up.

        Args:
            key: What it was acquired under.
            timeout: Seconds to wait for the instance to be ready.

        Raises:
            NotDetached: No lease is detached under the key; `held` says whether somebody has it already.
            LeaseLost: It was detached, and its instance was lost, or nobody has reattached it in time.
            NoCapacity: The instance was not ready in time, and the lease stays detached; or the scaler is ending.
        """
        check_wait(key, timeout)
        if self._runtime.ended:
            raise NoCapacity("the scaler has ended")
        step = self._core.reattach(key)
        return await self._leases.wait(key, step, timeout, held=self._core.ledger.leases[key].id)

    async def replace(self, key: str, *, why: str = "", timeout: float | None = None) -> Lease:
        """Give a lease's slot back for one on another instance: under the same key, from the same place in the queue.

        The old instance gets no more work, and is replaced once it is free, as after `Lease.mark_suspect`; what others
        run there goes on. The old lease has ended as if it had been released: nothing is broken, so call this from
        where the work was. It may be suspended, with an instance that does not come back.

        Args:
            key: What the lease was acquired under.
            why: What is wrong with the old instance, in a few words.
            timeout: Seconds to wait for the other. None: the scaler's `acquire_timeout`; infinite: for ever.

        Returns:
            The new lease, to be released by the caller.

        Raises:
            NotHeld: No lease is held or suspended under the key.
            KeyInUse: Somebody waits to resume it.
            NoCapacity: There was no slot in time, and the key holds none any more; or there will be none, and the
                lease stays as it is.
        """
        check_wait(key, timeout)
        check("why", why, str)
        if self._runtime.ended:
            raise NoCapacity("the scaler has ended")
        why = one_line(why) or REPLACED
        old = self._core.ledger.leases.get(key)
        step = self._core.replace(key, self._now(), why)
        if old is not None:
            self._leases.note_replacement(old.id, why)
        given = self._acquire_timeout if timeout is None else timeout
        setting = " (instance_acquire_timeout)" if timeout is None else ""
        return await self._leases.wait(key, step, given, setting)

    def attempts(
        self, key: str, *, tries: int = 3, timeout: float | None = None, expected_duration: float = math.inf
    ) -> Attempts:
        """Try a body on another instance each time that it loses one.

        ::

            async for attempt in scaler.attempts("job-1"):
                async with attempt as lease:
                    ...

        What the body did before its instance was lost has happened: it must be fit to begin again. The loop ends with
        the first try that keeps its instance to the end, and with any error but `LeaseLost`.

        Args:
            key: Names the work, the same for all tries.
            tries: How many at the most, at least 1.
            timeout: Seconds that each try waits for a slot, as `acquire_lease` has it.
            expected_duration: Seconds that a try takes at the most, as `acquire_lease` has it.

        Raises:
            LeaseLost: From the last try, if that lost its instance, too.
        """
        check_wait(key, timeout, expected_duration)

        def make(number: int, is_last: bool) -> Attempt:  # noqa: FBT001  (for `Tries` alone)
            acquired = self.acquire(key, timeout=timeout, expected_duration=expected_duration)
            return Attempt(key, number, acquired, is_last=is_last)

        return Attempts(Tries(make, tries))

    async def reserve(self, key: str, *, timeout: float | None = None) -> None:
        """Keep a slot for an acquire to come under *key*; give it up with `unreserve`.

        Args:
            key: What the acquire will be made under.
            timeout: Seconds to wait until there is a slot to keep, infinite: for ever. None: answer at once.

        Raises:
            KeyInUse: The key holds a slot, waits for one, or is reserved.
            NoCapacity: All is taken, and was for as long as that. `possible`: more slots are coming or could come, ask
                again soon; else one has to be given back first. `capacity` has the slots by state.
        """
        check_wait(key, timeout)
        try:
            await self._reserve(key, timeout)
        except NoCapacity as error:
            self._count("reserve_available_capacity_failure" if error.possible else "reserve_iop_capacity_failure")
            raise
        self._count("reserve")

    async def _reserve(self, key: str, timeout: float | None) -> None:
        """Do so."""
        if timeout is None:
            self._take(self._core.reserve(key, self._now()))
            return
        refusal: NoCapacity | None = None
        with anyio.move_on_after(timeout):
            while not self._runtime.ended:
                try:
                    self._take(self._core.reserve(key, self._now()))
                except NoCapacity as error:
                    if self._core.ledger.shut:
                        raise
                    refusal = error
                else:
                    return
                await self._runtime.wait_for_change()
            raise NoCapacity("the scaler has ended")
        if refusal is not None:
            why = f"no slot could be reserved within {format_duration(timeout)}: {refusal}"
            raise NoCapacity(why, possible=refusal.possible, capacity=refusal.capacity)

    async def unreserve(self, key: str) -> None:
        """Give a reservation up; nothing happens if there is none."""
        check("key", key, str)
        waiter = self._core.ledger.waiter(key)
        if waiter is not None and waiter.reserves:
            self._count("unreserve")
        self._take(self._core.unreserve(key, self._now()))

    async def cordon(self, instance: str, why: str = "") -> None:
        """Give an instance no new work, until `uncordon`, also over restarts. What runs there goes on.

        It counts as capacity no more, so another takes its place if one is needed; idle for the policy's `idle_time`,
        it is removed, unless it is retained.

        Args:
            instance: Its id, as leases and `instances` have it; ``pool/id`` where several pools have one of that id.
            why: For people to read.

        Raises:
            NoSuchInstance: It is not known, or is being removed already.
        """
        check("instance", instance, str)
        check("why", why, str)
        self._take(self._core.cordon(instance, why, self._now()))

    async def uncordon(self, instance: str) -> None:
        """Give it work again; nothing happens if it is not cordoned. Arguments and errors as `cordon`."""
        check("instance", instance, str)
        self._take(self._core.uncordon(instance, self._now()))

    async def retain(self, instance: str, why: str = "") -> None:
        """Do not delete an instance, until `unretain`, also over restarts and on leaving the scaler.

        Neither idleness nor its age or uses, nor that it is unhealthy or the scaler ends, has it deleted. It is given
        work as long as it would be, counts towards `max_instances`, and may still be lost. Arguments and errors as
        `cordon`.
        """
        check("instance", instance, str)
        check("why", why, str)
        self._take(self._core.retain(instance, why, self._now()))

    async def unretain(self, instance: str) -> None:
        """Let it be deleted: at once, if there was a reason meanwhile. Arguments and errors as `cordon`."""
        check("instance", instance, str)
        self._take(self._core.unretain(instance, self._now()))

    async def configure(self, *, policies: Sequence[Policy]) -> None:
        """Change the policies while running. All other settings need a new scaler.

        Args:
            policies: Replace those given before; the last that matches holds. None: nothing is kept idle.
        """
        self._take(self._core.configure(all_are(Policy, policies, "policies")))

    # --- looking -----------------------------------------------------------------------------------------

    async def capacity(self) -> Capacity:
        """Slots by state, and who waits."""
        return self._core.capacity()

    async def instances(self) -> "Sequence[InstanceView]":
        """All known instances, oldest first, for people to look at."""
        from taskscaler.diagnose._explain import view_instances

        return view_instances(self._core)

    @property
    def delete_instances_on_shutdown(self) -> bool:
        """Whether leaving the scaler removes every instance; may be changed until then."""
        return self._delete_on_shutdown

    @delete_instances_on_shutdown.setter
    def delete_instances_on_shutdown(self, delete: bool) -> None:
        check("delete_instances_on_shutdown", delete, bool)
        self._delete_on_shutdown = delete and not self._observe_only

    @property
    def groups(self) -> Mapping[str, GroupInfo]:
        """What each group said of itself when it was opened, by the names of the pools."""
        return {name: driver.info for name, driver in self._runtime.drivers.items()}

    @overload
    async def explain(self) -> "Explanation": ...
    @overload
    async def explain(self, *, instance: str) -> "InstanceExplanation": ...
    @overload
    async def explain(self, *, key: str) -> "KeyExplanation": ...
    async def explain(
        self, *, instance: str | None = None, key: str | None = None
    ) -> "Explanation | InstanceExplanation | KeyExplanation":
        """Why there is what there is, and what will happen next if nothing else happens.

        The answers are values: `str()` of them is for people, `as_dict()` for JSON. Costs O(n) in instances.

        Args:
            instance: Describe this one, by its id or, where pools use the same ids, as ``pool/id``: why it is there,
                still there, or gone.
            key: Describe where this job stands.

        Returns:
            Without arguments, why there is (no) capacity. What is asked for need not be known.
        """
        if instance is not None and key is not None:
            raise ValueError("pass an instance or a key, not both")
        from taskscaler.diagnose._explain import explain
        from taskscaler.diagnose._explain_instance import explain_instance
        from taskscaler.diagnose._explain_key import explain_key
        from taskscaler.diagnose._snapshot import Snapshot

        if instance is not None:
            return explain_instance(Snapshot(self._core, self._now()), instance)
        if key is not None:
            return explain_key(Snapshot(self._core, self._now()), key)
        return explain(Snapshot(self._core, self._now()))

    # --- ending ------------------------------------------------------------------------------------------

    async def drain(self, timeout: float = math.inf) -> bool:
        """Hand out no more slots, refuse those who wait, and wait until no lease is held.

        Slots that stay are waited for until they are clean, too; detached leases, which nobody holds, are not waited
        for.

        Args:
            timeout: Seconds to wait; nothing is broken after them.

        Returns:
            Whether all leases have ended.
        """
        check("timeout", timeout, Duration, least=0, endless=True)
        self._take(self._core.stop_handing_out("the scaler is draining"))
        with anyio.move_on_after(timeout):
            await self._leases.wait_while(self._in_use)
        return not self._core.ledger.held

    def _in_use(self) -> int:
        """Slots that a drain waits for; those of instances that are to go need not be clean."""
        ledger = self._core.ledger
        return ledger.held + (0 if self._delete_on_shutdown else ledger.cleaning)

    async def stop(self) -> None:
        """Hand out no more slots, refuse those who wait, and break every lease.

        Suspended and persistent ones survive, unless leaving the scaler deletes their instances: nobody holds them any
        more, and the next scaler goes on with them.
        """
        self._take(self._core.stop_handing_out("the scaler was stopped"))
        self._take(self._core.break_all("the scaler was stopped", self._now(), all_too=self._delete_on_shutdown))

    def __enter__(self) -> NoReturn:
        """Refuse: this scaler is for coroutines."""
        refuse_with("with", "async with", "taskscaler.sync.Taskscaler")

    def __exit__(self, *_: object) -> None:
        """Belong to `__enter__`, which is never left."""

    async def __aenter__(self) -> Self:
        """Open groups and journal, and see each group once. Raises as `fleeting.runtime.Runtime`."""
        self._all_removed = anyio.Event()
        self._stack = AsyncExitStack()
        try:
            for observer in self._all_observers:
                if isinstance(observer, AbstractAsyncContextManager) and not _is_metered(observer):
                    await self._stack.enter_async_context(observer)
            await self._stack.enter_async_context(self._runtime)
        except BaseException as error:
            await self._stack.__aexit__(type(error), error, error.__traceback__)
            raise
        if self._observe_only:  # what the first views led to is to be seen from the first moment
            self._take(self._core.tick(self._now()))
        return self

    async def _enter_metered(self, stack: AsyncExitStack) -> None:
        """Have metrics shown once the fleet is ours: who may not have it is told so, not that an address is taken."""
        for observer in self._all_observers:
            if isinstance(observer, AbstractAsyncContextManager) and _is_metered(observer):
                await stack.enter_async_context(observer)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Stop, delete the instances unless they are to stay, and close everything."""
        with anyio.CancelScope(shield=True):
            await self.stop()
            if self._delete_on_shutdown and not self._runtime.ended:
                await self._remove_instances()
        return await self._stack.__aexit__(kind, error, trace)

    async def _remove_instances(self) -> None:
        """Ask for all deletions, and wait until all are gone, within the retries, but for those that are retained."""
        bound = max(pool.shutdown_deletion_interval * (pool.shutdown_deletion_retries + 1) for pool in self._pools)
        self._take(self._core.remove_all(self._now()))
        with anyio.move_on_after(bound + REMOVAL_GRACE):
            await self._all_removed.wait()
        for plan in self._core.plans.values():
            retained = plan.retained
            if retained:
                log.warning("instances_retained", extra={"pool": plan.pool, "instances": retained})
            if plan.total > len(retained):
                left = [instance for instance in plan.instances if instance not in retained]
                unfilled = plan.outstanding
                log.error("instances_left", extra={"pool": plan.pool, "instances": left, "unfilled_requests": unfilled})

    # --- inside ------------------------------------------------------------------------------------------

    def _count(self, operation: str) -> None:
        """Count what was done with a slot."""
        if self._meter is not None:
            self._meter.tasks[operation] += 1

    def _look(self) -> Figures | None:
        """How it stands, for metrics; None while it is not open. O(pools)."""
        return figures_of(self._runtime, self._now()) if hasattr(self._runtime, "core") else None

    @property
    def _core(self) -> Core:
        if not hasattr(self._runtime, "core"):
            raise TaskscalerError("the scaler is not open yet; enter it with `async with` first")
        return self._runtime.core

    def _now(self) -> float:
        return self._runtime.clock.now()

    def _take(self, step: Step) -> None:
        self._runtime.take(step)

    def _build(self, infos: Mapping[str, GroupInfo], recovered: Recovered, now: float) -> Core:
        """The core over one plan per pool."""
        observing = self._observe_only
        plans = {
            pool.name: build_plan(
                pool,
                infos[pool.name],
                recovered,
                now,
                random=self._random,
                observing=observing,
                journaled=self._journaled,
            )
            for pool in self._pools
        }
        return Core(
            self._pools,
            plans,
            self._policies,
            recovered.records,
            now,
            keep_used=self._keep_used,
            observing=observing,
            watched=bool(self._observers),
            meter=self._meter,
            max_instances=self._max_instances,
            reattach_timeout=self._reattach_timeout,
            journaled=self._journaled,
        )

    def _perform(
        self,
        action: Check
        | Deliver
        | Break
        | MarkUnhealthy
        | Clean
        | Expired
        | Refuse
        | InstanceLost
        | AllRemoved
        | InstanceEvent
        | LeaseEvent
        | DecisionEvent,
    ) -> None:
        """Do what the ledger wants; the groups' actions never come here."""
        match action:
            case Check(lease):
                self._take(self._core.check(lease, self._now()))
            case Deliver(lease):
                self._leases.deliver(lease)
            case Break(lease, loss):
                self._leases.lose(lease, loss)
            case Expired(lease):
                self._leases.note_expiry(lease)
            case Clean():
                self._runtime.start_soon(self._clean, action)
            case MarkUnhealthy(lease, why):
                self._leases.mark_unhealthy(lease, why)
            case Refuse(key, why):
                self._leases.refuse(key, why)
            case InstanceLost(node, loss):
                log.warning("instance_lost", extra={"instance": node, "why": str(loss)})
            case AllRemoved():
                self._all_removed.set()
            case _:
                self._observers.notify(action)

    async def _clean(self, clean: Clean) -> None:
        """Clean a slot after its last use, if that is still wanted, and let the core know what came of it."""
        if self._core.ledger.wants(clean):
            pool, instance = self._by_name[clean.pool], clean.instance
            hook = partial(pool.cleanup_hook, slot=clean.slot, key=clean.key) if pool.cleanup_hook else None
            env = {"TASKSCALER_INSTANCE": instance, "TASKSCALER_SLOT": str(clean.slot), "TASKSCALER_KEY": clean.key}
            failure = await self._runtime.drivers[pool.name].calls.clean(
                instance, pool.instance_cleanup_command, hook, env=env, timeout=pool.instance_cleanup_timeout
            )
            self._take(self._core.cleaned(clean, failure, self._now()))
        self._leases.note_end()

    def _ended(self) -> None:
        """Nothing more will be performed."""
        self._leases.end_all("the scaler has ended")
        self._all_removed.set()


def _is_metered(observer: object) -> bool:
    return isinstance(observer, Metered)


def _hears(observer: object) -> bool:
    """Whether events are of any use to it."""
    return getattr(observer, "hears", True) is not False


def _is_traced(observer: object) -> bool:
    return isinstance(observer, Traced)


def find_suspended(scaler: Taskscaler, key: str) -> tuple[int, bool] | None:
    """Give the place in the queue that a suspended lease was served from, and whether it is persistent.

    For the daemon. None: nothing sleeps under the key.
    """
    lease = scaler._core.ledger.leases.get(key)  # noqa: SLF001  (this module's own)
    return None if lease is None or not lease.suspended else (lease.ticket, lease.persistent)


def find_waiting(scaler: Taskscaler, among: Callable[[str], bool]) -> "list[WaiterView]":
    """Give those who wait for a slot, first come first, as far as their keys are wanted: for the daemon."""
    from taskscaler.diagnose._queue import view_queue
    from taskscaler.diagnose._snapshot import Snapshot

    return view_queue(Snapshot(scaler._core, scaler._now()), among)  # noqa: SLF001  (this module's own)


def bound_detached(scaler: Taskscaler, key: str, by: float) -> None:
    """Keep a detached lease until then, in seconds since the epoch, whatever `reattach_timeout` is; infinite: for ever.

    For the daemon, which sees to it that each such lease ends. Nothing happens if the lease is not detached.
    """
    scaler._take(scaler._core.bound_detached(key, by))  # noqa: SLF001  (this module's own)
