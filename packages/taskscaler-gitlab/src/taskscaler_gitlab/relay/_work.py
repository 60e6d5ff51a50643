"""One job of GitLab's that a sidecar runs: the runtime around `Relay`, from a slot to the last word."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Protocol

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from fleeting import Clock, ConnectError, Connection, FleetingError, Unreachable, Unsupported, Usage
from fleeting.errors import CommandLost, NameUnknown
from fleeting.plugins import one_line
from gitlab_jobs import Answer, End, Job, Outcome
from gitlab_jobs.client import Reporting, reporting
from taskscaler import Lease, LeaseLost, NoCapacity, Taskscaler
from taskscaler.tracing import SpanContext, Trace, read_context
from taskscaler_gitlab._names_of_traces import brings_context
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._traces import followed_try
from taskscaler_gitlab._work import Shop
from taskscaler_gitlab.relay import _sidecar, _upstream
from taskscaler_gitlab.relay._deliveries import DeliveryDirectory
from taskscaler_gitlab.relay._payload import for_sidecar
from taskscaler_gitlab.relay._relay import Action, How, Record, Relay, Standing, Step, hashed
from taskscaler_gitlab.relay._sidecar import Place, Sidecars
from taskscaler_gitlab.relay._together import alongside, first
from taskscaler_gitlab.relay._ways import Way, Ways

CLAIM_PATIENCE = 20.0
"""Seconds that a sidecar's first call waits for GitLab's answer to the claim; then it is to come again."""

GRACE = 30.0
"""Seconds that a sidecar has to end by itself once its job is over."""

AFTER_SCRIPT = 60.0
"""Seconds that a job has for its end that somebody here has cancelled, its after_script included."""

RECONNECT = 20.0
"""Seconds for which an instance is dialled again whose connection has ended under a job."""

SETTLE = 60.0
"""Seconds that GitLab has for calls which a sidecar had made before it ended, or was lost."""

FIRST_CALL = 600.0
"""Seconds in which a sidecar has to call that may report elsewhere; one that has nothing to say calls each 240 s at the
latest [GitLab Runner: four times the longest interval that GitLab asks for]."""

_PAUSE = 1.0
_SYSTEM = "runner_system_failure"

log = logging.getLogger("taskscaler.gitlab")


class CallRefused(Exception):
    """Who calls is not the sidecar of the delivery, or its job is over."""


class NotYet(Exception):
    """GitLab has not answered to the claim; the call may come again."""


class Desk(Protocol):
    """What all jobs that sidecars run share."""

    sidecars: Sidecars
    ways: Ways

    def enter(self, delivery: str, work: "RelayWork") -> None:
        """Have calls of a delivery find the job."""
        ...

    def strike(self, delivery: str) -> None:
        """Have them find nobody."""
        ...

    async def learn(self, said: object) -> None:
        """Take what a sidecar says about itself."""
        ...

    def secret(self, settings: RunnerSettings, slot: int) -> str:
        """Make a token for one sidecar, which begins as those of the same slot do for jobs of the same GitLab."""
        ...


@define(eq=False)
class RelayWork:
    """A job, and what becomes of it; for the service, as `taskscaler_gitlab._work.Work`."""

    shop: Shop
    desk: Desk
    job: Job
    """As GitLab described it; after a restart, with its number, its names and nothing else."""

    directory: DeliveryDirectory
    relay: Relay
    end: End | None = field(default=None, init=False)
    problem: str = field(default="", init=False)
    lease: Lease | None = field(default=None, init=False)
    instance: str | None = field(default=None, init=False)
    begun_at: float | None = field(default=None, init=False)
    over_at: float | None = field(default=None, init=False)
    interrupted: str = field(default="", init=False)
    over: anyio.Event = field(factory=anyio.Event, init=False)
    is_ending: bool = field(default=False, init=False)
    """Whether somebody here wants the job to end, which the sidecar is told."""

    calls: int = field(default=0, init=False)
    """How many calls on its sidecar's path are being answered."""

    trace: Trace | None = field(default=None, init=False)
    """See `Followed`."""

    _report: Reporting | None = field(default=None, init=False)
    """While we speak to GitLab ourselves."""

    _token: str = field(default="", init=False, repr=False)
    """The job's, once a call has brought it after a restart."""

    _lock: anyio.Lock = field(factory=anyio.Lock, init=False)
    _claim_wanted: anyio.Event = field(factory=anyio.Event, init=False)
    _claim_answered: anyio.Event = field(factory=anyio.Event, init=False)
    _called: anyio.Event = field(factory=anyio.Event, init=False)
    """Set once there was one."""

    _unheard_since: float | None = field(default=None, init=False)
    """Since when one is waited for."""

    _unanswered: int = field(default=0, init=False)
    """How many of its calls have come as a whole, and need nobody but GitLab any more."""

    _calm: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when there is none of these."""

    _is_settling: bool = field(default=False, init=False)
    """Whether that is waited for."""

    _end_expected: anyio.Event = field(factory=anyio.Event, init=False)
    _end_wanted: anyio.Event = field(factory=anyio.Event, init=False)
    _interruption: anyio.Event = field(factory=anyio.Event, init=False)
    _has_left: bool = field(default=False, init=False)
    _is_looked_at: bool = field(default=False, init=False)
    """Whether anybody has looked what became of its sidecar while nobody was here."""

    _is_attended: bool = field(default=False, init=False)
    """Whether the last connection got as far as to its sidecar: one that ends before is none to begin anew after."""

    _queue_place: int | None = field(default=None, init=False)
    _owed: tuple[Action, ...] = field(default=(), init=False)
    """What is to be done once its slot is given back."""

    # --- as the service and its clients see it -----------------------------------------------------------

    @property
    def record(self) -> Record:
        """What is written down of it."""
        return self.relay.record

    @property
    def name(self) -> str:
        """See `Followed.name`."""
        return self.directory.path.name

    @property
    def context(self) -> SpanContext | None:
        """See `Followed.context`."""
        return read_context(self.record.traceparent, self.record.tracestate)

    @property
    def clock(self) -> Clock:
        """See `Followed.clock`."""
        return self.shop.clock

    @property
    def scaler(self) -> Taskscaler:
        """See `Followed.scaler`."""
        return self.shop.scaler

    @property
    def outlives(self) -> bool:
        """See `Followed.outlives`."""
        return self.shop.outlives

    @property
    def usage(self) -> Usage:
        """What a sidecar's job has used, gitlab-runner knows."""
        return Usage()

    @property
    def report(self) -> None:
        """None: its log goes by, and nobody here counts it."""

    @property
    def log(self) -> None:
        """None: GitLab alone has its log."""

    @property
    def untold(self) -> str:
        """What GitLab could not be told; empty: nothing."""
        record = self.relay.record
        if record.how is not How.UNREPORTED:
            return ""
        return (
            f"GitLab does not know that it has failed ({record.why}): its token was not noted down, see"
            " keep_job_tokens; GitLab fails it when its time is over"
        )

    @property
    def account(self) -> Sequence[str]:
        """What an explanation says of it beyond what it says of every job."""
        last = (_STILL_AT_GITLAB,) if self._is_settling else ()
        dispatched = (self.record.dispatched,) if self.record.dispatched else ()
        return (*dispatched, *_account(self.relay.record), *last)

    async def see_through(self) -> None:
        """See it to its end, or as far as this process goes; whatever goes wrong is its own."""
        with self.shop.follows.job(self):
            await self._seen_through()

    async def _seen_through(self) -> None:
        try:
            await self._see_through()
        except Exception as error:  # whatever it is, it ends nothing else
            self.problem = one_line(str(error)) or type(error).__name__
            log.exception("job_stuck", extra={"job": self.job.id})
        finally:
            self.desk.strike(self.relay.record.delivery)
            self.over_at = self.shop.clock.now()
            self.over.set()

    def interrupt(self, why: str) -> None:
        """End it: after its after_script if it runs, else at once; nothing happens if it is over."""
        if not self.interrupted and self.relay.record.standing is not Standing.OVER:
            self.interrupted = why
            self._interruption.set()

    def hand_back(self) -> None:
        """Do nothing: without a description, no later manager could place it, so it is handed back in any case."""

    # --- what its sidecar calls --------------------------------------------------------------------------

    async def give(self, delivery: str, secret: str, said: object) -> bytes | None:
        """Answer a poll: the job's description, once; None: there is none.

        Raises:
            CallRefused: It is not the sidecar that asks.
            NotYet: It begins as soon as it has the job, and GitLab has not answered to the claim.
        """
        claims = _claims(said)
        actions = await self._tell(lambda relay: relay.polled(delivery, secret, claims=claims))
        if Action.REFUSE in actions:
            raise CallRefused
        self._heed(actions)
        if Action.CLAIM in actions:
            await self._claimed()
            actions = await self._tell(lambda relay: relay.gives(delivery))
        lease = self.lease
        if Action.OFFER not in actions or lease is None:
            return None
        await self.desk.learn(said)
        settings = self.shop.settings
        brings = self.trace is None or brings_context(self.job.variables, settings.variables)
        trace_env = {} if brings or self.trace is None else self.trace.env
        return for_sidecar(
            self.job, instance=lease.instance, slot=lease.slot, ca_chain=settings.ca_chain, trace_env=trace_env
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count a call on the path of its sidecar while it is answered."""
        self.calls += 1
        self._called.set()
        try:
            yield
        finally:
            self.calls -= 1

    @contextmanager
    def until_gitlab_answers(self) -> Iterator[None]:
        """Have the end of its sidecar wait for a call that has come as a whole: it may say how the job ended."""
        self._unanswered += 1
        try:
            yield
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._calm.set()
                self._calm = anyio.Event()

    async def _settled(self) -> None:
        """Wait until GitLab has answered to what a sidecar has said that is gone by now; not for ever."""
        with anyio.move_on_after(SETTLE):
            while self._unanswered:
                self._is_settling = True
                await self._calm.wait()
        self._is_settling = False

    async def admit(self, delivery: str, number: int, token: str, *, fetches: bool) -> None:
        """Let a call about the job through, once GitLab knows that it runs.

        Raises:
            CallRefused: It is not the sidecar that calls, or the job is over.
            NotYet: GitLab has not answered to the claim.
        """
        actions = await self._tell(lambda relay: (relay.fetches if fetches else relay.called)(delivery, number, token))
        if Action.PASS not in actions:
            raise CallRefused
        if number == self.job.id:
            self._token = token
        await self._claimed()
        if self.relay.record.standing is Standing.OVER:
            raise CallRefused

    async def _claimed(self) -> None:
        """Have the job claimed, and wait for the answer.

        Raises:
            NotYet: There is none.
        """
        if not self._claim_answered.is_set():
            if (
                self._job.token
            ):  # else, after a restart, only a call about the job itself brings what it is claimed with
                self._claim_wanted.set()
            with anyio.move_on_after(CLAIM_PATIENCE):
                await self._claim_answered.wait()
        if not self._claim_answered.is_set():
            raise NotYet

    async def heard(self, answer: Answer, said: Outcome | None, *, is_update: bool) -> None:
        """Take what GitLab has answered to a call that was passed on."""
        self._heed(await self._tell(lambda relay: relay.answered(answer, said, is_update=is_update)))

    async def _tell(self, what: Callable[[Relay], Step]) -> tuple[Action, ...]:
        """Have something happen: what is to be written down is on disk before anybody learns of it."""
        async with self._lock:
            step = what(self.relay)
            if step.record is not None:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(self.directory.note, step.record)
            before, standing, self.relay = self.relay.record.delivery, self.relay.record.standing, step.relay
            self._enter(standing, step.relay.record.standing)
        if before and before != self.relay.record.delivery:  # it is placed again: who still calls there finds nobody
            self.desk.strike(before)
        return step.actions

    def _enter(self, before: Standing, standing: Standing) -> None:
        """Have the trace know what the sidecar is at."""
        is_over = standing is Standing.OVER and before is Standing.AT_WORK
        phase = "collect" if is_over else _PHASES.get(standing)
        if self.trace is not None and phase is not None and standing is not before:
            self.trace.enter(phase, self.clock.now())

    def _heed(self, actions: tuple[Action, ...]) -> None:
        """Do what needs no waiting."""
        if Action.TELL in actions:
            self.is_ending = True
        if Action.EXPECT_END in actions:
            self._end_expected.set()
        if Action.END in actions:
            self._end_wanted.set()

    # --- from the first to the last ----------------------------------------------------------------------

    async def _see_through(self) -> None:
        if self.relay.has_payload:
            async with reporting(self.shop.client, self.job, info=self.shop.info) as self._report:
                try:
                    others = self._claim_if_wanted, self._interrupt_if_wanted, self._note_that_it_is_kept
                    await alongside(self._place, *others)
                except anyio.get_cancelled_exc_class():
                    await self._leave()
                    raise
            self.end = self.end or self._report.report.end
        else:
            try:
                await alongside(self._resume, self._claim_if_wanted, self._interrupt_if_wanted)
            except anyio.get_cancelled_exc_class():
                await self._leave()
                raise
        is_told = self.end is not None or self.relay.record.how is not How.FAILED
        self.end = self.end or _ENDS[self.relay.record.how]
        if not is_told:  # the next manager does it, if it can
            log.error("job_unreported", extra={"job": self.job.id, "why": self.relay.record.why})
        elif not self._has_left:
            await to_thread.run_sync(self.directory.remove)

    async def _place(self) -> None:
        """Place it, until it is over."""
        while self.relay.record.standing is Standing.TAKEN:
            with followed_try(self) as tried:
                await self._place_once()
                tried.outcome = self.record.outcome
                tried.error = "lost" if self.record.how is None else ""

    async def _place_once(self) -> None:
        lease = await self._slot_unless_unwanted()
        if lease is None:
            return
        self.lease, self.instance, self._queue_place = lease, lease.instance, lease.place
        self.begun_at = self.shop.clock.now()
        if Action.RELEASE in await self._tell(Relay.got_slot):
            lease.release()
            return
        await self._in_slot(lease)

    async def _resume(self) -> None:
        """Go on with what an earlier process has left."""
        with followed_try(self) as tried:
            if self.trace is not None:
                self.trace.expect_run(since=self.record.taken_at)
            await self._resume_there()
            tried.outcome = self.record.outcome

    async def _resume_there(self) -> None:
        record = self.relay.record
        scaler, lease, why = self.shop.scaler, None, "its instance was lost while the runner was away"
        if any(each.key == record.key for each in scaler.detached):
            try:
                lease = await scaler.reattach(record.key)
            except LeaseLost as error:
                why = f"{why} ({error.loss})"
        if lease is None:
            await self._follow_up(await self._resumed(has_slot=False, is_running=False, why=why))
            return
        self.lease, self.instance = lease, lease.instance
        self.begun_at = record.taken_at
        await self._in_slot(lease)

    @property
    def _is_known(self) -> bool:
        """Whether it is known what became of its sidecar while nobody was here."""
        return self._is_looked_at or self.relay.has_payload

    async def _resumed(self, *, has_slot: bool, is_running: bool, why: str) -> tuple[Action, ...]:
        self._is_looked_at = True
        return await self._tell(lambda relay: relay.resumed(has_slot=has_slot, is_running=is_running, why=why))

    async def _slot_unless_unwanted(self) -> Lease | None:
        """Wait for a slot; None: it is over, or there is none."""
        report = self._report
        if report is None:
            raise RuntimeError("a job without its description is being placed")
        found: list[Lease] = []

        async def acquire() -> None:
            key, place, scaler = self.relay.record.key, self._queue_place, self.shop.scaler
            try:
                await self.shop.admitted(key)
                await self.shop.gate.turn(self.record.rule, key, scaler)
                pools = self.record.pools or None
                found.append(await scaler.acquire_lease(key, persistent=self.shop.outlives, place=place, pools=pools))
            except NoCapacity as error:
                why = f"there was no instance for it in time ({one_line(str(error))})"
                is_draining = self.shop.is_draining()
                await self._follow_up(await self._tell(lambda relay: relay.got_no_slot(why, is_draining=is_draining)))

        await first(acquire, report.over.wait, report.canceling.wait, self._interruption.wait)
        if self.relay.record.standing is Standing.TAKEN and self._interruption.is_set():
            await self._break_off()
        elif self.relay.record.standing is Standing.TAKEN and (report.over.is_set() or report.canceling.is_set()):
            await self._turn_away(report)
        elif found:
            return found[0]
        for lease in found:
            lease.release()
        return None

    async def _turn_away(self, report: Reporting) -> None:
        is_canceling = not report.over.is_set()
        await self._follow_up(await self._tell(lambda relay: relay.unwanted(is_canceling=is_canceling)))

    async def _in_slot(self, lease: Lease) -> None:
        """Have a sidecar run it there, and give the slot back; or leave both to the next manager."""
        try:
            actions = await self._run_in(lease)
        except anyio.get_cancelled_exc_class():
            await self._leave()
            raise
        finally:
            if not self._has_left:
                lease.release()
            self.lease = None
        await self._follow_up((*self._owed, *actions))

    async def _run_in(self, lease: Lease) -> tuple[Action, ...]:
        """Have a sidecar run it there, until that has ended or is lost; returns what is to be done then."""
        try:
            async with lease.unless_lost():
                why = await self._connected(lease)
            if self.relay.record.standing is Standing.STARTING:
                self._blame(lease, why)
            self._see_whether_a_job_is_left(lease)
            return await self._tell(lambda relay: relay.sidecar_ended(why))
        except LeaseLost as error:
            return await self._lost(lease, f"its instance {lease.instance} was lost ({error.loss})")
        except (Unreachable, CommandLost, NameUnknown) as error:
            lease.mark_suspect("nobody knows what became of a job there")
            return await self._lost(lease, f"its instance {lease.instance} was lost ({one_line(str(error))})")
        except (FleetingError, OSError) as error:
            return await self._not_run(lease, error)

    async def _not_run(self, lease: Lease, error: FleetingError | OSError) -> tuple[Action, ...]:
        """See whether it may run elsewhere: what is wrong with this one instance need not be so with the next."""
        why = f"it cannot be run on {lease.instance}: {one_line(str(error))}"
        is_instances = isinstance(error, ConnectError) and not isinstance(error, _sidecar.ProgramUnfit)
        if is_instances or self.relay.is_running or not self._is_known:
            self._blame(lease, why)
        await self._settled()
        if not self._is_known:
            return await self._resumed(has_slot=True, is_running=False, why=why)
        return await self._tell(lambda relay: relay.sidecar_ended(why) if is_instances else relay.cannot_run(why))

    def _blame(self, lease: Lease, why: str) -> None:
        """Have an instance take no more jobs on which no sidecar starts, or one may still run that nobody can end."""
        self.desk.sidecars.forget(lease.instance)
        log.warning("instance_suspected", extra={"job": self.job.id, "instance": lease.instance, "why": why})
        lease.mark_suspect("a job's sidecar could not be started or followed there")

    def _see_whether_a_job_is_left(self, lease: Lease) -> None:
        """Have an instance take no more jobs whose sidecar has ended, and its job has not: killed, it ends nothing."""
        if self.relay.record.standing is Standing.AT_WORK:
            lease.mark_suspect("what a job has started may still run there: its sidecar ended before the job")

    async def _lost(self, lease: Lease, why: str) -> tuple[Action, ...]:
        self.desk.sidecars.forget(lease.instance)
        log.warning("sidecar_lost", extra={"job": self.job.id, "instance": lease.instance, "why": why})
        # A lease that the fleet has lost holds no slot by now. One whose instance only cannot be reached is kept: who
        # is cancelled while GitLab is slow leaves it to the next manager, which may reach the sidecar again.
        await self._settled()
        if not self._is_known:
            return await self._resumed(has_slot=False, is_running=False, why=why)
        return await self._tell(lambda relay: relay.slot_lost(why))

    async def _connected(self, lease: Lease) -> str:
        """Be connected to the instance until the sidecar has ended, over any number of connections."""
        since = anyio.current_time()
        while True:
            try:
                async with lease.dial() as connection:
                    return await self._beside(connection, lease)
            except Unreachable:
                now = anyio.current_time()
                since, self._is_attended = now if self._is_attended else since, False
                is_at_work = self.relay.record.standing in (Standing.OFFERED, Standing.AT_WORK, Standing.OVER)
                if not is_at_work or now - since > RECONNECT:
                    raise
            await anyio.sleep(_PAUSE)

    async def _beside(self, connection: Connection, lease: Lease) -> str:
        """Start the sidecar, or join it, and wait for its end; returns how it ended."""
        if self.relay.has_payload and self.relay.record.standing is Standing.TAKEN:
            place = await self.desk.sidecars.prepare(connection, lease.instance, self._owner(lease))
            async with self.desk.ways.open(connection) as way:
                if not await self._start(connection, lease, place, way):
                    return "its sidecar was not started"
                return await self._attend(connection, lease, place, way)
        place = await self.desk.sidecars.locate(connection, lease.instance, self._owner(lease))
        if not self._is_known:
            ended = await self._look(connection, lease, place)
            if ended:
                return ended
        return await self._join(connection, lease, place)

    def _owner(self, lease: Lease) -> str:
        return f"{self.relay.record.prefix.partition('-')[0]}-{lease.slot}"

    async def _start(self, connection: Connection, lease: Lease, place: Place, way: Way) -> bool:
        """Start the sidecar, unless it is not wanted any more."""
        if self._report is None:
            raise RuntimeError("a job without its description is being started")
        delivery, secret = token_hex(16), self.desk.secret(self.shop.settings, lease.slot)
        actions = await self._tell(lambda relay: relay.starts(delivery, hashed(secret), way.port, way.listen))
        if Action.START not in actions:
            return False
        self.desk.enter(delivery, self)
        settings, url = self.desk.sidecars.settings, f"{way.url}/d/{delivery}"
        chain = self.shop.settings.ca_chain
        if await _sidecar.start(connection, place, delivery, url=url, secret=secret, settings=settings, ca_chain=chain):
            lease.mark_suspect("what an earlier job there has started may still run: its sidecar had to be killed")
        return True

    async def _look(self, connection: Connection, lease: Lease, place: Place) -> str:
        """See what became of a sidecar while nobody was here; returns how it ended, nothing if it is to go on."""
        delivery = self.relay.record.delivery
        is_running = bool(delivery) and await _sidecar.runs(connection, place.name_of(delivery))
        if not is_running:
            self._see_whether_a_job_is_left(lease)
        self._owed = await self._resumed(has_slot=True, is_running=is_running, why=_ENDED_MEANWHILE)
        if is_running and Action.FOLLOW not in self._owed:
            await self._end(connection, lease, place)
        elif is_running:
            return ""
        return _ENDED_MEANWHILE

    async def _join(self, connection: Connection, lease: Lease, place: Place) -> str:
        """Go on with a sidecar that runs, at the port that it knows."""
        record = self.relay.record
        self.desk.enter(record.delivery, self)
        self._enter(Standing.TAKEN, record.standing)
        try:
            async with self.desk.ways.reopen(connection, record.port, record.listen) as way:
                return await self._attend(connection, lease, place, way)
        except Unreachable:
            raise
        except (ConnectError, Unsupported):  # it would go on without us
            await self._end(connection, lease, place)
            raise

    async def _attend(self, connection: Connection, lease: Lease, place: Place, way: Way) -> str:
        """Wait for the end of a sidecar, and see to it that there is one."""
        name = place.name_of(self.relay.record.delivery)
        self._is_attended = True
        try:
            ended = await alongside(
                lambda: _sidecar.wait(connection, name),
                way.serve,
                lambda: self._end_in_time(connection, lease, place),
                self._heed_gitlab,
                lambda: self._hear_of_it(way),
            )
        except anyio.get_cancelled_exc_class():
            if lease.loss is None:  # else there is nothing left to leave, or to end
                with anyio.move_on_after(_sidecar.FAREWELL + 1, shield=True):
                    await self._leave()
                    if not self._has_left:
                        with suppress(ConnectError, OSError):  # the slot's next job ends what is left
                            await self._end(connection, lease, place)
            raise
        await self._settled()
        await _sidecar.tidy(connection, place, name)
        return f"its sidecar {ended}"

    async def _hear_of_it(self, way: Way) -> None:
        """See that the sidecar calls, where it is not sure that it can.

        Raises:
            ConnectError: It does not.
        """
        if not way.is_sure:
            self._unheard_since = self._unheard_since or anyio.current_time()
            with anyio.move_on_after(self._unheard_since + FIRST_CALL - anyio.current_time()):
                await self._called.wait()
            if not self._called.is_set():
                after = f"its sidecar has not called for {FIRST_CALL / 60:.0f} min"
                raise ConnectError(f"{after}; it may report to an address where this program does not listen any more")
        await anyio.sleep_forever()

    async def _heed_gitlab(self) -> None:
        """End the sidecar if GitLab wants no more of the job before it is claimed."""
        report = self._report
        if report is not None and not report.is_handed_over:
            await first(report.over.wait, report.canceling.wait)
            if not report.is_handed_over:
                await self._turn_away(report)
        await anyio.sleep_forever()

    async def _end_in_time(self, connection: Connection, lease: Lease, place: Place) -> None:
        """End the sidecar once that is wanted, or it does not end by itself although it should."""
        await first(self._end_wanted.wait, self._end_expected.wait)
        with anyio.move_on_after(AFTER_SCRIPT if self.is_ending else GRACE):
            await self._end_wanted.wait()
        await self._end(connection, lease, place)
        await anyio.sleep_forever()

    async def _end(self, connection: Connection, lease: Lease, place: Place) -> None:
        """End a sidecar with its job: asked first, killed then; what a killed one leaves, only its instance ends."""
        name = place.name_of(self.relay.record.delivery)
        with anyio.move_on_after(_sidecar.FAREWELL):
            await _sidecar.terminate(connection, place)
            await _sidecar.wait(connection, name)
            return
        lease.mark_suspect("a job may still run there: its sidecar did not end when it was asked to")
        await _sidecar.detaching(connection).kill(name)

    # --- towards GitLab ----------------------------------------------------------------------------------

    async def _claim_if_wanted(self) -> None:
        """Claim the job when its sidecar has made its first call, which waits for that; then say no more ourselves."""
        await self._claim_wanted.wait()
        if self._report is not None:
            is_ours = await self._report.claim()
            if self.relay.record.standing is Standing.AT_WORK:
                self._report.hand_over()
        else:
            answer = await _upstream.claim(self.shop.client, self._job, self.shop.info)
            await self.heard(answer, None, is_update=True)
            is_ours = True  # or it is over by now
        if not is_ours:
            self._heed(await self._tell(lambda relay: relay.claimed(is_ours=False)))
        self._claim_answered.set()

    async def _note_that_it_is_kept(self) -> None:
        """Note down that GitLab gives the job to another runner if nobody claims it: the next manager may leave it."""
        if self._report is not None:
            await self._report.kept.wait()
            with suppress(OSError):  # then it is not known, which is safe
                await self._tell(Relay.kept)
        await anyio.sleep_forever()

    async def _interrupt_if_wanted(self) -> None:
        await self._interruption.wait()
        await self._break_off()

    async def _break_off(self) -> None:
        why, is_hasty = self.interrupted, not self.shop.outlives and self.shop.is_draining()
        await self._follow_up(await self._tell(lambda relay: relay.interrupted(why, is_hasty=is_hasty)))

    @property
    def _job(self) -> Job:
        return evolve(self.job, token=self._token or self.job.token)

    async def _follow_up(self, actions: tuple[Action, ...]) -> None:
        """Do what takes its time."""
        self._heed(actions)
        if Action.FAIL in actions:
            await self._fail(self.relay.record.why, self.relay.record.failure_reason or _SYSTEM)
        if Action.CANCELED in actions and self._report is not None:
            self.end = await self._report.finish(Outcome(is_success=False, failure_reason="job_canceled"))
        if Action.HAND_BACK in actions and self._report is not None:
            await self._report.leave()
        if self.relay.record.how is How.UNREPORTED:
            log.error("job_unreported", extra={"job": self.job.id, "why": self.relay.record.why})

    async def _fail(self, why: str, reason: str) -> None:
        """Tell GitLab that the job has failed, and whoever reads its log why."""
        told = why if reason != _SYSTEM else f"Job failed (system failure): {why}"
        line = f"\n\x1b[31;1mERROR: {told}\x1b[0;m\n"
        outcome = Outcome(is_success=False, failure_reason=reason)
        report = self._report
        if report is not None and not report.over.is_set():
            report.note(line)
            self.end = await report.finish(outcome)
        elif self._job.token:
            self.end = await _upstream.fail(self.shop.client, self._job, line, outcome, self.shop.info)

    async def _leave(self) -> None:
        """Leave it to the next manager, or end it with this one."""
        if self._has_left:
            return
        with anyio.CancelScope(shield=True):
            actions = await self._tell(lambda relay: relay.left(outlives=self.shop.outlives))
        if Action.DETACH in actions and self.lease is not None:
            self._has_left = True
            self.lease.detach()
            if self._report is not None:
                self._report.hand_over()


def _claims(said: object) -> bool:
    """Whether a sidecar says of itself that it begins with a job only once the job is claimed, as from 18.5 on."""
    features = said.get("features") if isinstance(said, Mapping) else None
    return isinstance(features, Mapping) and features.get("two_phase_job_commit") is True


def _account(record: Record) -> Iterator[str]:
    match record.standing:
        case Standing.STARTING:
            yield "its sidecar is being started, and has not asked for it yet"
        case Standing.OFFERED:
            yield "its sidecar has it, and has not called about it yet; GitLab learns that it runs with the first call"
        case Standing.AT_WORK:
            where = f"at port {record.port} of its instance" if record.port else "at advertise_url"
            yield f"its sidecar reports to GitLab through this program, which it reaches {where}; its log is at GitLab"
    if record.why and record.how is not How.UNREPORTED:
        yield record.why


_PHASES = {Standing.STARTING: "ready", Standing.AT_WORK: "run"}
"""What a job is at, as traces call it."""

_STILL_AT_GITLAB = "its sidecar is gone, and GitLab has not answered yet to the last that it has said"
_ENDED_MEANWHILE = "its sidecar ended while the runner was away"
_ENDS = {
    None: None,
    How.REPORTED: End.REPORTED,
    How.REVOKED: End.REVOKED,
    How.FAILED: End.GIVEN_UP,
    How.HANDED_BACK: End.ABANDONED,
    How.UNREPORTED: End.GIVEN_UP,
}
