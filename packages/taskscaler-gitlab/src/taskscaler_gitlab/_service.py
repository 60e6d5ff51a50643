"""A runner on a daemon's fleet: asks GitLab for jobs when there is a slot for one, and sees each to its end."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
from anyio import to_thread
from attrs import define, evolve, field, fields

from fleeting import Clock, JournalError
from fleeting.errors import SystemRefused
from fleeting.plugins import one_line
from gitlab_jobs import Job, Outcome, Polling
from gitlab_jobs.client import GitLabClient, Runner, reporting
from taskscaler import NoCapacity, Taskscaler
from taskscaler.executors import Executor, Reattaches, load_executor
from taskscaler.observers.metrics import Metrics
from taskscaler.serve import Canary, Intake
from taskscaler_gitlab._asking import Asking
from taskscaler_gitlab._canary import CELL, CanaryGitLab, fly, origin_of_canary
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._dispatch import Ceilings, Decision
from taskscaler_gitlab._finished import FinishedJob, finished, keep
from taskscaler_gitlab._gate import Gate
from taskscaler_gitlab._gitlab import about, client_of
from taskscaler_gitlab._limits import Facts, describe
from taskscaler_gitlab._metrics import CellStanding, RunnerMetrics, Standing, runner_label
from taskscaler_gitlab._noted_settings import NotedSettings
from taskscaler_gitlab._paused import is_paused, pause, unpause
from taskscaler_gitlab._record import KEYS, JobDirectory, Left, Record, Stage, found, hold, read_left
from taskscaler_gitlab._resuming import Resuming
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._strays import Strays
from taskscaler_gitlab._system_id import has_no_strays, may_have_strays, system_id
from taskscaler_gitlab._tidying import tidy_caches, tidy_jobs
from taskscaler_gitlab._token_care import TokenCare
from taskscaler_gitlab._traces import Follows
from taskscaler_gitlab._unforeseen import Unforeseen
from taskscaler_gitlab._view import JobView
from taskscaler_gitlab._work import FAREWELL, OwnRuns, Runs, Shop, Work
from taskscaler_gitlab.cells._cell import Cell, cells_of
from taskscaler_gitlab.relay import Relays, RelayWork

REPORTING = 5.0
"""Seconds for which a job that had to be ended is waited for beyond that, so that GitLab learns of it."""

TIDIED = 3600.0
"""Seconds between two looks at what has become too old."""

_CONTENTS: Mapping[str, str] = {"ca_chain": "tls_ca_file", "tls_cert": "tls_cert_file", "tls_key": "tls_key_file"}
"""The keys of files, by what holds their content."""

_DATES = frozenset({"token_obtained_at", "token_expires_at"})
_RELOADED = _DATES | {"token", "tokens", "limit"}
"""What takes effect without a restart."""

_STAGES: Mapping[Stage, str] = {Stage.TAKEN: "preparing", Stage.CLAIMED: "executing", Stage.ENDED: "reporting"}
"""What is done with jobs, as metrics call it."""

_SURPLUS = (
    "it came without a slot, because another cell answered for the same one; it gets the next one, and until then it is"
    " reported to its GitLab as being prepared"
)
_NUMBERED = re.compile("gitlab-([a-z0-9-]{1,32}-)?[0-9]{1,20}")

log = logging.getLogger("taskscaler.gitlab")


def executor_of(config: ServiceConfig) -> Executor:
    """Make what runs the jobs.

    Raises:
        PluginNotFound: It is not installed; says what to install.
        ConfigError: It refuses its settings.
    """
    kind = "instance" if config.runner.has_sidecars else config.runner.kind  # of jobs from before there were sidecars
    settings = config.runner.container_settings() if kind == "docker" else {}
    path = f"{config.fleet.key}.docker" if kind == "docker" else ""
    return load_executor(kind, settings, path=path, source=str(config.path))


@define(eq=False)
class RunnerService:
    """One runner of a ``config.toml``; a `taskscaler.serve.JobOwner`."""

    config: ServiceConfig
    executor: Executor
    directory: Path
    """Where its jobs are noted down."""

    is_kept: bool
    """Whether the fleet's state outlives the process."""

    say: Callable[[str], object]
    """Prints a line."""

    connect: Callable[[RunnerSettings], GitLabClient] = client_of
    """Makes a client of a GitLab."""

    metrics: Metrics | None = None
    """What shows the fleet to Prometheus, and the runner as well."""

    runs: Runs = field(factory=OwnRuns)
    """How jobs run in their slots."""

    _follows: Follows = field(factory=Follows, init=False)
    _gate: Gate = field(init=False)
    _meter: RunnerMetrics | None = field(default=None, init=False)
    _scaler: Taskscaler = field(init=False)
    _clock: Clock = field(init=False)
    _cells: Sequence[Cell] = field(factory=tuple, init=False)
    """The GitLabs that it asks, at least one."""

    _asking: Asking = field(init=False)
    _cares: Sequence[TokenCare] = field(factory=tuple, init=False)
    _changing: anyio.Lock = field(factory=anyio.Lock, init=False)
    """See `TokenCare.changing`."""

    _unforeseen: Unforeseen = field(factory=Unforeseen, init=False)
    _tasks: anyio.abc.TaskGroup = field(init=False)
    _lock: FileIO = field(init=False)
    _is_new: bool = field(default=False, init=False)
    """Whether jobs may run that were noted down elsewhere, unknown to us: this is the first process here, or no earlier
    one has lived until it had given all their leases back."""

    _system_id: str = field(default="", init=False)
    _have_changed: bool = field(default=False, init=False)
    """Whether an earlier process may have begun jobs with others."""

    _left: list[Left] = field(factory=list, init=False)
    """Jobs of an earlier process that are not resumed, and are none of this GitLab's business."""

    _relays: Relays = field(init=False)
    _works: dict[str, Work | RelayWork] = field(factory=dict, init=False)
    """Those that are not over, or stuck, by the names of their directories."""

    _finished: dict[str, FinishedJob] = field(factory=dict, init=False)
    """Those that are over, likewise."""

    _paused: bool = field(default=False, init=False)
    _draining: bool = field(default=False, init=False)
    _ends_for_good: bool = field(default=False, init=False)
    """Whether no later daemon is expected to resume jobs."""

    _begun: bool = field(default=False, init=False)
    _ready: anyio.Event = field(factory=anyio.Event, init=False)
    """Set once jobs can be taken, or never will be."""

    _done: anyio.Event = field(factory=anyio.Event, init=False)

    @_gate.default
    def _gate_of_rules(self) -> Gate:
        return Gate(Ceilings(self.config.dispatch.ceilings))

    @property
    def name(self) -> str:
        """See `JobOwner.name`."""
        return "gitlab"

    # --- the daemon's life -------------------------------------------------------------------------------

    async def take_up(self, scaler: Taskscaler, clock: Clock) -> int:
        """See `JobOwner.take_up`."""
        self._scaler, self._clock = scaler, clock
        self._lock = await to_thread.run_sync(hold, self.directory)
        self._is_new = await to_thread.run_sync(may_have_strays, self.directory)
        self._system_id = await to_thread.run_sync(system_id, self.directory)
        clients = {name: self.connect(settings) for name, settings in self.config.runner.cells.items()}
        self._cells = [*cells_of(self.config, self._system_id, clients)]
        origins = {each.origin: each.settings for each in self._cells}
        self._relays = Relays(self.config.runner, self.directory, origins, self.is_kept)
        await to_thread.run_sync(self._relays.load)
        self._equip()
        self._show()
        self._paused = await to_thread.run_sync(is_paused, self.directory)
        self._asking.pause(is_paused=self._paused)
        if self._paused:
            self.say("paused: no jobs are asked for; `taskscaler pause --undo` ends that")
        await to_thread.run_sync(self._take_up)
        for work in self._relays.resume({each.origin: each.shop for each in self._cells}, self.say):
            self._works[work.directory.path.name] = work
        return sum(not (isinstance(work, Work) and work.wreck) for work in self._works.values())

    def _equip(self) -> None:
        """Give each cell what its jobs share, and what asks it for jobs."""
        now = anyio.current_time()
        for cell in self._cells:
            cell.shop = self._shop_of(cell)
            polling = Polling(
                now,
                request_concurrency=self.config.runner.request_concurrency,
                check_interval=self.config.check_interval,
                is_eager=len(self._cells) > 1,
            )
            token = cell.settings.token
            cell.runner = Runner(cell.client, token, info=self._info, system_id=self._system_id, polling=polling)
        self._asking = Asking(
            self._cells,
            self._scaler,
            self._unforeseen,
            self.config.check_interval,
            info=lambda: self._info,
            room=self._room,
            take=self._take,
            path=self.config.path,
            say=self.say,
        )
        more = (
            self.config.path,
            self.directory,
            self._system_id,
            self._clock,
            self.say,
            self._unforeseen,
            self._changing,
        )
        self._cares = [TokenCare(cell, *more) for cell in self._cells]

    def _show(self) -> None:
        """Show what the runner does, if anything is shown."""
        if self.metrics is not None:
            runner = self.config.runner
            labels = {"runner": runner_label(runner.token), "runner_name": runner.name, "system_id": self._system_id}
            self.metrics.label(labels)
            self._asking.meter = self._meter = RunnerMetrics(self.metrics.registry, labels, lambda: self._standing)
            for cell in self._cells:
                cell.client.http.observer = partial(self._meter.answered, cell=cell.name)
                cell.client.http.on_retry = self._meter.retried

    @property
    def _standing(self) -> Standing:
        """How it stands, for metrics. O(jobs)."""
        jobs = Counter(
            ("pending" if work.lease is None else "running", _STAGES[work.record.stage]) for work in self._active
        )
        every = {(state, stage): jobs[state, stage] for state in ("pending", "running") for stage in _STAGES.values()}
        runner = self.config.runner
        return Standing(
            jobs=every,
            requests=len(self._asking.polls),
            most_requests=runner.request_concurrency * len(self._cells),
            wanted_requests=sum(each.runner.polling.wanted for each in self._cells),
            concurrent=self.config.top.concurrent,
            limit=runner.limit,
            cells=self._standing_of_cells,
        )

    @property
    def _standing_of_cells(self) -> Mapping[str, CellStanding]:
        """How it stands with each of several GitLabs."""
        if len(self._cells) == 1:
            return {}
        jobs = Counter(work.shop.cell for work in self._active)
        facts = zip(self._cells, self._asking.facts(jobs), strict=True)
        return {
            cell.name: CellStanding(of.jobs, of.requests, is_asked=of.out_for is None and not of.silent_for)
            for cell, of in facts
        }

    def _take_up(self) -> None:
        for cell in self._cells:
            cell.noted = self._noted_settings.keep(cell.settings)
        names = {cell.noted for cell in self._cells}
        self._have_changed = self._noted_settings.has_others(names)
        for left in self._read():
            self._classify(left)
        needed = {work.record.settings for work in self._works.values() if isinstance(work, Work)}
        self._noted_settings.forget_others(names | needed)

    def _read(self) -> list[Left]:
        """Read what an earlier process has left; returns the jobs that are not over, oldest first."""
        unfinished, others = found(self.directory / "jobs")
        origins = {each.origin for each in self._cells}
        self._finished = {each.directory.path.name: each for each in finished(others, origins)}
        jobs = [read_left(each, self.runs.kept_log) for each in unfinished]
        return sorted(jobs, key=lambda left: left.standing.taken_at)

    def _classify(self, left: Left) -> None:
        """Resume a job, or see that it ends; says what cannot be resumed, and why."""
        name = "a job" if left.job is None else f"the job {left.job.id}"
        cell = next((each for each in self._cells if each.origin == left.origin), None)
        if left.origin == origin_of_canary(self._system_id):
            self._left.append(left)
            self.say("note: a canary was cut short when this runner ended; its instance is replaced")
        elif cell is None and left.origin:  # its token is none of this GitLab's business
            self._left.append(left)
            urls = " and ".join(each.settings.url for each in self._cells)
            self.say(
                f"warning: {name} is from another GitLab than {urls}, or was taken by another"
                " runner; it is given up, and its instance is replaced"
            )
        elif left.job is None or cell is None:
            self._left.append(left)
            self.say(
                f"warning: {name} cannot be continued: {left.problem}; what it left running is ended, but it"
                " cannot be reported, so GitLab fails it when its time is over"
            )
        else:
            work = self._resuming.resume(cell, left, left.job)
            self._works[left.directory.path.name] = work
            if work.wreck:
                self.say(
                    f"warning: {name} cannot be continued: {left.problem or work.wreck}; what it left running is ended,"
                    " and it is reported as failed"
                )

    @property
    def _resuming(self) -> Resuming:
        return Resuming(
            runs=self.runs,
            executor=self.executor,
            make=lambda settings: executor_of(evolve(self.config, runner=settings)),
            settings=self._noted_settings,
            have_changed=self._have_changed,
            say=self.say,
        )

    @property
    def _noted_settings(self) -> NotedSettings:
        return NotedSettings(self.directory / "settings")

    async def run(self) -> None:
        """Ask for jobs and see them to their ends, until they are left."""
        try:
            counting = nullcontext() if self._meter is None else self._meter.errors.attached()
            with counting:
                await self._run()
        finally:
            self._lock.close()
            self._done.set()
            self._ready.set()

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            for cell in self._cells:
                await stack.enter_async_context(cell.client)
            await stack.enter_async_context(self._relays.open())
            async with anyio.create_task_group() as self._tasks:
                self._begin(self._tasks)

    def _begin(self, tasks: anyio.abc.TaskGroup) -> None:
        self._begun = True
        self._ready.set()
        self._give_back_strays()
        self._get_in_line()
        for work in self._active:
            tasks.start_soon(self._see_through, work)
        tasks.start_soon(self._asking.run, tasks)
        for care in self._cares:
            tasks.start_soon(care.look_after)
        tasks.start_soon(self._tidy_on)

    def _get_in_line(self) -> None:
        """Have jobs wait for their turn that an earlier process has left without a slot, the oldest first."""
        has_slot = {each.key for each in self._scaler.detached}
        for work in sorted(self._active, key=lambda each: each.record.taken_at):
            record = work.record
            if record.key in has_slot:
                self._gate.resume(record.rule, record.key)
            if isinstance(work, Work) and record.stage is Stage.TAKEN and not work.wreck and record.key not in has_slot:
                self._asking.resume(record.key)

    @property
    def _info(self) -> Mapping[str, Any]:
        """What is said to GitLab about who runs its jobs."""
        return self._relays.about.as_info if self.config.runner.has_sidecars else about(self.config.runner)

    def _shop_of(self, cell: Cell) -> Shop:
        return Shop(
            settings=cell.settings,
            client=cell.client,
            scaler=self._scaler,
            executor=self.executor,
            runs=self.runs,
            clock=self._clock,
            info=self._info,
            outlives=self.is_kept and isinstance(self.executor, Reattaches),
            is_draining=lambda: self._draining,
            follows=self._follows,
            gate=self._gate,
            cell=cell.name,
            admitted=lambda key: self._asking.admitted(key),  # noqa: PLW0108  (it is made later)
            ended=self._make_room,
        )

    def _make_room(self, key: str) -> None:
        """A job needs no slot any more: another may have it, while its GitLab takes its time to hear of the end."""
        self._gate.leave(key)
        self._asking.note_change()

    async def pause(self) -> None:
        """See `JobOwner.pause`."""
        await self._note(pause)
        self._set_paused(is_paused=True)

    async def unpause(self) -> None:
        """See `JobOwner.unpause`."""
        await self._note(unpause)
        self._set_paused(is_paused=False)

    async def _note(self, change: Callable[[Path], object]) -> None:
        try:
            await to_thread.run_sync(change, self.directory)
        except OSError as error:
            why = f"{self.directory} cannot be used ({error.strerror})"
            raise JournalError(f"{why}; check its permissions, and the space there") from error

    def _set_paused(self, *, is_paused: bool) -> None:
        if self._paused != is_paused:
            self.say("paused: no more jobs are asked for" if is_paused else "jobs are asked for again")
        self._paused = is_paused
        self._asking.pause(is_paused=is_paused)

    @property
    def intake(self) -> Intake:
        """See `JobOwner.intake`; a runner that has as many jobs as it may need not ask anybody."""
        asking = self._asking
        is_full = not self._paused and self._room(asking.taking, asking.upstreams.surplus) <= 0
        answered = asking.upstreams.have_all_answered or is_full
        jobs = len({work.record.key for work in self._active} | asking.taking)
        return Intake(jobs=jobs, requests=len(asking.polls), paused=self._paused, answered=answered)

    async def fly_canary(self) -> Canary:
        """See `JobOwner.fly_canary`."""
        await self._ready.wait()
        if self._draining or self._done.is_set():
            raise NoCapacity("no canary can be run, because the runner is ending or has failed; start it again")
        return await fly(self.config.runner, self._info, self._cell_of_canary, self._take_canary)

    def _cell_of_canary(self, at: CanaryGitLab, client: GitLabClient) -> Cell:
        cell = Cell(name=CELL, settings=at.settings, client=client, origin=origin_of_canary(self._system_id))
        cell.shop = self._shop_of(cell)
        return cell

    async def _take_canary(self, cell: Cell, job: Job) -> Work | RelayWork | None:
        return await self._take(cell, job, f"{KEYS}{token_hex(6)}", Decision())

    def drain(self, *, for_good: bool = False) -> None:
        """Ask for no more jobs; a request that was just made is waited for.

        Jobs without a slot wait for the next daemon. If there is to be none, GitLab gets them back.
        """
        self._draining, self._ends_for_good = True, self._ends_for_good or for_good
        self._asking.stop()
        if self._ends_for_good:
            for work in self._active:
                work.hand_back()

    async def settle(self) -> None:
        """See `JobOwner.settle`."""
        while works := [each for each in self._active if self._is_settled_by_us(each)]:
            await works[0].over.wait()

    def _is_settled_by_us(self, work: Work | RelayWork) -> bool:
        """Whether a job comes to its end while this daemon ends."""
        return self._ends_for_good or work.record.stage is not Stage.TAKEN

    async def leave(self) -> None:
        """Leave the jobs that run to the next daemon; those that cannot outlive this one are ended."""
        self.drain()
        if not self._begun:
            return
        if not self._cells[0].shop.outlives:
            for work in self._active:
                work.interrupt("The runner was stopped")
            with anyio.move_on_after(FAREWELL + REPORTING):
                for work in self._active:
                    await work.over.wait()
        self._tasks.cancel_scope.cancel()
        await self._done.wait()

    # --- as clients see it -------------------------------------------------------------------------------

    @property
    def jobs(self) -> Sequence[JobView | FinishedJob]:
        """See `JobOwner.jobs`."""
        views = [JobView(work) for work in self._works.values()]
        return sorted([*self._finished.values(), *views], key=lambda each: each.since)

    @property
    def running(self) -> int:
        """See `JobOwner.running`."""
        return len(self._active)

    @property
    def _active(self) -> Sequence[Work | RelayWork]:
        return [work for work in self._works.values() if not work.over.is_set()]

    def status(self) -> str:
        """See `JobOwner.status`."""
        return describe(self._facts)

    def key_of(self, job: str) -> str | None:
        """See `JobOwner.key_of`."""
        view = self._find(job)
        if not isinstance(view, JobView) or view.over or view.work.record.outcome:
            return None
        return view.work.record.key

    def explain(self, job: str) -> Sequence[str]:
        """See `JobOwner.explain`."""
        if (view := self._find(job)) is not None:
            is_waiting = isinstance(view, JobView) and self._asking.is_waiting(view.work.record.key)
            return (*view.explain(), *((_SURPLUS,) if is_waiting else ()))
        if not _NUMBERED.fullmatch(job):
            return ()
        return (f"{job} is not known here: GitLab has not handed it out, or did long ago", f"{self.status()}")

    def _find(self, job: str) -> JobView | FinishedJob | None:
        return next((view for view in reversed(self.jobs) if view.id == job), None)

    @property
    def _facts(self) -> Facts:
        present = [work for work in self._active if work.record.stage is not Stage.ENDED]
        upstreams = self._asking.upstreams
        cells = tuple(self._asking.facts(Counter(work.shop.cell for work in present)))
        reserved, surplus = upstreams.free, len(upstreams.surplus)
        facts = Facts(
            url=cells[0].called,
            jobs=len(present),
            requests=len(self._asking.polls),
            concurrent=self.config.top.concurrent,
            limit=self.config.runner.limit,
            request_limit=cells[0].request_limit,
            waits_for_slot=upstreams.is_waiting,
            is_draining=self._draining,
            is_paused=self._paused,
            trouble=cells[0].trouble,
            silent_for=cells[0].silent_for,
        )
        if len(cells) == 1:
            return facts
        return evolve(facts, requests=reserved, cells=cells, reserved=reserved, surplus=surplus)

    def _room(self, taking: Collection[str], waiting: Collection[str]) -> int:
        """See `Asking.room`."""
        runner, concurrent = self.config.runner, self.config.top.concurrent
        keys = {work.record.key for work in self._active if work.record.stage is not Stage.ENDED}
        return min(concurrent, runner.limit or concurrent) - len((keys | {*taking}) - {*waiting})

    async def reload(self) -> Sequence[str]:
        """Take over the numbers and the token; everything else takes effect after a restart."""
        async with self._changing:
            return await self._reload()

    async def _reload(self) -> Sequence[str]:
        config = await to_thread.run_sync(_read_again, self.config)
        old, new = self.config.runner, config.runner
        names = [each.name for each in fields(type(old)) if getattr(old, each.name) != getattr(new, each.name)]
        others = self._take_over(new.cells, are_dates_other=not _DATES.isdisjoint(names))
        top = [
            name
            for name in ("check_interval", "log_level")
            if getattr(config.top, name) != getattr(self.config.top, name)
        ]
        dates = {name: getattr(new, name) for name in _DATES}
        self.config = evolve(
            self.config,
            top=evolve(self.config.top, concurrent=config.top.concurrent),
            runner=evolve(old, token=new.token, tokens=new.tokens, limit=new.limit, **dates),
        )
        self._asking.note_change()
        tokens = "".join(f", the token{' of ' * bool(name)}{name}" for name in others)
        self.say(f"reloaded: concurrent = {config.top.concurrent}, limit = {new.limit}{tokens}")
        if config.dispatch.rules != self.config.dispatch.rules:
            top.append("dispatch")
        later = dict.fromkeys(_CONTENTS.get(name, name) for name in names if name not in _RELOADED)
        return [*(f"{name} changed" for name in top), *(f"runners.{name} changed" for name in later)]

    def _take_over(self, cells: Mapping[str, RunnerSettings], *, are_dates_other: bool) -> Sequence[str]:
        """Take over the tokens of cells that are still there; returns whose have changed."""
        others = []
        for cell, care in zip(self._cells, self._cares, strict=True):
            new = cells.get(cell.name)
            if new is None:
                continue
            is_other = new.token != cell.token_in_file
            if is_other:
                others.append(cell.name)
                cell.runner.use_token(new.token)
            dates = {name: getattr(new, name) for name in _DATES}
            token = new.token if is_other else cell.settings.token
            cell.settings = evolve(cell.settings, token=token, **dates)
            cell.token_in_file = new.token
            if is_other or are_dates_other:
                care.begin_again()
        return others

    # --- jobs ------------------------------------------------------------------------------------------

    async def _take(self, cell: Cell, job: Job, key: str, decision: Decision | None = None) -> Work | RelayWork | None:
        """Note a job down before anything else, and begin with it; one that cannot be noted down fails at once.

        Returns:
            What sees it to its end; None: it has failed.
        """
        try:
            decision = decision or self.config.dispatch.decide(job)
            work = await self._noted(cell, job, key, decision)
        except Exception as error:
            log.exception("job_refused", extra={"job": job.id})
            why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            await self._refuse(cell, job, key, f"it cannot be noted down ({why})")
            return None
        self._works[work.directory.path.name] = work
        if decision.refusal:
            await self._scaler.unreserve(key)
            self.say(f"note: the job {job.id} fails: {decision}")
        if self._ends_for_good:
            work.hand_back()
        self._tasks.start_soon(self._see_through, work)
        return work

    async def _noted(self, cell: Cell, job: Job, key: str, decision: Decision) -> Work | RelayWork:
        """Note a job down, and what the rules say of it. What is raised, it raises.

        One that is refused needs nobody but us to say so.
        """
        noted: Work | RelayWork
        if self.config.runner.has_sidecars and not decision.refusal:
            with anyio.CancelScope(shield=True):
                take = partial(self._relays.take, origin=cell.origin, now=self._clock.now(), decision=decision)
                noted = await to_thread.run_sync(take, cell.shop, job, key)
        else:
            directory = JobDirectory.of(self.directory / "jobs", cell.origin, job.id, key)
            record = Record(
                key=key,
                prefix=directory.path.name,
                taken_at=self._clock.now(),
                settings=cell.noted,
                rule=decision.rule,
                dispatched=str(decision) if self.config.dispatch.rules else "",
                pools=decision.pools,
                refusal=decision.refusal,
            )
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(directory.begin, job, record)
            noted = Work(cell.shop, job, directory, record)
        name, project = one_line(job.job_info.name), one_line(job.job_info.project_full_path)
        log.info("job_taken", extra={"job": job.id, "project": project, "job_name": name, "cell": cell.name})
        if self._meter is not None:
            info = job.job_info
            queue = {"size": info.queue_size, "depth": info.queue_depth}
            self._meter.job_taken(info.time_in_queue_seconds, cell=cell.name, **queue)
        return noted

    async def _refuse(self, cell: Cell, job: Job, key: str, why: str) -> None:
        """Report a job as failed that cannot be taken, and leave nothing of it."""
        directory = JobDirectory.of(self.directory / "jobs", cell.origin, job.id, key)
        await to_thread.run_sync(directory.remove)
        await to_thread.run_sync(self._relays.directory_of(cell.origin, job.id, key).remove)
        await self._scaler.unreserve(key)
        await self._asking.forget(key)
        async with reporting(cell.client, job, info=cell.shop.info) as report:
            report.note(f"\x1b[31;1mERROR: Job failed (system failure): {why}\x1b[0;m\n")
            await report.finish(Outcome(is_success=False, failure_reason="runner_system_failure"))
        self.say(f"warning: the job {job.id} was refused: {why}")

    async def _see_through(self, work: Work | RelayWork) -> None:
        with self._unforeseen.contained("job_not_copied", job=work.job.id):
            if isinstance(work, Work) and work.wreck:
                await to_thread.run_sync(work.directory.copy_aside, self._shelf)
        try:
            with self._unforeseen.contained("job_stuck", job=work.job.id):
                await work.see_through()
        finally:
            self._gate.leave(work.record.key)
        with self._unforeseen.contained("job_not_tidied", job=work.job.id):
            if work.problem:
                self.say(f"warning: the job {work.job.id} cannot continue: {work.problem}")
            if work.record.outcome is None or work.problem:
                await self._scaler.unreserve(work.record.key)
            await self._asking.forget(work.record.key)
            with anyio.move_on_after(REPORTING, shield=True):  # GitLab has its end, which is to be known here, too
                await self._remember(work)
            await self._tidy()
        self._asking.note_change()

    @property
    def _shelf(self) -> Path:
        """Where something is kept of jobs that could not be read."""
        return self.directory / "unreadable"

    async def _remember(self, work: Work | RelayWork) -> None:
        """Log how a job ended, and keep its log; nothing happens to one that is stuck, or left to the next daemon."""
        view, name = JobView(work), work.directory.path.name
        if work.end is None or work.problem:
            return
        how = view.finished()
        duration = view.record()["duration"]
        about = {
            "job": work.job.id,
            "state": how.state,
            "reason": how.why,
            "duration_s": duration,
            "instance": how.instance,
        }
        log.info("job_ended", extra=about)
        if self._meter is not None:
            ran = None if work.begun_at is None else how.over_at - work.begun_at
            self._meter.job_ended(work.record.failure_reason or "" if how.state != "succeeded" else "", ran)
            if isinstance(work, Work):
                self._meter.stages_ended(work.stages)
        if isinstance(work, Work) and (uses := self._scaler.use_meter) is not None:
            uses.ended(work.usage, limit=work.memory_limit, steps=work.steps)
        directory = JobDirectory(self.directory / "jobs" / name)
        try:
            self._finished[name] = await to_thread.run_sync(keep, directory, how)
        except OSError as error:  # then it is known until the next start
            self._finished[name] = FinishedJob(directory, how)
            log.warning("job_not_kept", extra={"job": work.job.id, "error": str(SystemRefused(error))})
        del self._works[name]

    async def _tidy_on(self) -> None:
        while True:
            with self._unforeseen.contained("not_tidied"):
                await self._tidy()
            await anyio.sleep(TIDIED)

    async def _tidy(self) -> None:
        own, now = self.config.runner.taskscaler, self._clock.now()
        await tidy_jobs(self._finished, own, now)
        await tidy_caches(own, now)

    def _give_back_strays(self) -> None:
        """End the leases of an earlier daemon's jobs that are not resumed, and what runs there.

        Those that nothing is known of were over when it was killed, unless there is a job that nothing is known of, or
        jobs were noted down elsewhere then. But a record may have been removed by hand: a sidecar is looked for.
        """
        ours = (
            {work.record.key for work in self._works.values()} | {left.key for left in self._left} | self._relays.lost
        )
        is_known = not self._is_new and all(left.key for left in self._left) and "" not in self._relays.lost
        strays = [each.key for each in self._scaler.detached if each.key.startswith(KEYS) and each.key not in ours]
        self._tasks.start_soon(partial(self._give_back, strays, is_over=is_known))
        for key in self._relays.lost:
            self._tasks.start_soon(partial(self._strays.give_back, key, is_over=False))
        for left in self._left:
            self._tasks.start_soon(partial(self._strays.give_up, left, is_ours=self._knows(left)))

    async def _give_back(self, keys: Sequence[str], *, is_over: bool) -> None:
        if await self._strays.give_all_back(keys, is_over=is_over) and self._is_new:
            with suppress(OSError):  # then instances are replaced once more, where they need not be
                await to_thread.run_sync(has_no_strays, self.directory)

    @property
    def _strays(self) -> Strays:
        return Strays(self._scaler, self._relays, self.runs, self.executor, self._unforeseen, self._shelf)

    def _knows(self, left: Left) -> bool:
        """Whether a job that is not resumed was begun with settings of now, by one of our GitLabs."""
        noted = {cell.origin: cell.noted for cell in self._cells}.get(left.origin)
        is_known = not self._have_changed if left.record is None else left.record.settings in ("", noted)
        return noted is not None and is_known


def _read_again(config: ServiceConfig) -> ServiceConfig:
    return read_config(config.path, runner=config.runner.name or None)
