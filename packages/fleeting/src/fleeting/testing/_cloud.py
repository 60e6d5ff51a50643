"""An in-memory cloud: what exists in it, what it shows, and what befalls it as time passes.

Nothing runs in the background. Every machine carries the times of its turning points, and what the cloud
shows is worked out from them whenever it is asked::

    asked_at ──► exists_at ──► shown_at ──► runs_at ──► ended_at ─► gone_at ──► forgotten_at
    (a request)  (is billed)   creating     running     deleting    deleted     (absent)

    suspend_at ──► suspended_at ──► resume_at ──► resumed_at      while it runs, any number of times
    suspending     suspended        resuming      running

So it is exact under virtual time, has no tasks to clean up, and outlives the `FakeGroup` objects that open it,
as a cloud outlives its managers.
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Self

import anyio
from attrs import define, field

from fleeting._errors import CapacityUnavailable, GroupRefused
from fleeting._types import (
    Capability,
    Clock,
    Completed,
    Mark,
    Notice,
    NoticeKind,
    Observation,
    Observed,
    Problem,
    ProblemKind,
    State,
)
from fleeting.testing._faults import DecreaseFault, IncreaseFault, Scripts, SuspendFault, UpdateFault
from fleeting.testing._machine import Bill, Call, Command, Machine, Method

OnCommand = Callable[[str, Command], Awaitable[Completed]]
"""Plays the instance of that id: takes a command and says what comes of it."""


async def succeed(instance: str, command: Command) -> Completed:  # noqa: ARG001  (an `OnCommand`)
    """Play an instance on which every command succeeds without a word."""
    return Completed(exit_status=0)


@define(kw_only=True, eq=False)
class FakeCloud:
    """The cloud that `FakeGroup` manages: how it behaves, what it holds, and what a test does to it."""

    identity: str = "fake/group"
    """What the group says that it is."""

    max_size: int | None = None
    """The cloud's own ceiling."""

    capabilities: frozenset[Capability] = frozenset({Capability.NAMED_CREATE})
    """The fake knows all but `PRICES`."""

    offering: str | None = "zone-a/small"
    """What new instances are bought as."""

    boot_time: float = 0.0
    """Seconds from existing to running."""

    appear_after: float = 0.0
    """Seconds from existing to being shown by `update`."""

    delete_time: float = 0.0
    """Seconds from an accepted deletion to being gone."""

    linger: float = 0.0
    """Seconds for which a deleted instance is still shown, as deleted."""

    suspend_time: float = 0.0
    """Seconds from an accepted suspension to being suspended."""

    resume_time: float = 0.0
    """Seconds from an accepted resumption to running again."""

    notice_probe: str | None = None
    """A command that, run on an instance, prints its notices; `on_command` is not asked then."""

    latency: Mapping[Method, float] = field(factory=dict)
    """Seconds that a call of the method takes; 0 where it is not named."""

    on_command: OnCommand = succeed
    """What the commands on all instances do."""

    faults: Scripts = field(factory=Scripts, init=False)
    """What goes wrong with which call."""

    calls: list[Call] = field(factory=list, init=False)
    """Every call so far, in order."""

    commands: list[tuple[str, Command]] = field(factory=list, init=False)
    """Every command that was run, with its instance, oldest first."""

    notices_given: list[Notice] = field(factory=list, init=False)
    """Every notice that was given, oldest first."""

    owner_mark: Mark | None = field(default=None, init=False)
    """Who last put a mark on the group and has not taken it away, expired or not."""

    problems: list[Problem] = field(factory=list, init=False)
    """What `update` reports as problems; a test may change it."""

    machines: dict[str, Machine] = field(factory=dict, init=False)
    """By id: requests, instances, and what has become of them. To be read, not changed."""

    clock: Clock | None = field(default=None, init=False)
    """Set when a group is opened; what was there before is as old as can be."""

    _ids_given: int = field(default=0, init=False)
    _answers: dict[str, int] = field(factory=dict, init=False)
    """What was accepted, by intent."""

    _stock_out: Problem | None = field(default=None, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)

    # --- what it holds -----------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the epoch; minus infinity before a group was opened."""
        return self.clock.now() if self.clock is not None else -math.inf

    @property
    def alive(self) -> frozenset[str]:
        """The instances that exist, whether or not they are shown."""
        return frozenset(machine.id for machine in self.machines.values() if machine.exists(self.now))

    @property
    def size(self) -> int:
        """Instances that exist and unfilled requests, which together may not be more than `max_size`."""
        return sum(self.now < machine.gone_at for machine in self.machines.values())

    @property
    def billed(self) -> Sequence[Bill]:
        """Every instance that ever existed, oldest first."""
        existed = [machine for machine in self.machines.values() if machine.exists_at <= self.now]
        return [
            Bill(
                instance=machine.id,
                offering=machine.offering,
                intent=machine.intent,
                since=machine.exists_at,
                until=machine.gone_at if machine.gone_at <= self.now else None,
            )
            for machine in sorted(existed, key=lambda machine: machine.exists_at)
        ]

    def find(self, instance: str) -> Machine | None:
        """The instance, if it exists and is shown."""
        machine = self.machines.get(instance)
        shown = machine is not None and machine.exists(self.now) and machine.state(self.now) is not None
        return machine if shown else None

    # --- what managers ask of it -------------------------------------------------------------------------

    def view(self, fault: UpdateFault) -> Observation:
        """What it shows now."""
        shown = {instance: self._observe(machine) for instance, machine in self.machines.items()}
        made_up = {instance: Observed(state=state) for instance, state in fault.states.items()}
        instances = {
            instance: observed
            for instance, observed in {**shown, **made_up}.items()
            if observed is not None and instance not in fault.hide
        }
        return Observation(instances, tuple(self.problems), self.max_size)

    def create(self, wanted: int, intent: str, fault: IncreaseFault) -> int:
        """Take an order for so many instances; returns how many are said to be accepted."""
        if Capability.NAMED_CREATE in self.capabilities and intent in self._answers:
            return self._answers[intent]
        room = wanted if self.max_size is None else max(0, self.max_size - self.size)
        accepted = min(wanted, room, wanted if fault.accept is None else fault.accept)
        for _ in range(accepted + fault.surplus):
            machine = self._add(intent, math.inf if self._stock_out is not None else self.now + fault.late)
            machine.broken = fault.broken
            machine.runs_at = math.inf if fault.hang else machine.runs_at
        if accepted:
            self._answers[intent] = accepted
        return accepted + fault.overstate

    def delete(self, instances: Sequence[str], fault: DecreaseFault) -> Sequence[str]:
        """Begin to delete those that exist; returns those that are said to be accepted."""
        accepted = instances[: fault.accept]
        for machine in [self.machines[instance] for instance in accepted if instance in self.machines]:
            if not fault.ignore and self.now < min(machine.ended_at, machine.gone_at):
                machine.ended_at = self.now
                self._leave(machine, math.inf if fault.hang or machine.hangs else self.now + self.delete_time)
        return accepted

    def withdraw(self, wanted: int) -> int:
        """Take back requests that are not filled, newest first; returns how many."""
        unfilled = [machine.id for machine in self.machines.values() if machine.exists_at > self.now]
        taken = unfilled[::-1][:wanted]
        for instance in taken:
            del self.machines[instance]
        return len(taken)

    def suspend(self, instances: Sequence[str], fault: SuspendFault) -> Sequence[str]:
        """Begin to suspend those that run; returns those that are said to be accepted."""
        accepted = self._those_that_are({State.RUNNING, State.SUSPENDING, State.SUSPENDED}, instances)[: fault.accept]
        for machine in accepted:
            if machine.state(self.now) is State.RUNNING and not fault.ignore:
                machine.suspend_at = self.now
                machine.suspended_at = math.inf if fault.hang else self.now + self.suspend_time
                machine.resume_at = machine.resumed_at = math.inf
                self.cut(machine.id)
        return [machine.id for machine in accepted]

    def resume(self, instances: Sequence[str], fault: SuspendFault) -> Sequence[str]:
        """Begin to let those that are suspended run again; returns those that are said to be accepted.

        Raises:
            CapacityUnavailable: It has run out.
        """
        if self._stock_out is not None:
            raise CapacityUnavailable(self._stock_out.message)
        accepted = self._those_that_are({State.SUSPENDED, State.RESUMING, State.RUNNING}, instances)[: fault.accept]
        for machine in accepted:
            if machine.state(self.now) is State.SUSPENDED and not fault.ignore:
                machine.resume_at = self.now
                machine.resumed_at = math.inf if fault.hang else self.now + self.resume_time
        return [machine.id for machine in accepted]

    def mark(self, owner: str, until: float | None) -> None:
        """Put the owner's mark on the group, renew it, or take it away.

        Raises:
            GroupRefused: Another's is there, and has not expired.
        """
        mark = self.owner_mark
        if mark is not None and mark.owner != owner:
            if until is None:
                return
            if self.now < mark.until:
                raise GroupRefused(
                    f"{self.identity} is managed by {mark.owner} until {mark.until:.0f}; stop that manager first"
                )
        self.owner_mark = Mark(owner=owner, until=until) if until is not None else None

    async def obey(self, instance: str, command: Command) -> Completed:
        """Play the instance: answer the probe for notices, and leave all else to `on_command`."""
        if self.notice_probe is None or command.command != self.notice_probe:
            return await self.on_command(instance, command)
        mine = [notice for notice in self.notices_given if notice.instance == instance and notice.deadline > self.now]
        lines = [f"{notice.kind.value} {notice.deadline - self.now:.0f}\n" for notice in mine]
        return Completed(exit_status=0, stdout="".join(lines).encode())

    def notices(self) -> AsyncIterator[Notice]:
        """Yield the notices whose deadline is not past, and those to come."""
        return _Notices(self)

    # --- what a test does to it --------------------------------------------------------------------------

    def launch(self, number: int = 1) -> list[str]:
        """Let instances exist that no manager asked for; returns their ids."""
        return [self._add(None, self.now).id for _ in range(number)]

    def vanish(self, instance: str) -> None:
        """Let it be gone at once and without a trace, as if somebody else had terminated it."""
        machine = self.machines[instance]
        machine.gone_at = machine.forgotten_at = self.now
        self.notify()

    def come_back(self, instance: str) -> None:
        """Let a gone instance exist again, as if the views without it had been wrong."""
        machine = self.machines[instance]
        machine.ended_at = machine.gone_at = machine.forgotten_at = math.inf

    def fail(self, instance: str) -> None:
        """Let it be shown as failed from now on."""
        machine = self.machines[instance]
        machine.broken = True
        machine.runs_at = min(machine.runs_at, self.now)

    def hang(self, instance: str) -> None:
        """Let it stay in creating or deleting where it is there, and else in deleting once it gets there."""
        machine = self.machines[instance]
        machine.hangs = True
        if self.now >= machine.ended_at:
            self._leave(machine, math.inf)
        elif self.now < machine.runs_at:
            machine.runs_at = math.inf

    def release(self, instance: str) -> None:
        """Let an instance that hangs go on: it runs, is suspended, or is gone, now."""
        machine = self.machines[instance]
        machine.hangs = False
        if self.now >= machine.ended_at:
            self._leave(machine, min(machine.gone_at, self.now))
        machine.runs_at = min(machine.runs_at, self.now)
        if self.now >= machine.suspend_at:
            machine.suspended_at = min(machine.suspended_at, self.now)
        if self.now >= machine.resume_at:
            machine.resumed_at = min(machine.resumed_at, self.now)

    def sicken(self, instance: str, why: str = "it does not answer") -> None:
        """Let its heartbeats fail until `heal`."""
        self.machines[instance].sickness = why

    def heal(self, instance: str) -> None:
        """Let its heartbeats pass again."""
        self.machines[instance].sickness = ""

    def cut(self, instance: str) -> None:
        """Break every open connection to the instance, which itself lives on."""
        self.machines[instance].cuts += 1
        self.notify()

    def notice(self, instance: str, *, in_seconds: float, kind: NoticeKind = NoticeKind.PREEMPTION) -> Notice:
        """Announce that the instance will go; if it is preempted, it does, then and without a trace."""
        notice = Notice(instance=instance, deadline=self.now + in_seconds, kind=kind)
        if kind is NoticeKind.PREEMPTION:
            machine = self.machines[instance]
            machine.gone_at = min(machine.gone_at, notice.deadline)
            machine.forgotten_at = min(machine.forgotten_at, notice.deadline)
        self.notices_given.append(notice)
        self.notify()
        return notice

    def run_out(self, message: str = "no capacity for this offering") -> Problem:
        """Have no stock: requests are accepted, but stay unfilled, and `update` says so, until `restock`."""
        if self._stock_out is None:
            self._stock_out = Problem(
                kind=ProblemKind.CAPACITY, message=message, since=self.now, offering=self.offering
            )
            self.problems.append(self._stock_out)
        return self._stock_out

    def restock(self) -> None:
        """Have stock again: what waits for it begins to exist now."""
        if self._stock_out is not None:
            self.problems.remove(self._stock_out)
            self._stock_out = None
        for machine in self.machines.values():
            if machine.exists_at == math.inf:
                self._begin(machine, self.now)

    # --- waiting -----------------------------------------------------------------------------------------

    async def sleep(self, seconds: float) -> None:
        """Let so much of the cloud's time pass; other tasks run even if it is none."""
        if self.clock is None:
            raise RuntimeError("the fake group was used before it was opened; call init first")
        if seconds > 0:
            await self.clock.sleep_until(self.now + seconds)
        else:
            await anyio.lowlevel.checkpoint()

    async def wait_change(self, until: float) -> None:
        """Return when something was done to the cloud, or at that time."""
        changed = self._changed
        if until == math.inf:  # most who wait have no time to wait for, and a task group costs ten times an event
            await changed.wait()
            return
        async with anyio.create_task_group() as tasks:

            async def wake() -> None:
                await self.sleep(until - self.now)
                tasks.cancel_scope.cancel()

            tasks.start_soon(wake)
            await changed.wait()
            tasks.cancel_scope.cancel()

    def notify(self) -> None:
        """Wake all who wait for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    # --- bookkeeping -------------------------------------------------------------------------------------

    def _new_id(self) -> str:
        """An id, never one twice."""
        self._ids_given += 1
        return f"i-{self._ids_given}"

    def _add(self, intent: str | None, exists_at: float) -> Machine:
        """Take in a new machine."""
        machine = Machine(id=self._new_id(), intent=intent, offering=self.offering, exists_at=0, shown_at=0, runs_at=0)
        self._begin(machine, exists_at)
        self.machines[machine.id] = machine
        return machine

    def _those_that_are(self, states: set[State], instances: Sequence[str]) -> list[Machine]:
        """Of these, the instances that exist and are in such a state."""
        machines = [self.machines[instance] for instance in instances if instance in self.machines]
        return [machine for machine in machines if machine.exists(self.now) and machine.state(self.now) in states]

    def _begin(self, machine: Machine, exists_at: float) -> None:
        """Settle when it exists, and all that follows from it."""
        machine.exists_at = exists_at
        machine.shown_at = exists_at + self.appear_after
        machine.runs_at = exists_at + self.boot_time

    def _leave(self, machine: Machine, gone_at: float) -> None:
        """Settle when it is gone, and wake whoever waits for that."""
        machine.gone_at = gone_at
        machine.forgotten_at = gone_at + self.linger
        self.notify()

    def _observe(self, machine: Machine) -> Observed | None:
        """What is shown of it."""
        state = machine.state(self.now)
        if state is None:
            return None
        return Observed(
            state=state,
            created_at=machine.exists_at if math.isfinite(machine.exists_at) else None,
            intent=machine.intent if Capability.NAMED_CREATE in self.capabilities else None,
            offering=machine.offering,
        )


@define
class _Notices:
    """The notices as they come. No generator: those have to be closed by whoever stops listening."""

    _cloud: FakeCloud
    _heard: int = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Notice:
        while True:
            for notice in self._cloud.notices_given[self._heard :]:
                self._heard += 1
                if notice.deadline > self._cloud.now:
                    return notice
            await self._cloud.wait_change(until=math.inf)
