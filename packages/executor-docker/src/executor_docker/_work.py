"""What is done for one job on a daemon, from its containers to what it leaves; how it is followed is others' affair."""

import math
import posixpath
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from anyio import to_thread
from attrs import define, evolve, field

from executor_docker import _caches, _images, _network, _services
from executor_docker._artifacts import fetch
from executor_docker._bodies import Place, job_container
from executor_docker._config import DockerConfig
from executor_docker._errors import reported
from executor_docker._memory import Memory
from executor_docker._owner import LIMITED_BY, LIMITED_WHY, Unit
from executor_docker._rules import Admitted
from executor_docker._script import BY_SIGNAL, DIRECTORY, NOT_EXECUTABLE, NOT_FOUND, PATH, Report
from executor_docker._sizes import LARGEST_SIZE, in_words
from executor_docker._tailored import KILLED, MEASURED, USUAL, Run, Tailored, tailor
from executor_docker._users import ids_of
from fleeting import Usage
from fleeting.archives import ArchiveRefused, Packed
from fleeting.connectors import Sink
from fleeting.plugins import format_duration
from fleeting_docker_engine import (
    Body,
    ContainerState,
    Created,
    Engine,
    EngineRefused,
    Entry,
    Info,
    Inspected,
    Stats,
    Waited,
    quoted,
    tar_of,
)
from taskscaler.executors import JobOutcome, JobSpec, Leased, MemoryLimit, Verdict, enter_phase
from taskscaler.executors.artifacts import without_artifacts


@define(eq=False)
class Work:
    """All that is done for one job on a daemon."""

    config: DockerConfig
    engine: Engine
    admitted: Admitted
    job: JobSpec
    unit: Unit
    lease: Leased
    memory: Memory | None = None
    """Of earlier runs of jobs, by which limits are tailored; None: they are not."""

    container: str = field(default="", init=False)
    """The job's, once it is made or found."""

    _user: tuple[int, int] = field(default=(0, 0), init=False)
    """Ids of the user that the script runs as, and of his group."""

    _warnings: list[str] = field(factory=list, init=False)
    _share: int = field(default=0, init=False)
    """Bytes of the instance's memory that its slot has; 0: all, or nobody knows."""

    _tailored: Tailored | None = field(default=None, init=False)
    """How its limit was found, if it was made of earlier runs."""

    _limit: int = field(default=0, init=False)
    """Bytes of memory that the job's container may have, once it was looked at; 0: as much as there is."""

    _limited_by: tuple[str, str] = field(default=("", ""), init=False)
    """What has set that, and why, as the container's labels say it: whoever looks may not have made it."""

    _needed: Run | None = field(default=None, init=False)
    """What is to be remembered of this run."""

    @property
    def instance(self) -> str:
        """Where."""
        return self.lease.instance

    # --- before -----------------------------------------------------------------------------------------

    async def prepare(self, output: Sink | None) -> _caches.Caches:
        """Make all but the script's run.

        Args:
            output: Gets the log of a service that does not get well; None: the error has the end of it.
        """
        options, engine = self.admitted.options, self.engine
        config = evolve(self.config, registries={**options.registries, **self.config.registries})
        with reported(self.instance, f"the image {self.admitted.image} cannot be looked up or pulled"):
            image = await _images.get(engine, config, self.admitted.image, self.instance, wishes=options.pull_policy)
        await self._check_volumes()
        with reported(self.instance, "the job's network cannot be made"):
            place = await _network.prepare(engine, config.network, self.unit)
        with reported(self.instance, "the job's limits cannot be determined"):
            await self._lower_limits()
        with reported(self.instance, "a service of the job cannot be started"):
            await _services.start(
                engine,
                config,
                options.services,
                self.unit,
                place=place,
                limits=self.admitted.limits,
                instance=self.instance,
                output=output,
            )
        with reported(self.instance, "the job's caches cannot be made"):
            caches = await _caches.prepare(engine, options.caches)
        await self._tailor()
        with reported(self.instance, "the job's container cannot be made"):
            await self._make_container(image, place, caches)
            self._warnings += await _caches.fill(engine, config, caches, self.container)
        return caches

    async def _check_volumes(self) -> None:
        """See that named volumes are there: Docker would make them, and nobody would remove them."""
        for volume in self.admitted.volumes:
            if not volume.is_bind:
                with reported(self.instance, f"the volume {volume.source} cannot be used"):
                    await self.engine.ask("GET", f"/volumes/{quoted(volume.source)}")

    async def _lower_limits(self) -> None:
        """Give the job no more than its slot's share of the instance."""
        if self.config.shares > 1:
            info = await self.engine.ask_for(Info, "GET", "/info")
            share = self.admitted.limits.within(cpus=info.cpus, memory=info.memory, shares=self.config.shares)
            self.admitted = evolve(self.admitted, limits=share)
            self._share = info.memory // self.config.shares

    async def _tailor(self) -> None:
        """Give the job as much memory as its earlier runs needed, if the operator wants that; services keep theirs."""
        bounds = self.config.tailor_memory
        if bounds is None or self.memory is None or not self.job.series:
            return
        runs = await to_thread.run_sync(self.memory.runs, self.job.series)
        limits, most = self.admitted.limits, min(bounds.most, self._share or bounds.most)
        found = tailor(runs, usual=limits.memory, least=bounds.least, most=most)
        self.admitted = evolve(self.admitted, limits=evolve(limits, memory=found.memory))
        self._tailored = found

    async def _remember(self) -> None:
        """Note what this run needed, for the next one."""
        if self.memory is None or self._needed is None or not self.job.series:
            return
        if why := await self.memory.keep(self.job.series, self._needed):
            self._warnings.append(f"how much memory the job needed could not be noted: {why}")

    async def _make_container(self, image: _images.Image, place: Place, caches: _caches.Caches) -> None:
        """Make the job's container of the image as it is now, with all that it needs to start."""
        env = {**self.job.env, "TASKSCALER_INSTANCE": self.instance, "TASKSCALER_SLOT": str(self.lease.slot)}
        pinned = evolve(self.admitted, image=image.reference)
        body = job_container(
            pinned, self.job, self.unit, place, env=env, caches=caches.volumes, tailored=self._tailored
        )
        self.container = (await self.engine.ask_for(Created, "POST", "/containers/create", json=body)).id
        self._user = await ids_of(self.engine, self.container, self.admitted.options.user or image.user)
        await self._put("/", tar_of(self._furniture(caches)))

    def _furniture(self, caches: _caches.Caches) -> Mapping[str, Entry]:
        """What the container has beside its image: the script, and directories that its user may write to.

        A working directory that is a volume stays as it is.
        """
        mounted = {posixpath.normpath(volume.target) for volume in self.admitted.volumes}
        places = {posixpath.normpath(self.admitted.options.working_dir), *caches.places.values()} - mounted
        return {
            **{place.lstrip("/"): Entry(mode=0o755, owner=self._user) for place in places},
            DIRECTORY.lstrip("/"): Entry(mode=0o755),
            PATH.lstrip("/"): Entry(self.job.script.encode(), mode=0o700, owner=self._user),
        }

    async def _put(self, path: str, body: Body) -> None:
        """Have an archive unpacked in the container."""
        await self.engine.ask("PUT", f"{self.path}/archive", query={"path": path}, body=body, patience=math.inf)

    @property
    def path(self) -> str:
        """Of the container, in requests."""
        return f"/containers/{quoted(self.container)}"

    # --- the run ----------------------------------------------------------------------------------------

    async def upload(self) -> None:
        """Bring the job's files into its container."""
        if self.job.files:
            with reported(self.instance, "the job's files cannot be uploaded"):
                await self._put(self.admitted.options.working_dir, Packed.of(self.job.files, owner=self._user))

    async def start(self) -> None:
        """Start the script."""
        await self.engine.ask("POST", f"{self.path}/start")

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        return (await self.engine.ask_for(Waited, "POST", f"{self.path}/wait", patience=math.inf)).exit_code

    async def state(self) -> ContainerState:
        """Look at the job's container."""
        found = await self.engine.ask_for(Inspected, "GET", f"{self.path}/json")
        self._limit = found.host_config.memory if 0 < found.host_config.memory < LARGEST_SIZE else 0
        self._limited_by = found.config.labels.get(LIMITED_BY, ""), found.config.labels.get(LIMITED_WHY, "")
        return found.state

    async def time_out(self) -> JobOutcome:
        """End a job that has had its time."""
        with reported(self.instance, "the job took too long and cannot be stopped"):
            return _with_use(self.timed_out(), await self._end())

    def timed_out(self) -> JobOutcome:
        """Say that it has."""
        why = f"took longer than {format_duration(self.job.timeout or 0)}"
        return JobOutcome(verdict=Verdict.TIMED_OUT, why=why, memory_limit=self._memory_limit())

    async def _end(self) -> Report:
        """Kill all that runs in the container; returns what it had used by then."""
        query = {"stream": False, "one-shot": True}
        stats = await self.engine.ask_for(Stats, "GET", f"{self.path}/stats", query=query)
        with suppress(EngineRefused):  # it has just ended
            await self.engine.ask("POST", f"{self.path}/kill")
        await self.engine.ask("POST", f"{self.path}/wait")
        peak = stats.memory.now if stats.memory.most is None else stats.memory.most
        return Report(cpu_time=None if stats.cpu.usage.total is None else stats.cpu.usage.total / 1e9, peak_memory=peak)

    def outcome(self, code: int, state: ContainerState, report: Report) -> JobOutcome:
        """Say how it ended by itself."""
        killed = bool(report.killed_for_memory or state.is_out_of_memory)
        reached = killed and report.hits_of_limit != 0  # else, it was killed for what others on the instance had
        if reached or (code == 0 and not killed and report.peak_memory is not None):  # what failed may not show it all
            peak = min(
                report.peak_memory or 0, self._limit or LARGEST_SIZE
            )  # more than it can have is a job's own word
            self._needed = Run(unit=self.unit.id, peak=peak, limit=self._limit, killed=reached)
        limit = self._memory_limit(reached=reached)
        if code == 0:
            who = "it" if reached else "the instance"
            warnings = (f"processes of the job were killed because {who} had no memory left",) if killed else ()
            return _with_use(
                JobOutcome(verdict=Verdict.SUCCEEDED, exit_code=0, warnings=warnings, memory_limit=limit), report
            )
        if code in (NOT_FOUND, NOT_EXECUTABLE) and not report.is_complete:
            why = f"the command /bin/sh was not found in the image {self.admitted.image}; use one that has a shell"
        else:
            why = self._out_of_memory(code) if reached else _short_of_memory(code) if killed else _exited(code)
        return _with_use(JobOutcome(verdict=Verdict.FAILED, exit_code=code, why=why, memory_limit=limit), report)

    def _memory_limit(self, *, reached: bool = False) -> MemoryLimit | None:
        """How much memory it might have, and where that comes from; None: as much as there was."""
        if not self._limit:
            return None
        by, why = self._limited_by
        return MemoryLimit(size=self._limit, by=by if by in (MEASURED, KILLED) else USUAL, why=why, reached=reached)

    def _out_of_memory(self, code: int) -> str:
        limit = self._limit or self.admitted.limits.memory
        most = f"its {in_words(limit)}" if limit else "what it may have"
        bounds = self.config.tailor_memory
        if bounds is None or not self.job.series or not limit:
            advice = "raise memory"
        elif limit < bounds.most:
            advice = f"its next run gets up to {in_words(min(2 * limit, bounds.most))}"
        else:
            advice = "raise max of tailor_memory"
        return f"exited with {code}: it needed more memory than {most} and was killed; {advice}"

    # --- after ------------------------------------------------------------------------------------------

    async def bring_back(self, outcome: JobOutcome, artifacts: Path, caches: _caches.Caches) -> JobOutcome:
        """Take what the job was to leave, and add what went wrong without changing the verdict."""
        await self._remember()
        enter_phase("collect")
        with reported(self.instance, "the artifacts cannot be fetched"):
            outcome = await self._collect(outcome, artifacts)
        with reported(self.instance, "the caches cannot be kept"):
            if outcome.verdict is Verdict.SUCCEEDED:
                self._warnings += await _caches.keep(self.engine, self.config, caches, self.container)
        return evolve(outcome, warnings=(*outcome.warnings, *self._warnings))

    async def _collect(self, outcome: JobOutcome, target: Path) -> JobOutcome:
        if not self.job.artifacts:
            return outcome
        directory = posixpath.normpath(self.admitted.options.working_dir)
        limit = self.config.artifact_limit
        try:
            missing = await fetch(self.engine, self.container, directory, self.job.artifacts, target, limit=limit)
        except ArchiveRefused as error:
            return without_artifacts(outcome, error)
        return without_artifacts(outcome, missing)


def _with_use(outcome: JobOutcome, report: Report) -> JobOutcome:
    return outcome.with_usage(
        Usage(cpu_time=report.cpu_time, peak_memory=report.peak_memory, disk_written=report.disk_written)
    )


def _short_of_memory(code: int) -> str:
    return (
        f"exited with {code}: the instance had no memory left, and processes of the job were killed, which had not"
        " reached its limit; lower memory of the instance's jobs, or their number"
    )


def _exited(code: int) -> str:
    """In words, with what a shell means by the code."""
    if code == NOT_FOUND:
        return "exited with 127: a command was not found; see the log for which"
    if code == NOT_EXECUTABLE:
        return "exited with 126: a command could not be executed; see the log for which"
    with suppress(ValueError):
        return f"exited with {code}, as after {signal.Signals(code - BY_SIGNAL).name}"
    return f"exited with {code}"
