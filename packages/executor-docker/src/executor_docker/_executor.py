"""One job, from its admission to the last trace of it."""

import math
import posixpath
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from executor_docker import _caches, _images, _network, _services
from executor_docker._artifacts import fetch
from executor_docker._bodies import Place, job_container
from executor_docker._config import DockerConfig
from executor_docker._endpoint import daemon
from executor_docker._errors import DockerError, told_of
from executor_docker._options import DockerOptions
from executor_docker._owner import UNIT, Owner, Unit
from executor_docker._remains import clear
from executor_docker._rules import Admitted, admit
from executor_docker._script import (
    BY_SIGNAL,
    DIRECTORY,
    LARGEST,
    NOT_EXECUTABLE,
    NOT_FOUND,
    PATH,
    Report,
    read_report,
)
from executor_docker._sizes import in_words
from executor_docker._users import ids_of
from fleeting import Unreachable
from fleeting.archives import ArchiveRefused, Packed
from fleeting.connectors import Sink
from fleeting.plugins import format_duration
from fleeting_docker_engine import (
    STDOUT,
    Body,
    ContainerState,
    Created,
    Demultiplexer,
    Engine,
    EngineRefused,
    EngineUnreachable,
    Entry,
    Info,
    Inspected,
    Stats,
    Waited,
    quoted,
    tar_of,
)
from taskscaler.executors import JobOutcome, JobSpec, Leased, Verdict
from taskscaler.executors.artifacts import without_artifacts

HASTY_CLEANUP = 20.0
"""Seconds for which the clean-up after a cancelled job may hold up the cancellation."""


class DockerExecutor:
    """Runs jobs in containers. One serves all slots at once."""

    def __init__(self, config: DockerConfig, owner: Owner | None = None) -> None:
        """Take the settings, and whose containers they are; None: those of this user's managers."""
        self._config = config
        self._owner = owner or Owner()

    def refusal(self, options: object) -> str:
        """See `taskscaler.executors.ForeseesRefusal`."""
        try:
            admit(self._config, options if isinstance(options, DockerOptions) else DockerOptions())
        except DockerError as error:
            return str(error)
        return ""

    async def run(self, job: JobSpec, lease: Leased, *, output: Sink, artifacts: Path) -> JobOutcome:
        """See `Executor.run`. The time-out covers the upload of the files and the script, not what precedes it."""
        options = job.options if isinstance(job.options, DockerOptions) else DockerOptions()
        admitted = admit(self._config, options)
        await to_thread.run_sync(self._owner.claim)
        with self._owner.at_work(job.name, lease.instance, lease.slot) as unit:
            async with lease.dial() as connection, daemon(connection, self._config, lease.instance) as engine:
                with told_of(lease.instance, "an earlier job's leftovers cannot be removed"):
                    await clear(engine, self._owner.is_leftover)
                work = _Work(self._config, engine, admitted, job, unit, lease, output)
                return await self._run(work, artifacts)

    async def _run(self, work: "_Work", artifacts: Path) -> JobOutcome:
        try:
            outcome = await work.do(artifacts)
        except Unreachable:
            raise
        except BaseException:
            with anyio.move_on_after(HASTY_CLEANUP, shield=True):
                await self._clean_up(work)
            raise
        warnings = await self._clean_up(work)
        return evolve(outcome, warnings=(*outcome.warnings, *warnings))

    async def _clean_up(self, work: "_Work") -> tuple[str, ...]:
        """Leave nothing of a job. It has ended: what fails here is only reported, and found by the next job there."""
        limit = self._config.cleanup_timeout
        try:
            with anyio.fail_after(limit):
                await clear(work.engine, lambda _: True, label=f"{UNIT}={work.unit.id}")
        except TimeoutError:
            return (f"the clean-up took longer than {format_duration(limit)}",)
        except (EngineRefused, EngineUnreachable) as error:
            return (f"the clean-up failed: {error}",)
        return ()


@define(eq=False)
class _Work:
    """All that is done for one job on a daemon."""

    config: DockerConfig
    engine: Engine
    admitted: Admitted
    job: JobSpec
    unit: Unit
    lease: Leased
    output: Sink
    _container: str = field(default="", init=False)
    _owner: tuple[int, int] = field(default=(0, 0), init=False)
    """Ids of the user that the script runs as, and of his group."""

    _report: bytearray = field(factory=bytearray, init=False)
    _warnings: list[str] = field(factory=list, init=False)

    async def do(self, artifacts: Path) -> JobOutcome:
        """Prepare, run, and bring back."""
        caches = await self._prepare()
        outcome = await self._run_in_time()
        with told_of(self.instance, "the artifacts cannot be fetched"):
            outcome = await self._collect(outcome, artifacts)
        with told_of(self.instance, "the caches cannot be kept"):
            if outcome.verdict is Verdict.SUCCEEDED:
                self._warnings += await _caches.keep(self.engine, self.config, caches, self._container)
        return evolve(outcome, warnings=(*outcome.warnings, *self._warnings))

    @property
    def instance(self) -> str:
        """Where."""
        return self.lease.instance

    # --- before -----------------------------------------------------------------------------------------

    async def _prepare(self) -> _caches.Caches:
        """Make all but the script's run."""
        options, config, engine = self.admitted.options, self.config, self.engine
        with told_of(self.instance, f"the image {self.admitted.image} cannot be looked up or pulled"):
            image = await _images.get(engine, config, self.admitted.image, self.instance)
        await self._check_volumes()
        with told_of(self.instance, "the job's network cannot be made"):
            place = await _network.prepare(engine, config.network, self.unit)
        with told_of(self.instance, "the job's limits cannot be determined"):
            await self._lower_limits()
        with told_of(self.instance, "a service of the job cannot be started"):
            await _services.start(
                engine,
                config,
                options.services,
                self.unit,
                place=place,
                limits=self.admitted.limits,
                instance=self.instance,
                output=self.output,
            )
        with told_of(self.instance, "the job's caches cannot be made"):
            caches = await _caches.prepare(engine, options.caches)
        with told_of(self.instance, "the job's container cannot be made"):
            await self._make_container(image, place, caches)
            self._warnings += await _caches.fill(engine, config, caches, self._container)
        return caches

    async def _check_volumes(self) -> None:
        """See that named volumes are there: Docker would make them, and nobody would remove them."""
        for volume in self.admitted.volumes:
            if not volume.is_bind:
                with told_of(self.instance, f"the volume {volume.source} cannot be used"):
                    await self.engine.ask("GET", f"/volumes/{quoted(volume.source)}")

    async def _lower_limits(self) -> None:
        """Give the job no more than its slot's share of the instance."""
        if self.config.shares > 1:
            info = await self.engine.ask_for(Info, "GET", "/info")
            share = self.admitted.limits.within(cpus=info.cpus, memory=info.memory, shares=self.config.shares)
            self.admitted = evolve(self.admitted, limits=share)

    async def _make_container(self, image: _images.Image, place: Place, caches: _caches.Caches) -> None:
        """Make the job's container of the image as it is now, with all that it needs to start."""
        env = {**self.job.env, "TASKSCALER_INSTANCE": self.instance, "TASKSCALER_SLOT": str(self.lease.slot)}
        pinned = evolve(self.admitted, image=image.reference)
        body = job_container(pinned, self.job, self.unit, place, env=env, caches=caches.volumes)
        self._container = (await self.engine.ask_for(Created, "POST", "/containers/create", json=body)).id
        self._owner = await ids_of(self.engine, self._container, self.admitted.options.user or image.user)
        await self._put("/", tar_of(self._furniture(caches)))

    def _furniture(self, caches: _caches.Caches) -> Mapping[str, Entry]:
        """What the container has beside its image: the script, and directories that its user may write to.

        A working directory that is a volume stays as it is.
        """
        mounted = {posixpath.normpath(volume.target) for volume in self.admitted.volumes}
        places = {posixpath.normpath(self.admitted.options.working_dir), *caches.places.values()} - mounted
        return {
            **{place.lstrip("/"): Entry(mode=0o755, owner=self._owner) for place in places},
            DIRECTORY.lstrip("/"): Entry(mode=0o755),
            PATH.lstrip("/"): Entry(self.job.script.encode(), mode=0o700, owner=self._owner),
        }

    async def _put(self, path: str, body: Body) -> None:
        """Have an archive unpacked in the container."""
        await self.engine.ask("PUT", f"{self._path}/archive", query={"path": path}, body=body, patience=math.inf)

    @property
    def _path(self) -> str:
        return f"/containers/{quoted(self._container)}"

    # --- the run ----------------------------------------------------------------------------------------

    async def _run_in_time(self) -> JobOutcome:
        with anyio.move_on_after(self.job.timeout):
            if self.job.files:
                with told_of(self.instance, "the job's files cannot be uploaded"):
                    await self._put(self.admitted.options.working_dir, Packed.of(self.job.files, owner=self._owner))
            return await self._run()
        with told_of(self.instance, "the job took too long and cannot be stopped"):
            report = await self._end()
        why = f"took longer than {format_duration(self.job.timeout or 0)}"
        return _with_use(JobOutcome(verdict=Verdict.TIMED_OUT, why=why), report)

    async def _run(self) -> JobOutcome:
        with told_of(self.instance, "the job's container cannot be run"):
            async with self.engine.attached(self._container) as outputs:
                await self.engine.ask("POST", f"{self._path}/start")
                await self._stream(outputs.receive_raw)
            ended = await self.engine.ask_for(Waited, "POST", f"{self._path}/wait", patience=math.inf)
            state = (await self.engine.ask_for(Inspected, "GET", f"{self._path}/json")).state
        return self._outcome(ended.exit_code, state, read_report(bytes(self._report)))

    async def _stream(self, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Pass on what the job prints, until all that could print has ended."""
        frames = Demultiplexer()
        while data := await receive():
            printed = bytearray()  # in one go: a frame may have no more than a byte
            for source, chunk in frames.feed(data):
                if source == STDOUT:
                    printed += chunk
                else:
                    self._report += chunk[: LARGEST - len(self._report)]
            if printed:
                await self.output(bytes(printed))

    async def _end(self) -> Report:
        """Kill all that runs in the container; returns what it had used by then."""
        query = {"stream": False, "one-shot": True}
        stats = await self.engine.ask_for(Stats, "GET", f"{self._path}/stats", query=query)
        with suppress(EngineRefused):  # it has just ended
            await self.engine.ask("POST", f"{self._path}/kill")
        await self.engine.ask("POST", f"{self._path}/wait")
        peak = stats.memory.now if stats.memory.most is None else stats.memory.most
        return Report(cpu_time=None if stats.cpu.usage.total is None else stats.cpu.usage.total / 1e9, peak_memory=peak)

    def _outcome(self, code: int, state: ContainerState, report: Report) -> JobOutcome:
        killed = bool(report.killed_for_memory or state.is_out_of_memory)
        if code == 0:
            warnings = ("processes of the job were killed because it had no memory left",) if killed else ()
            return _with_use(JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0, warnings=warnings), report)
        if code in (NOT_FOUND, NOT_EXECUTABLE) and not report.is_complete:
            why = f"the command /bin/sh was not found in the image {self.admitted.image}; use one that has a shell"
        else:
            why = self._out_of_memory(code) if killed else _exited(code)
        return _with_use(JobOutcome(verdict=Verdict.FAILED, exit_code=code, why=why), report)

    def _out_of_memory(self, code: int) -> str:
        limit = self.admitted.limits.memory
        most = f"its {in_words(limit)}" if limit else "what it may have"
        return f"exited with {code}: it needed more memory than {most} and was killed; raise memory"

    # --- after ------------------------------------------------------------------------------------------

    async def _collect(self, outcome: JobOutcome, target: Path) -> JobOutcome:
        if not self.job.artifacts:
            return outcome
        directory = posixpath.normpath(self.admitted.options.working_dir)
        limit = self.config.artifact_limit
        try:
            missing = await fetch(self.engine, self._container, directory, self.job.artifacts, target, limit=limit)
        except ArchiveRefused as error:
            return without_artifacts(outcome, error)
        return without_artifacts(outcome, missing)


def _with_use(outcome: JobOutcome, report: Report) -> JobOutcome:
    return evolve(outcome, cpu_time=report.cpu_time, peak_memory=report.peak_memory)


def _exited(code: int) -> str:
    """In words, with what a shell means by the code."""
    if code == NOT_FOUND:
        return "exited with 127: a command was not found; see the log for which"
    if code == NOT_EXECUTABLE:
        return "exited with 126: a command could not be executed; see the log for which"
    with suppress(ValueError):
        return f"exited with {code}, as after {signal.Signals(code - BY_SIGNAL).name}"
    return f"exited with {code}"
