"""Steps that run: does what the core says, and tells it what came of it."""

import os
import re
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from tempfile import mkdtemp

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from job_steps._breakpoints import At, Decision, Moment, When
from job_steps._cgroups import cgroups_here
from job_steps._definitions import Function, Step
from job_steps._delegation import Delegation, Request, delegate
from job_steps._errors import StepFailed
from job_steps._files import MAX_FILE
from job_steps._git import Repositories
from job_steps._keeping import Keeping, kept
from job_steps._limits import NO_LIMITS, Limits, check_limits
from job_steps._loading import Loader, origin_of_job
from job_steps._process import run_command
from job_steps._removing import remove_tree
from job_steps._results import Status, StepResult
from job_steps._run import Action, CameBack, Delegate, Execute, Finish, Load, Origin, Run, Settings, Variable
from job_steps._secrets import Masked
from job_steps._time_limit import standing_still
from job_steps._values import Value

Log = Callable[[bytes], Awaitable[None]]
"""Takes what steps print, and what the run says, in order, with secrets masked."""

Admit = Callable[[Step, tuple[str, ...], Origin], None]
"""Told of every step before its function is loaded: the step, with expressions in its reference replaced; the names
that lead to it; where the list that it is in comes from. Raises `StepRefused` if it must not run."""


def _wall_clock() -> float:
    return datetime.now(timezone.utc).timestamp()


async def run_steps(
    function: Function,
    *,
    directory: str | Path,
    work_dir: str | Path | None = None,
    env: Mapping[str, str],
    variables: Sequence[Variable] = (),
    inputs: Mapping[str, Value] | None = None,
    log: Log,
    on_result: Callable[[StepResult], None] | None = None,
    admit: Admit | None = None,
    own: Collection[str] = (),
    own_env: Mapping[str, str] | None = None,
    last_env: Mapping[str, str] | None = None,
    at: At | None = None,
    files: Path | None = None,
    cache: Path | None = None,
    timeout: float | None = None,
    delegation: Delegation | None = None,
    limits: Limits = NO_LIMITS,
    now: Callable[[], float] = _wall_clock,
) -> StepResult:
    """Run the steps of a function, or its command.

    Args:
        function: What `read_steps` returns.
        directory: Where paths such as `./build` begin: that of the function's file, or the project of a job.
        work_dir: Where commands run; *directory* if it is None. It has to be there.
        env: The environment of all steps; nothing is inherited beside it.
        variables: Of the job: expressions have them as `vars`, the environment has not.
        inputs: What the function is given.
        log: Takes the output; steps wait for it. What it raises ends the run, and is raised here.
        on_result: Told of the whole tree after each change, the last time when the run is over, however that came.
        admit: Asked before each step.
        own: Names of steps in the function's list that are not the job's, but of whoever runs it: their commands have
            nothing that the job sets in its environment, by `env` or exports. Expressions in them have.
        own_env: The environment of those steps, and of git, which fetches what steps come from. None: *env*.
        last_env: What every command has in its environment, whatever steps, exports and functions say.
        at: Asked before and after each command, and when one fails; the run waits for it, and *timeout* with it.
        files: An empty directory for what steps write, for their user alone; a temporary one if it is None. It is
            removed at the end.
        cache: Where repositories are kept that steps come from; below *files* if it is None.
        timeout: Seconds for the whole; after that, the result is cancelled.
        delegation: What runs steps in containers; without it, they fail.
        limits: What each command may have. If this machine cannot keep them, nothing runs, and the result says why.
        now: Tells the time, in seconds since 1970.

    Returns:
        The result. A step that fails, or cannot be loaded, raises nothing.

    A call that is cancelled ends the command that runs, tells *on_result* of a tree that is cancelled, and stays
    cancelled.
    """
    base = await to_thread.run_sync(_make, files)
    try:
        settings = Settings(
            origin=origin_of_job(directory),
            work_dir=origin_of_job(directory if work_dir is None else work_dir).directory,
            env=env,
            variables=await to_thread.run_sync(_write_variables, variables, base),
            inputs=inputs or {},
            own=own,
            own_env=env if own_env is None else own_env,
            last_env=last_env or {},
            secrets=[each.value for each in variables if each.is_file and each.is_masked],
            files=str(base),
        )
        run = Run(function, settings)
        runner = _Runner(
            run=run,
            masked=Masked(run.secrets),
            loader=Loader(
                Repositories(cache or base / "repositories", settings.own_env),
                delegation.containers if delegation else None,
            ),
            log=log,
            on_result=on_result,
            admit=admit,
            at=at,
            now=now,
            delegation=delegation and evolve(delegation, limits=limits.within(delegation.limits)),
            variables=variables,
        )
        async with kept(limits, await to_thread.run_sync(cgroups_here)) as runner.keeping:
            with anyio.move_on_after(timeout) as runner.limit:
                return await runner.go()
        return runner.cancelled(f"the steps took longer than {timeout:g} seconds")
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(remove_tree, base)


_FILE_NAME = re.compile(r"[A-Za-z0-9_]{1,200}")


async def run_delegated(
    request: Request,
    *,
    env: Mapping[str, str],
    log: Log,
    on_result: Callable[[StepResult], None],
    admit: Admit,
    delegation: Delegation,
    now: Callable[[], float] = _wall_clock,
) -> CameBack:
    """Run a step that another agent has asked for, from this one's container.

    Args:
        request: The step, with all that it needs.
        env: Of the container.
        log: As for `run_steps`, as what follows.
        on_result: As there.
        admit: As there; the names that lead to steps are those of the whole job.
        delegation: As there.
        now: As there.
    """
    base = await to_thread.run_sync(_make, None)
    try:
        environment = {**env, **request.base}
        loader = Loader(
            Repositories(base / "repositories", env if request.policies else environment), delegation.containers
        )
        step = Step(name=request.path[-1], reference=request.reference)
        wanted = Load(step=step, path=request.path, origin=request.origin, is_static=request.is_static)
        try:
            loaded = await loader.load(wanted)
        except StepFailed as error:
            when = now()
            return CameBack(result=StepResult(status=Status.FAILURE, error=str(error), started=when, ended=when))
        settings = Settings(
            origin=loaded.origin,
            work_dir=request.work_dir,
            env=environment,
            variables=await to_thread.run_sync(_write_variables, request.variables, base),
            inputs=request.inputs,
            secrets=[*request.secrets, *(each.value for each in request.variables if each.is_file and each.is_masked)],
            files=str(base),
            step_env=request.env,
            identity=_identity(loaded.identity, request),
            calls=request.calls,
            is_static=request.is_static,
            reference=str(request.reference),
            steps_before=request.steps_before,
        )
        run = Run(loaded.function, settings)
        runner = _Runner(
            run=run,
            masked=Masked(run.secrets),
            loader=loader,
            log=log,
            on_result=on_result,
            admit=admit,
            at=None,
            now=now,
            delegation=delegation,
            variables=request.variables,
            above=request.path,
        )
        async with kept(request.limits, await to_thread.run_sync(cgroups_here)) as runner.keeping:
            result = await runner.go()
        secrets = tuple(each for each in run.secrets.texts() if each not in request.secrets)
        return CameBack(result=result, outputs=run.outputs, exports=run.exports, secrets=secrets)
    finally:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(remove_tree, base)


def _identity(file: str, request: Request) -> str:
    """Tell the files of the job, which all containers have, from those that only this one has."""
    shared = (request.origin.root, request.work_dir)
    is_shared = any(root and (file == root or file.startswith(f"{root.rstrip('/')}/")) for root in shared)
    return file if is_shared or not file else f"{request.image} {file}"


class _Aborted(Exception):
    """Somebody has decided at a breakpoint that a run ends."""


_ABORTED = {When.BEFORE: "before", When.AFTER: "after", When.FAILURE: "after the failure of"}


@define
class _Runner:
    """One run."""

    run: Run
    masked: Masked
    """The log."""
    loader: Loader
    log: Log
    on_result: Callable[[StepResult], None] | None
    admit: Admit | None
    at: At | None
    now: Callable[[], float]
    delegation: Delegation | None
    variables: Sequence[Variable]
    """With contents in place of files."""
    above: tuple[str, ...] = ()
    """The names that lead to the function."""
    keeping: Keeping = field(init=False)
    """Limits of commands."""
    limit: anyio.CancelScope = field(init=False)
    """Of time."""
    _is_over: bool = field(init=False, default=False)

    async def go(self) -> StepResult:
        """Do what the core says until there is nothing more to do."""
        try:
            action = self.run.start(self.now())
            while not isinstance(action, Finish):
                await self._say()
                self._tell()
                action = await self._do(action)
            await self._say()
            self._is_over = True
            self._tell()
        except _Aborted as aborted:
            return self.cancelled(str(aborted))
        else:
            return action.result
        finally:
            if not self._is_over:
                self.cancelled(None)

    def cancelled(self, why: str | None) -> StepResult:
        """End the run where it is."""
        self._is_over = True
        result = self.run.cancelled(self.now(), why).result
        self._tell()
        return result

    async def _do(self, action: Load | Execute | Delegate) -> Action:
        try:
            if not isinstance(action, Execute) and self.admit:
                self.admit(action.step, (*self.above, *action.path), action.origin)
            if isinstance(action, Delegate):
                return self.run.came_back(await self._delegate(action), self.now())
            if isinstance(action, Load):
                loaded = await self.loader.load(action)
                return self.run.loaded(loaded.function, loaded.origin, self.now(), identity=loaded.identity)
            return await self._execute(action)
        except StepFailed as error:
            return self.run.failed(str(error), self.now())

    async def _delegate(self, action: Delegate) -> CameBack:
        if self.delegation is None:
            raise StepFailed("steps in containers cannot be run here")
        request = Request.of(
            evolve(action, path=(*self.above, *action.path)),
            self.delegation,
            work_dir=self.run.settings.work_dir,
            variables=self.variables,
            secrets=self.run.secrets.texts(),
        )

        def grown(result: StepResult) -> None:
            self.run.grown(result, self.now())
            self._tell()

        came = await delegate(request, action.image, self.delegation, log=self._pass_on, grown=grown)
        if rest := self.masked.flush():
            await self.log(rest)
        return came

    async def _execute(self, action: Execute) -> Action:
        if self.keeping.limits != NO_LIMITS:
            await to_thread.run_sync(check_limits, self.keeping.limits)
        await to_thread.run_sync(_make_files, action.output_file, action.export_file)
        await self._stop(action, When.BEFORE)
        ended = await run_command(
            action.command, cwd=action.work_dir, env=action.env, sink=self._pass_on, keeping=self.keeping
        )
        if rest := self.masked.flush():
            await self.log(rest)
        if ended.code:
            self.run.noted(ended.code, ended.resources, out_of_memory=ended.out_of_memory)
            await self._stop(action, When.FAILURE)
        outputs, exports = await to_thread.run_sync(_take_files, action.output_file, action.export_file)
        following = self.run.executed(
            ended.code,
            outputs,
            exports,
            self.now(),
            resources=ended.resources,
            out_of_memory=ended.out_of_memory,
        )
        if self.run.result.at(action.path).status is Status.SUCCESS:
            await self._stop(action, When.AFTER)
        return following

    async def _stop(self, action: Execute, when: When) -> None:
        """Wait at a breakpoint, if there is one."""
        if not self.at:
            return
        await self._say()
        self._tell()
        result = self.run.result.at(action.path)
        moment = Moment(path=action.path, when=when, result=result, work_dir=action.work_dir, env=action.env)
        with standing_still(self.limit):
            decision = await self.at(moment)
        if decision is Decision.ABORT:
            raise _Aborted(f"aborted {_ABORTED[when]} {'/'.join(action.path) or 'the command'}")

    async def _say(self) -> None:
        if text := self.run.take_log():
            await self._pass_on(text.encode())

    async def _pass_on(self, data: bytes) -> None:
        if shown := self.masked.feed(data):
            await self.log(shown)

    def _tell(self) -> None:
        if self.on_result:
            self.on_result(self.run.result)


def _make(files: Path | None) -> Path:
    """Make a directory that nobody else can enter."""
    if files is None:
        return Path(mkdtemp(prefix="job-steps-")).resolve()
    files.mkdir(mode=0o700, parents=True, exist_ok=True)
    return files.resolve()


def _write_variables(variables: Sequence[Variable], base: Path) -> Sequence[Variable]:
    """Write the variables that are files; returns all, with paths as the values of those."""
    written = []
    for number, variable in enumerate(variables):
        if variable.is_file:
            directory = base / "variables" / str(number)
            directory.mkdir(mode=0o700, parents=True)
            path = directory / (variable.key if _FILE_NAME.fullmatch(variable.key) else "value")
            path.touch(mode=0o600)
            path.write_bytes(variable.value.encode(errors="replace"))
            written.append(evolve(variable, value=str(path)))
        else:
            written.append(variable)
    return written


def _make_files(*paths: str) -> None:
    try:
        for path in paths:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:  # a disk is full; or an earlier step has been there
        raise StepFailed(f"a file for outputs or exports cannot be made: {error.strerror or error}") from error


def _take_files(*paths: str) -> "list[bytes | None]":
    """Read the files that a command has written, and remove them; None for one that is too big."""
    return [_take(path) for path in paths]


def _take(path: str) -> bytes | None:
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StepFailed("the command has put something else in the place of a file for outputs or exports")
            data = file.read(MAX_FILE + 1)
        Path(path).unlink()
    except OSError as error:
        what = "the command has removed a file for outputs or exports, or made it unreadable"
        raise StepFailed(f"{what}: {error.strerror or error}") from error
    return data if len(data) <= MAX_FILE else None
