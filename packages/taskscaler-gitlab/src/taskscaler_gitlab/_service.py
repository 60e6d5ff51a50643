"""A runner on a daemon's fleet: asks GitLab for jobs when there is a slot for one, and sees each to its end."""

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from hashlib import sha256
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
from anyio import to_thread
from attrs import define, evolve, field, fields, frozen

from fleeting import Clock
from fleeting.errors import SystemRefused
from fleeting.plugins import one_line, span, write_whole
from gitlab_jobs import GitLabJobsError, Job, Outcome, Polling, Refused
from gitlab_jobs.client import GitLabClient, Runner, reporting
from taskscaler import NoCapacity, Taskscaler
from taskscaler.executors import Executor, Reattaches, load_executor
from taskscaler.observers.metrics import Metrics
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._expiry import LEAST, keep_token, may_keep, parse_time, renew_at
from taskscaler_gitlab._finished import FinishedJob, finished, keep
from taskscaler_gitlab._gitlab import about, client_of, said
from taskscaler_gitlab._keeping import Limits, outdated
from taskscaler_gitlab._limits import Facts, describe
from taskscaler_gitlab._manager_caches import tidy
from taskscaler_gitlab._metrics import RunnerMetrics, Standing, runner_label
from taskscaler_gitlab._noted_settings import NotedSettings
from taskscaler_gitlab._record import KEYS, JobDirectory, Left, Record, Stage, found, hold, read_left
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._system_id import has_no_strays, may_have_strays, system_id
from taskscaler_gitlab._traces import Follows
from taskscaler_gitlab._view import JobView
from taskscaler_gitlab._work import FAREWELL, OwnRuns, Runs, Shop, Work, end_there, let_go, replaced
from taskscaler_gitlab.relay import Relays, RelayWork

YOUNG = 2.0
"""Seconds for which a request that was just made is waited for when the daemon drains: GitLab may be answering it."""

REPORTING = 5.0
"""Seconds for which a job that had to be ended is waited for beyond that, so that GitLab learns of it."""

FORGIVEN = 3600.0
"""Seconds after which what has failed as nobody foresaw is logged again, and the token is looked after again."""

REMEMBERED = 100
"""Jobs that are over of which the daemon still knows, if they are within the limits of ``retention``."""

TIDIED = 3600.0
"""Seconds between two looks at what has become too old."""

_CONTENTS: Mapping[str, str] = {"ca_chain": "tls_ca_file", "tls_cert": "tls_cert_file", "tls_key": "tls_key_file"}
"""The keys of files, by what holds their content."""

_DATES = frozenset({"token_obtained_at", "token_expires_at"})

_STAGES: Mapping[Stage, str] = {Stage.TAKEN: "preparing", Stage.CLAIMED: "executing", Stage.ENDED: "reporting"}
"""What is done with jobs, as metrics call it."""

_NUMBERED = re.compile("gitlab-[0-9]{1,20}")

log = logging.getLogger("taskscaler.gitlab")


def executor_of(config: ServiceConfig) -> Executor:
    """Make what runs the jobs.

    Raises:
        PluginNotFound: It is not installed; says what to install.
        ConfigError: It refuses its settings.
    """
    kind = "instance" if config.runner.has_sidecars else config.runner.kind  # of jobs from before there were sidecars
    settings = config.runner.docker.executor() if kind == "docker" else {}
    path = f"{config.fleet.key}.docker" if kind == "docker" else ""
    return load_executor(kind, settings, path=path, source=str(config.path))


@frozen
class _Poll:
    """A request for a job that is under way."""

    key: str
    since: float
    scope: anyio.CancelScope = field(factory=anyio.CancelScope, eq=False)


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

    client: GitLabClient | None = None
    """None: made of the settings."""

    metrics: Metrics | None = None
    """What shows the fleet to Prometheus, and the runner as well."""

    runs: Runs = field(factory=OwnRuns)
    """How jobs run in their slots."""

    _follows: Follows = field(factory=Follows, init=False)
    _meter: RunnerMetrics | None = field(default=None, init=False)
    _scaler: Taskscaler = field(init=False)
    _clock: Clock = field(init=False)
    _shop: Shop = field(init=False)
    _runner: Runner = field(init=False)
    _tasks: anyio.abc.TaskGroup = field(init=False)
    _lock: FileIO = field(init=False)
    _is_new: bool = field(default=False, init=False)
    """Whether jobs may run that were noted down elsewhere, unknown to us: this is the first process here, or no earlier
    one has lived until it had given all their leases back."""

    _system_id: str = field(default="", init=False)
    _settings: str = field(default="", init=False)
    """The name of the settings that jobs are begun with."""

    _have_changed: bool = field(default=False, init=False)
    """Whether an earlier process may have begun jobs with others."""

    _client: GitLabClient = field(init=False)
    _left: list[Left] = field(factory=list, init=False)
    """Jobs of an earlier process that are not resumed, and are none of this GitLab's business."""

    _relays: Relays = field(init=False)
    _works: dict[str, Work | RelayWork] = field(factory=dict, init=False)
    """Those that are not over, or stuck, by the names of their directories."""

    _finished: dict[str, FinishedJob] = field(factory=dict, init=False)
    """Those that are over, likewise."""

    _polls: list[_Poll] = field(factory=list, init=False)
    _waits_for_slot: bool = field(default=False, init=False)
    _draining: bool = field(default=False, init=False)
    _ends_for_good: bool = field(default=False, init=False)
    """Whether no later daemon is expected to resume jobs."""

    _begun: bool = field(default=False, init=False)
    _logged: dict[str, float] = field(factory=dict, init=False)
    """When failures of a kind were logged last that are tried again."""

    _asking: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _looking_after: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    """Around what keeps the token good, for as long as it is the same in the file."""

    _token_in_file: str = field(init=False, repr=False)
    """As we read or wrote it last: where a new one could not be written, the one in use is another."""

    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _done: anyio.Event = field(factory=anyio.Event, init=False)

    @_token_in_file.default
    def _token_read(self) -> str:
        return self.config.runner.token

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
        self._client = self.client or client_of(self.config.runner)
        self._relays = Relays(self.config.runner, self.directory, self._origin, self.is_kept)
        await to_thread.run_sync(self._relays.load)
        self._shop = self._shop_of(self._client, self._info)
        self._show()
        await to_thread.run_sync(self._take_up)
        for work in self._relays.resume(self._shop, self.say):
            self._works[work.directory.path.name] = work
        return sum(not (isinstance(work, Work) and work.wreck) for work in self._works.values())

    def _show(self) -> None:
        """Show what the runner does, if anything is shown."""
        if self.metrics is not None:
            runner = self.config.runner
            labels = {"runner": runner_label(runner.token), "runner_name": runner.name, "system_id": self._system_id}
            self.metrics.label(labels)
            self._meter = RunnerMetrics(self.metrics.registry, labels, lambda: self._standing)
            self._client.http.observer = self._meter.answered
            self._client.http.on_retry = self._meter.retried

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
            requests=len(self._polls),
            most_requests=runner.request_concurrency,
            wanted_requests=self._runner.polling.wanted if self._begun else 1.0,
            concurrent=self.config.top.concurrent,
            limit=runner.limit,
        )

    def _take_up(self) -> None:
        self._settings = self._noted_settings.keep(self.config.runner)
        self._have_changed = self._noted_settings.has_others(self._settings)
        for left in self._read():
            self._classify(left)
        needed = {work.record.settings for work in self._works.values() if isinstance(work, Work)}
        self._noted_settings.forget_others({self._settings, *needed})

    def _read(self) -> list[Left]:
        """Read what an earlier process has left; returns the jobs that are not over, oldest first."""
        unfinished, others = found(self.directory / "jobs")
        self._finished = {each.directory.path.name: each for each in finished(others, self._origin)}
        jobs = [read_left(each, self.runs.kept_log) for each in unfinished]
        return sorted(jobs, key=lambda left: left.standing.taken_at)

    def _classify(self, left: Left) -> None:
        """Resume a job, or see that it ends; says what cannot be resumed, and why."""
        name = "a job" if left.job is None else f"the job {left.job.id}"
        if left.origin not in ("", self._origin):  # its token is none of this GitLab's business
            self._left.append(left)
            self.say(
                f"warning: {name} is from another GitLab than {self.config.runner.url}, or was taken by another"
                " runner; it is given up, and its instance is replaced"
            )
        elif left.job is None or not left.origin:
            self._left.append(left)
            self.say(
                f"warning: {name} cannot be continued: {left.problem}; what it left running is ended, but it"
                " cannot be reported, so GitLab fails it when its time is over"
            )
        else:
            work = self._resumed(left, left.job)
            self._works[left.directory.path.name] = work
            if work.wreck:
                self.say(
                    f"warning: {name} cannot be continued: {left.problem or work.wreck}; what it left running is ended,"
                    " and it is reported as failed"
                )

    def _resumed(self, left: Left, job: Job) -> Work:
        """Go on with a job, with the settings with which it was begun. Blocks."""
        shop, record, why = self._shop, left.standing, left.reason
        is_ended_by = left.record is not None or not self._have_changed
        if record.settings not in ("", self._settings) and not why and record.stage is not Stage.ENDED:
            changed = None if self.runs.has_begun(left.directory.path) else self._with_these_settings(left, record)
            if changed is None:
                shop, why = self._shop_with(record.settings, job)
                is_ended_by = not why
            else:
                record = changed
        return Work(shop, job, left.directory, record, is_ended_by, why)

    def _with_these_settings(self, left: Left, record: Record) -> Record | None:
        """Note down that a job is begun with the settings of now; None: it cannot be, so it keeps the others. Blocks.

        Otherwise the next start would look for it with those.
        """
        changed = evolve(record, settings=self._settings)
        try:
            left.directory.note(changed)
        except OSError as error:
            log.warning("settings_not_noted_down", extra={"error": str(SystemRefused(error))})
            return None
        return changed

    def _shop_with(self, settings: str, job: Job) -> tuple[Shop, str]:
        """What a job needs that was begun with other settings, or why that cannot be had. Blocks."""
        now = self.config.runner
        try:
            noted = self._noted_settings.read(settings, now)
            executor = executor_of(evolve(self.config, runner=noted)) if _differ(noted, now) else self.executor
        except Exception as error:  # noqa: BLE001  (it is said, and ends the job)
            why = (isinstance(error, OSError) and error.strerror) or one_line(str(error))
            return self._shop, f"the settings that it started with cannot be used: {why}"
        if noted.kind != now.kind:
            self.say(
                f'note: the job {job.id} was started with executor = "{noted.executor}", and keeps it;'
                f" later ones run with {now.executor}"
            )
        return evolve(self._shop, settings=noted, executor=executor), ""

    @property
    def _noted_settings(self) -> NotedSettings:
        return NotedSettings(self.directory / "settings")

    @property
    def _origin(self) -> str:
        """Stands for GitLab and this manager of its runner, in the names of tries."""
        return sha256(f"{self.config.runner.url} {self._system_id}".encode()).hexdigest()[:12]

    async def run(self) -> None:
        """Ask for jobs and see them to their ends, until they are left."""
        runner = self.config.runner
        try:
            counting = nullcontext() if self._meter is None else self._meter.errors.attached()
            with counting:
                await self._run(runner)
        finally:
            self._lock.close()
            self._done.set()

    async def _run(self, runner: RunnerSettings) -> None:
        async with self._client as client, self._relays.open(), anyio.create_task_group() as self._tasks:
            polling = Polling(
                anyio.current_time(),
                request_concurrency=runner.request_concurrency,
                check_interval=self.config.check_interval,
            )
            info = self._shop.info
            self._runner = Runner(client, runner.token, info=info, system_id=self._system_id, polling=polling)
            self._begun = True
            self._give_back_strays()
            for work in self._active:
                self._tasks.start_soon(self._see_through, work)
            self._tasks.start_soon(self._ask_on)
            self._tasks.start_soon(self._look_after_token)
            self._tasks.start_soon(self._tidy_on)

    @property
    def _info(self) -> Mapping[str, Any]:
        """What is said to GitLab about who runs its jobs."""
        return self._relays.about.as_info if self.config.runner.has_sidecars else about(self.config.runner)

    def _shop_of(self, client: GitLabClient, info: Mapping[str, Any]) -> Shop:
        return Shop(
            settings=self.config.runner,
            client=client,
            scaler=self._scaler,
            executor=self.executor,
            runs=self.runs,
            clock=self._clock,
            info=info,
            outlives=self.is_kept and isinstance(self.executor, Reattaches),
            is_draining=lambda: self._draining,
            follows=self._follows,
        )

    def drain(self, *, for_good: bool = False) -> None:
        """Ask for no more jobs; a request that was just made is waited for.

        Jobs without a slot wait for the next daemon. If there is to be none, GitLab gets them back.
        """
        self._draining, self._ends_for_good = True, self._ends_for_good or for_good
        self._asking.cancel()
        for poll in self._polls:
            poll.scope.deadline = min(poll.scope.deadline, poll.since + YOUNG)
        if self._ends_for_good:
            for work in self._active:
                work.hand_back()
        self._note_change()

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
        if not self._shop.outlives:
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
            return view.explain()
        if not _NUMBERED.fullmatch(job):
            return ()
        return (f"{job} is not known here: GitLab has not handed it out, or did long ago", f"{self.status()}")

    def _find(self, job: str) -> JobView | FinishedJob | None:
        return next((view for view in reversed(self.jobs) if view.id == job), None)

    @property
    def _facts(self) -> Facts:
        polling = self._runner.polling if self._begun else None
        silent = polling is not None and polling.is_silenced and polling.wake is not None
        return Facts(
            url=self.config.runner.url,
            jobs=sum(work.record.stage is not Stage.ENDED for work in self._active),
            requests=len(self._polls),
            concurrent=self.config.top.concurrent,
            limit=self.config.runner.limit,
            request_limit=polling.limit if polling else 1,
            waits_for_slot=self._waits_for_slot,
            is_draining=self._draining,
            trouble=one_line(self._runner.trouble) if self._begun else "",
            silent_for=max(0.0, (polling.wake or 0.0) - anyio.current_time()) if silent and polling else 0.0,
        )

    async def reload(self) -> Sequence[str]:
        """Take over the numbers and the token; everything else takes effect after a restart."""
        config = await to_thread.run_sync(_read_again, self.config)
        old, new = self.config.runner, config.runner
        is_other = new.token != self._token_in_file
        if is_other and self._begun:
            self._runner.use_token(new.token)
        names = [each.name for each in fields(type(old)) if getattr(old, each.name) != getattr(new, each.name)]
        top = [
            name
            for name in ("check_interval", "log_level")
            if getattr(config.top, name) != getattr(self.config.top, name)
        ]
        self.config = evolve(
            self.config,
            top=evolve(self.config.top, concurrent=config.top.concurrent),
            runner=evolve(
                old,
                token=new.token if is_other else old.token,
                limit=new.limit,
                token_obtained_at=new.token_obtained_at,
                token_expires_at=new.token_expires_at,
            ),
        )
        self._token_in_file = new.token
        if is_other or not _DATES.isdisjoint(names):
            self._looking_after.cancel()
        self._note_change()
        self.say(f"reloaded: concurrent = {config.top.concurrent}, limit = {new.limit}{', the token' * is_other}")
        later = dict.fromkeys(_CONTENTS.get(name, name) for name in names if name not in {"token", "limit", *_DATES})
        return [*(f"{name} changed" for name in top), *(f"runners.{name} changed" for name in later)]

    # --- asking for jobs ---------------------------------------------------------------------------------

    async def _ask_on(self) -> None:
        """Ask whenever a request is due, there may be one more job, and a slot is reserved for it."""
        with self._asking:
            while not self._draining:
                with self._contained("asking_failed"):
                    await self._ask_next()
                    continue
                await anyio.sleep(self.config.check_interval)

    async def _ask_next(self) -> None:
        while not self._facts.has_room:
            await self._changed.wait()
        await self._runner.turn()
        if self._meter is not None:
            self._meter.turns += 1
        key = await self._reserve()
        poll = _Poll(key, anyio.current_time())
        self._polls.append(poll)
        asked = anyio.Event()
        self._tasks.start_soon(self._ask, poll, asked)
        await asked.wait()

    @contextmanager
    def _contained(self, event: str, **about: object) -> Iterator[None]:
        """Have what goes wrong, and nobody foresaw, end the body alone, and log it."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (logged)
            self._log_unforeseen(error, event, about)

    def _log_unforeseen(self, error: Exception, event: str, about: Mapping[str, object]) -> None:
        """Log where something failed; of what is tried again and again, once an hour."""
        last, now = self._logged.get(event, -math.inf), anyio.current_time()
        is_again = not about and now - last < FORGIVEN
        if not about and not is_again:
            self._logged[event] = now
        log.log(logging.DEBUG if is_again else logging.ERROR, event, exc_info=error, extra=dict(about))

    async def _reserve(self) -> str:
        """Keep a slot for the job that may come; waits until there is one."""
        key = f"{KEYS}{token_hex(6)}"
        self._waits_for_slot = True
        try:
            await self._scaler.reserve(key, timeout=math.inf)
        except NoCapacity:
            await anyio.sleep_forever()  # the fleet is ending, and so is this
        finally:
            self._waits_for_slot = False
        return key

    async def _ask(self, poll: _Poll, asked: anyio.Event) -> None:
        """Ask once; the slot is given back if no job came."""
        with self._contained("request_failed"):
            job = None
            try:
                with poll.scope:
                    job = await self._asked_once(asked)
                if job is not None:
                    await self._take(job, poll.key)
            finally:
                asked.set()
                self._polls.remove(poll)  # not before the job counts
                self._note_change()
                if job is None:
                    with anyio.CancelScope(shield=True):
                        await self._scaler.unreserve(poll.key)
            self._say_if_silenced()

    async def _asked_once(self, asked: anyio.Event) -> Job | None:
        """Ask; what nobody foresaw costs this request, and time, but not the runner."""
        try:
            self._runner.info = self._info
            return await self._runner.ask(asked=asked.set)
        except Exception as error:  # noqa: BLE001  (logged)
            self._log_unforeseen(error, "request_failed", {})
            if self._meter is not None:
                self._meter.unforeseen += 1
            await anyio.sleep(self.config.check_interval)
            return None

    def _say_if_silenced(self) -> None:
        if self._runner.polling.is_silenced and (silent := self._facts.silent_for):
            if self._meter is not None:
                self._meter.silences += 1
            self.say(
                f"warning: {self.config.runner.url} refused the runner's token three times; it is asked again in"
                f" {span(silent)}. Check the token: taskscaler-gitlab check {self.config.path}"
            )

    async def _take(self, job: Job, key: str) -> None:
        """Note a job down before anything else, and begin with it; one that cannot be noted down fails at once."""
        try:
            work = await self._noted(job, key)
        except Exception as error:
            log.exception("job_refused", extra={"job": job.id})
            why = (isinstance(error, OSError) and error.strerror) or type(error).__name__
            await self._refuse(job, key, f"it cannot be noted down ({why})")
            return
        self._works[work.directory.path.name] = work
        if self._ends_for_good:
            work.hand_back()
        self._tasks.start_soon(self._see_through, work)

    async def _noted(self, job: Job, key: str) -> Work | RelayWork:
        """Note a job down. What is raised, it raises."""
        noted: Work | RelayWork
        if self.config.runner.has_sidecars:
            with anyio.CancelScope(shield=True):
                noted = await to_thread.run_sync(self._relays.take, self._shop, job, key, self._clock.now())
        else:
            directory = JobDirectory.of(self.directory / "jobs", self._origin, job.id, key)
            record = Record(key=key, prefix=directory.path.name, taken_at=self._clock.now(), settings=self._settings)
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(directory.begin, job, record)
            noted = Work(self._shop, job, directory, record)
        name, project = one_line(job.job_info.name), one_line(job.job_info.project_full_path)
        log.info("job_taken", extra={"job": job.id, "project": project, "job_name": name})
        if self._meter is not None:
            info = job.job_info
            self._meter.job_taken(info.time_in_queue_seconds, size=info.queue_size, depth=info.queue_depth)
        return noted

    async def _refuse(self, job: Job, key: str, why: str) -> None:
        """Report a job as failed that cannot be taken, and leave nothing of it."""
        directory = JobDirectory.of(self.directory / "jobs", self._origin, job.id, key)
        await to_thread.run_sync(directory.remove)
        await to_thread.run_sync(self._relays.directory_of(job.id, key).remove)
        await self._scaler.unreserve(key)
        async with reporting(self._shop.client, job, info=self._shop.info) as report:
            report.note(f"\x1b[31;1mERROR: Job failed (system failure): {why}\x1b[0;m\n")
            await report.finish(Outcome(is_success=False, failure_reason="runner_system_failure"))
        self.say(f"warning: the job {job.id} was refused: {why}")

    async def _see_through(self, work: Work | RelayWork) -> None:
        with self._contained("job_not_copied", job=work.job.id):
            if isinstance(work, Work) and work.wreck:
                await to_thread.run_sync(work.directory.copy_aside, self._shelf)
        with self._contained("job_stuck", job=work.job.id):
            await work.see_through()
        with self._contained("job_not_tidied", job=work.job.id):
            if work.problem:
                self.say(f"warning: the job {work.job.id} cannot continue: {work.problem}")
            if work.record.outcome is None or work.problem:
                await self._scaler.unreserve(work.record.key)
            with anyio.move_on_after(REPORTING, shield=True):  # GitLab has its end, which is to be known here, too
                await self._remember(work)
            await self._tidy()
        self._note_change()

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
        directory = JobDirectory(self.directory / "jobs" / name)
        try:
            self._finished[name] = await to_thread.run_sync(keep, directory, how)
        except OSError as error:  # then it is known until the next start
            self._finished[name] = FinishedJob(directory, how)
            log.warning("job_not_kept", extra={"job": work.job.id, "error": str(SystemRefused(error))})
        del self._works[name]

    async def _tidy_on(self) -> None:
        while True:
            with self._contained("not_tidied"):
                await self._tidy()
            await anyio.sleep(TIDIED)

    async def _tidy(self) -> None:
        """Keep the logs of the last jobs that are over, within the limits of the settings."""
        retention = self.config.runner.taskscaler.retention
        limits = Limits(age=retention.age, size=retention.size, most=REMEMBERED)
        kept = [*self._finished.values()]
        sizes = await to_thread.run_sync(lambda: [each.kept for each in kept])
        for name in outdated(sizes, limits, self._clock.now()):
            if (job := self._finished.pop(name, None)) is not None:  # somebody else may have forgotten it meanwhile
                await to_thread.run_sync(job.directory.remove)
        await self._tidy_caches()

    async def _tidy_caches(self) -> None:
        """Keep the caches on this machine within the limits of the settings."""
        own = self.config.runner.taskscaler
        if own.cache_on_manager is None:
            return
        limits, now = Limits(age=own.cache_retention.age, size=own.cache_retention.size), self._clock.now()
        if gone := await to_thread.run_sync(tidy, Path(own.cache_on_manager), limits, now):
            log.info("caches_removed", extra={"caches": len(gone)})

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
        self._tasks.start_soon(self._give_all_back, strays, is_known)
        for key in self._relays.lost:
            self._tasks.start_soon(self._give_back, key, False)
        for left in self._left:
            self._tasks.start_soon(self._give_up, left)

    async def _give_all_back(self, keys: Sequence[str], is_over: bool) -> None:  # noqa: FBT001  (start_soon has no keywords)
        given: list[bool] = []
        async with anyio.create_task_group() as tasks:

            async def give(key: str) -> None:
                given.append(await self._give_back(key, is_over))

            for key in keys:
                tasks.start_soon(give, key)
        if self._is_new and all(given):
            with suppress(OSError):  # then instances are replaced once more, where they need not be
                await to_thread.run_sync(has_no_strays, self.directory)

    async def _give_back(self, key: str, is_over: bool) -> bool:  # noqa: FBT001  (likewise)
        with self._contained("stray_stays", key=key):
            await let_go(self._scaler, key, self._relays.clear if is_over else replaced)
            return True
        return False

    async def _give_up(self, left: Left) -> None:
        """End a job that is not resumed, as far as that can be done, and leave nothing of it here."""
        with self._contained("job_stays", path=str(left.directory.path)):
            is_known = not self._have_changed if left.record is None else left.record.settings in ("", self._settings)
            is_ours = left.origin == self._origin and is_known
            end = partial(end_there, self.runs, self.executor, directory=left.directory.path)
            await let_go(self._scaler, left.key, end if is_ours else replaced)
            if left.problem:
                await to_thread.run_sync(left.directory.copy_aside, self._shelf)
            await to_thread.run_sync(left.directory.remove)

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the runner's token ------------------------------------------------------------------------------

    async def _look_after_token(self) -> None:
        """Keep the runner's token good, whatever goes wrong with it, and each that a reload brings."""
        while True:
            with anyio.CancelScope() as self._looking_after:
                with self._contained("token_not_looked_after"):
                    await self._keep_token_good()
                    await anyio.sleep_forever()  # until there is another
                await anyio.sleep(FORGIVEN)

    async def _keep_token_good(self) -> None:
        """See whether GitLab knows the token, and have it replaced in time if it ends one day."""
        obtained = parse_time(self.config.runner.token_obtained_at) or self._clock.now()
        expires, earliest = await self._expiry(), 0.0
        while (at := renew_at(obtained, expires)) is not None:
            await self._clock.sleep_until(max(at, earliest))
            if why := await to_thread.run_sync(may_keep, self.config.path, self.config.runner.token):
                self.say(
                    f"warning: the runner's token ends, and is not replaced: {why}; use taskscaler-gitlab reset-token"
                )
                return
            obtained = self._clock.now()
            earliest = obtained + LEAST  # a token may have ended when it comes, by our clock or by GitLab's
            expires = await self._renewed(expires)

    async def _expiry(self) -> float | None:
        """When the token ends, as GitLab or else the file has it."""
        runner, is_known = self.config.runner, False
        while True:
            try:
                answer = await self._shop.client.verify(runner.token, system_id=self._system_id, info=self._shop.info)
            except Refused as error:
                self.say(f"warning: {one_line(str(error))}; check the runner's token")
                return None
            except GitLabJobsError as error:
                if not is_known:
                    self.say(f"warning: the runner's token could not be checked: {said(error)}")
                is_known = True
                await anyio.sleep(LEAST)
            else:
                return parse_time(answer.token_expires_at) or parse_time(runner.token_expires_at)

    async def _renewed(self, expires: float | None) -> float | None:
        """Have the token replaced, and keep the new one; returns when that ends."""
        old = self.config.runner.token
        try:
            with anyio.CancelScope(shield=True):
                answer = await self._runner.reset_token()
                self.config = evolve(self.config, runner=evolve(self.config.runner, token=answer.token))
                problem = await to_thread.run_sync(self._keep, old, answer.token)
        except GitLabJobsError as error:
            log.warning("token_not_replaced", extra={"reason": one_line(str(error))})
            await anyio.sleep(LEAST)
            return expires
        if problem:
            self.say(
                f"warning: the runner's token was replaced, and the new one cannot be kept ({problem}): it is lost"
                f" when the runner stops; it is tried again every {span(LEAST)}"
            )
        while problem:
            await anyio.sleep(LEAST)
            problem = await to_thread.run_sync(self._keep, old, answer.token)
        return parse_time(answer.token_expires_at)

    def _keep(self, old: str, new: str) -> str:
        """Keep a new token for the next start, in the file if that is possible: the old one is good for nothing.

        Returns:
            Why it cannot be kept anywhere; empty: it is kept.
        """
        try:
            keep_token(self.config.path, old, new)
        except (OSError, ValueError) as error:
            try:
                write_whole(path := self.directory / "token", new.encode())
            except OSError as other:
                return str(SystemRefused(other))
            self.say(
                f"warning: the runner's token was replaced, and {self.config.path} could not be changed ({error});"
                f" the new one is in {path}"
            )
        else:
            self._token_in_file = new
            self.say(f"the runner's token was replaced, and is kept in {self.config.path}")
        return ""


def _differ(noted: RunnerSettings, now: RunnerSettings) -> bool:
    """Whether jobs with these settings need executors of their own."""
    return (noted.kind, noted.docker, noted.has_sidecars) != (now.kind, now.docker, now.has_sidecars)


def _read_again(config: ServiceConfig) -> ServiceConfig:
    return read_config(config.path, runner=config.runner.name or None)
