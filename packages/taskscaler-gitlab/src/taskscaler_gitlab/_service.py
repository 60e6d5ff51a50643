"""A runner on a daemon's fleet: asks GitLab for jobs when there is a slot for one, and sees each to its end."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from io import FileIO
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
from anyio import to_thread
from attrs import define, evolve, field, fields, frozen

from fleeting import Clock, ConfigError, FleetingError
from fleeting.plugins import one_line, span, write_whole
from gitlab_jobs import GitLabJobsError, Job, Outcome, Polling, Refused
from gitlab_jobs.client import GitLabClient, Runner, reporting
from taskscaler import NoCapacity, Taskscaler
from taskscaler.executors import Executor, Reattaches, load_executor
from taskscaler_gitlab._config import ServiceConfig, read_config
from taskscaler_gitlab._expiry import LEAST, keep_token, may_keep, parse_time, renew_at
from taskscaler_gitlab._gitlab import about, client_of, said
from taskscaler_gitlab._limits import Facts, describe
from taskscaler_gitlab._record import JobDirectory, Record, Stage, found, hold
from taskscaler_gitlab._system_id import system_id
from taskscaler_gitlab._view import JobView
from taskscaler_gitlab._work import FAREWELL, OwnRuns, Runs, Shop, Work

PREFIX = "gitlab/"
"""How the keys of jobs begin."""

YOUNG = 2.0
"""Seconds for which a request that was just made is waited for when the daemon drains: GitLab may be answering it."""

REMEMBERED = 100
"""Jobs that are over of which the daemon still knows."""

REMEMBERED_BYTES = 256 << 20
"""Bytes that their logs may have on this machine."""

log = logging.getLogger("taskscaler.gitlab")


def executor_of(config: ServiceConfig) -> Executor:
    """Make what runs the jobs.

    Raises:
        PluginNotFound: It is not installed; says what to install.
        ConfigError: It refuses its settings.
    """
    settings = config.runner.docker.executor() if config.runner.kind == "docker" else {}
    path = f"{config.fleet.key}.docker" if config.runner.kind == "docker" else ""
    return load_executor(config.runner.kind, settings, path=path, source=str(config.path))


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

    runs: Runs = field(factory=OwnRuns)
    """How jobs run in their slots."""

    _scaler: Taskscaler = field(init=False)
    _clock: Clock = field(init=False)
    _shop: Shop = field(init=False)
    _runner: Runner = field(init=False)
    _tasks: anyio.abc.TaskGroup = field(init=False)
    _lock: FileIO = field(init=False)
    _system_id: str = field(default="", init=False)
    _earlier: list[tuple[JobDirectory, Job, Record]] = field(factory=list, init=False)
    _foreign: set[str] = field(factory=set, init=False)
    """Keys of the leases of jobs that were taken from another GitLab."""

    _works: dict[str, Work] = field(factory=dict, init=False)
    """All that are known, by the names of their directories, oldest first."""

    _polls: list[_Poll] = field(factory=list, init=False)
    _waits_for_slot: bool = field(default=False, init=False)
    _draining: bool = field(default=False, init=False)
    _begun: bool = field(default=False, init=False)
    _asking: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _done: anyio.Event = field(factory=anyio.Event, init=False)

    @property
    def name(self) -> str:
        """See `JobOwner.name`."""
        return "gitlab"

    # --- the daemon's life -------------------------------------------------------------------------------

    async def take_up(self, scaler: Taskscaler, clock: Clock) -> int:
        """See `JobOwner.take_up`."""
        self._scaler, self._clock = scaler, clock
        self._lock = await to_thread.run_sync(hold, self.directory)
        self._system_id = await to_thread.run_sync(system_id, self.directory)
        self._earlier = await to_thread.run_sync(self._read)
        return len(self._earlier)

    def _read(self) -> list[tuple[JobDirectory, Job, Record]]:
        jobs = []
        for each in found(self.directory / "jobs"):
            try:
                job, record = each.read()
                if record.prefix.startswith(f"{self._origin}-"):
                    jobs.append((each, job, record))
                else:  # its token is none of this GitLab's business
                    each.remove()
                    self._foreign.add(record.key)
                    self.say(
                        f"warning: the job {job.id} is from another GitLab than {self.config.runner.url}, or was taken"
                        " by another runner; it is given up, and its instance is replaced"
                    )
            except (OSError, ValueError, GitLabJobsError, ConfigError) as error:
                log.warning("job_unreadable", extra={"path": str(each.path), "error": one_line(str(error))})
        return sorted(jobs, key=lambda job: job[2].taken_at)

    @property
    def _origin(self) -> str:
        """Stands for GitLab and this manager of its runner, in the names of tries."""
        return sha256(f"{self.config.runner.url} {self._system_id}".encode()).hexdigest()[:12]

    async def run(self) -> None:
        """Ask for jobs and see them to their ends, until they are left."""
        runner = self.config.runner
        try:
            async with self.client or client_of(runner) as client, anyio.create_task_group() as self._tasks:
                info = about(runner)
                self._shop = self._shop_of(client, info)
                polling = Polling(
                    anyio.current_time(),
                    request_concurrency=runner.request_concurrency,
                    check_interval=self.config.check_interval,
                )
                self._runner = Runner(client, runner.token, info=info, system_id=self._system_id, polling=polling)
                self._begun = True
                for directory, job, record in self._earlier:
                    self._begin(directory, job, record)
                self._tasks.start_soon(self._give_back_strays)
                self._tasks.start_soon(self._ask_on)
                self._tasks.start_soon(self._keep_token_good)
        finally:
            self._lock.close()
            self._done.set()

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
        )

    def drain(self) -> None:
        """Ask for no more jobs; a request that was just made is waited for."""
        self._draining = True
        self._asking.cancel()
        for poll in self._polls:
            poll.scope.deadline = poll.since + YOUNG
        self._note_change()

    async def settle(self) -> None:
        """See `JobOwner.settle`."""
        while works := [each for each in self._active if each.record.stage is not Stage.TAKEN]:
            await works[0].over.wait()

    async def leave(self) -> None:
        """Leave the jobs that run to the next daemon; those that cannot outlive this one are ended."""
        self.drain()
        if not self._begun:
            return
        if not self._shop.outlives:
            for work in self._active:
                work.interrupt("The runner was stopped")
            with anyio.move_on_after(FAREWELL):
                for work in self._active:
                    await work.over.wait()
        self._tasks.cancel_scope.cancel()
        await self._done.wait()

    # --- as clients see it -------------------------------------------------------------------------------

    @property
    def jobs(self) -> Sequence[JobView]:
        """See `JobOwner.jobs`."""
        return [JobView(work) for work in self._works.values()]

    @property
    def running(self) -> int:
        """See `JobOwner.running`."""
        return len(self._active)

    @property
    def _active(self) -> Sequence[Work]:
        return [work for work in self._works.values() if not work.over.is_set()]

    def status(self) -> str:
        """See `JobOwner.status`."""
        return describe(self._facts)

    def key_of(self, job: str) -> str | None:
        """See `JobOwner.key_of`."""
        view = self._find(job)
        return None if view is None or view.over or view.work.record.outcome else view.work.record.key

    def explain(self, job: str) -> Sequence[str]:
        """See `JobOwner.explain`."""
        view = self._find(job)
        return () if view is None else view.explain()

    def _find(self, job: str) -> JobView | None:
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
            silent_for=max(0.0, (polling.wake or 0.0) - anyio.current_time()) if silent and polling else 0.0,
        )

    async def reload(self) -> Sequence[str]:
        """Take over the numbers and the token; everything else takes effect after a restart."""
        config = await to_thread.run_sync(_read_again, self.config)
        old, new = self.config.runner, config.runner
        if new.token != old.token and self._begun:
            self._runner.use_token(new.token)
        taken = {"token", "limit", "token_obtained_at", "token_expires_at", "ca_chain"}
        names = [each.name for each in fields(type(old)) if getattr(old, each.name) != getattr(new, each.name)]
        top = [
            name
            for name in ("check_interval", "log_level")
            if getattr(config.top, name) != getattr(self.config.top, name)
        ]
        self.config = evolve(
            self.config,
            top=evolve(self.config.top, concurrent=config.top.concurrent),
            runner=evolve(old, token=new.token, limit=new.limit),
        )
        self._note_change()
        return [
            *(f"{name} changed" for name in top),
            *(f"runners.{name} changed" for name in names if name not in taken),
        ]

    # --- asking for jobs ---------------------------------------------------------------------------------

    async def _ask_on(self) -> None:
        """Ask whenever a request is due, there may be one more job, and a slot is reserved for it."""
        with self._asking:
            while not self._draining:
                while not self._facts.has_room:
                    await self._changed.wait()
                await self._runner.turn()
                key = await self._reserve()
                poll = _Poll(key, anyio.current_time())
                self._polls.append(poll)
                asked = anyio.Event()
                self._tasks.start_soon(self._ask, poll, asked)
                await asked.wait()

    async def _reserve(self) -> str:
        """Keep a slot for the job that may come; waits until there is one."""
        key = f"{PREFIX}{token_hex(6)}"
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
        job = None
        try:
            with poll.scope:
                job = await self._asked_once(asked)
            if job is not None:
                await self._take(job, poll.key)
        finally:
            asked.set()
            self._polls.remove(poll)  # not before the job counts
            if job is None:
                with anyio.CancelScope(shield=True):
                    await self._scaler.unreserve(poll.key)
            self._note_change()
        self._say_if_silenced()

    async def _asked_once(self, asked: anyio.Event) -> Job | None:
        """Ask; what nobody foresaw costs this request, and time, but not the runner."""
        try:
            return await self._runner.ask(asked=asked.set)
        except Exception:
            log.exception("request_failed")
            await anyio.sleep(self.config.check_interval)
            return None

    def _say_if_silenced(self) -> None:
        if self._runner.polling.is_silenced and (silent := self._facts.silent_for):
            self.say(
                f"warning: {self.config.runner.url} refused the runner's token three times; it is asked again in"
                f" {span(silent)}. Check the token: taskscaler-gitlab check {self.config.path}"
            )

    async def _take(self, job: Job, key: str) -> None:
        """Note a job down before anything else, and begin with it."""
        record = Record(key=key, prefix=f"{self._origin}-{job.id}-{token_hex(2)}", taken_at=self._clock.now())
        directory = JobDirectory(self.directory / "jobs" / f"{job.id}-{token_hex(3)}")
        try:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(directory.begin, job, record)
        except OSError as error:
            await self._refuse(job, key, f"it cannot be noted down ({error.strerror})")
            return
        info = job.job_info
        log.info(
            "job_taken",
            extra={"job": job.id, "project": one_line(info.project_full_path), "job_name": one_line(info.name)},
        )
        self._begin(directory, job, record)

    async def _refuse(self, job: Job, key: str, why: str) -> None:
        """Report a job as failed that cannot be taken."""
        log.error("job_refused", extra={"job": job.id, "why": why})
        await self._scaler.unreserve(key)
        async with reporting(self._shop.client, job, info=self._shop.info) as report:
            report.note(f"\x1b[31;1mERROR: Job failed (system failure): {why}\x1b[0;m\n")
            await report.finish(Outcome(is_success=False, failure_reason="runner_system_failure"))

    def _begin(self, directory: JobDirectory, job: Job, record: Record) -> None:
        work = Work(self._shop, job, directory, record)
        self._works[directory.path.name] = work
        self._tasks.start_soon(self._see_through, work)

    async def _see_through(self, work: Work) -> None:
        await work.see_through()
        if work.problem:
            self.say(f"warning: the job {work.job.id} cannot continue: {work.problem}")
        if work.record.outcome is None or work.problem:
            await self._scaler.unreserve(work.record.key)
        self._log_end(JobView(work))
        await self._forget_oldest()
        self._note_change()

    def _log_end(self, view: JobView) -> None:
        if view.work.end is None:  # it is left to the next daemon
            return
        said = view.record()
        what = {"state": view.state, "reason": view.why, "duration_s": said["duration"], "instance": said["instance"]}
        log.info("job_ended", extra={"job": view.work.job.id, **what})

    async def _forget_oldest(self) -> None:
        """Keep the logs of the last jobs that are over, as long as they are not too many or too large."""
        over = [name for name, work in self._works.items() if work.over.is_set() and not work.problem]
        sizes = {name: await to_thread.run_sync(self._works[name].directory.size) for name in over}
        while len(sizes) > REMEMBERED or sum(sizes.values()) > REMEMBERED_BYTES:
            oldest = next(iter(sizes))
            del sizes[oldest]
            if (work := self._works.pop(oldest, None)) is not None:  # somebody else may have forgotten it meanwhile
                await to_thread.run_sync(work.directory.remove)

    async def _give_back_strays(self) -> None:
        """End the leases of an earlier daemon's jobs that are not resumed.

        Those that nothing is known of were over when it was killed; those of another GitLab still run.
        """
        ours = {record.key for _, _, record in self._earlier}
        for each in self._scaler.detached:
            if each.key.startswith(PREFIX) and each.key not in ours:
                try:
                    lease = await self._scaler.reattach(each.key)
                    if each.key in self._foreign:
                        lease.mark_suspect("a job of another GitLab runs there")
                    lease.release()
                except FleetingError as error:
                    log.info("stray_gone", extra={"key": each.key, "why": one_line(str(error))})

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # --- the runner's token ------------------------------------------------------------------------------

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
                await to_thread.run_sync(self._keep, old, answer.token)
        except GitLabJobsError as error:
            log.warning("token_not_replaced", extra={"reason": one_line(str(error))})
            await anyio.sleep(LEAST)
            return expires
        self.config = evolve(self.config, runner=evolve(self.config.runner, token=answer.token))
        return parse_time(answer.token_expires_at)

    def _keep(self, old: str, new: str) -> None:
        """Keep a new token for the next start, in the file if that is possible: the old one is good for nothing."""
        try:
            keep_token(self.config.path, old, new)
        except (OSError, ValueError) as error:
            write_whole(path := self.directory / "token", new.encode())
            self.say(
                f"warning: the runner's token was replaced, and {self.config.path} could not be changed ({error});"
                f" the new one is in {path}"
            )
        else:
            self.say(f"the runner's token was replaced, and is kept in {self.config.path}")


def _read_again(config: ServiceConfig) -> ServiceConfig:
    return read_config(config.path, runner=config.runner.name or None)
