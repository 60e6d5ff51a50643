"""A job's stages with their scripts, and the legs in which they run: pure.

A *leg* is what one command on the instance runs: for a job on the instance itself, all of it. A job in a container may
have its sources and its files in the hands of another image, which has git where its own has not: that makes three. And
a job that was canceled in its script has a leg for what comes after it.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum

from attrs import evolve, frozen

from gitlab_jobs import Job, Step
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._artifacts import KnownArtifact, artifacts_of, collect_script
from taskscaler_gitlab.runner._caches import KnownCache, archive_script, caches_of, restore_script
from taskscaler_gitlab.runner._dependencies import PLACE
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._sources import clear_worktree_script, sources_script
from taskscaler_gitlab.runner._stages import AFTER_SCRIPT, Ended, Phase, Stage, When, judge
from taskscaler_gitlab.runner._variables import JobEnvironment

_GREETING = r"""[ "$2" = - ] || printf 'Running on %s...\n' "$(hostname 2>/dev/null || uname -n)" """
_STATUS = "CI_JOB_STATUS"
_TAKE = '(cd "$1/@PLACE@" && exec tar -cf - .) | tar -xf - || exit'
_PRE, _POST = "pre_get_sources_script", "post_get_sources_script"
_KINDS = (When.ON_SUCCESS, "", "successful"), (When.ON_FAILURE, "_on_failure", "failed")


@frozen(kw_only=True)
class Plan:
    """All that there is to do for a job."""

    stages: tuple[Stage, ...]
    """In their order."""

    artifacts: tuple[KnownArtifact, ...]
    caches: tuple[KnownCache, ...]

    brings: bool
    """Whether the manager keeps caches too."""

    problems: tuple[str, ...]
    """What the job's log is to say at its beginning, a line each."""

    @property
    def leaves_files(self) -> bool:
        """Whether anything of it is brought to the manager."""
        return bool(self.artifacts) or any(cache.pushes for cache in self.caches if self.brings)

    def is_late(self, number: int | None) -> bool:
        """Whether a stage comes after the job's script."""
        stage = self.stage(number)
        return stage is not None and stage.phase in (Phase.AFTER, Phase.LATE)

    def stage(self, number: int | None) -> Stage | None:
        """Find a stage by a number that comes from an instance; None: there is none."""
        return self.stages[number] if number is not None and number < len(self.stages) else None

    @property
    def preparation(self) -> Stage:
        """What every leg begins with."""
        return self.stages[0]

    def of(self, *phases: Phase) -> tuple[Stage, ...]:
        """The stages of these phases, beside the first."""
        return tuple(stage for stage in self.stages[1:] if stage.phase in phases)


class Leg(Enum):
    """What one command on the instance runs."""

    ALL = "all"
    """The whole job."""

    REST = "rest"
    """What comes after a script that was stopped."""

    BEFORE = "before"
    """What comes before the script, by the helper."""

    BUILD = "build"
    """The script and what comes right after it."""

    AFTER = "after"
    """``after_script`` alone, because the script was stopped."""

    LATE = "late"
    """What the job leaves, by the helper."""

    @property
    def is_helper(self) -> bool:
        """Whether it runs in the helper's image."""
        return self in (Leg.BEFORE, Leg.LATE)

    @property
    def has_late(self) -> bool:
        """Whether it keeps what the job leaves."""
        return self in (Leg.ALL, Leg.REST, Leg.LATE)

    @property
    def is_stoppable(self) -> bool:
        """Whether it is stopped if the job is canceled."""
        return self in (Leg.ALL, Leg.BEFORE, Leg.BUILD)

    @property
    def takes_files(self) -> bool:
        """Whether it takes what the manager brings."""
        return self in (Leg.ALL, Leg.BEFORE)


def plan_of(job: Job, settings: RunnerSettings, environment: JobEnvironment, *, cache_dir: str, brings: bool) -> Plan:
    """Plan a job.

    Args:
        job: As GitLab gave it.
        settings: The runner's.
        environment: Its variables and directories.
        cache_dir: Where this project's caches are, as the job sees it.
        brings: Whether the manager keeps caches too.

    Raises:
        JobInvalid: It cannot be run; says why.
    """
    _check(job)
    project = environment.project_dir
    caches, bad_caches = caches_of(job, environment.expand, project, environment.get("CACHE_FALLBACK_KEY"))
    artifacts, bad_artifacts = artifacts_of(job, environment.expand, project)
    writing = _Writing(job=job, settings=settings, environment=environment)
    stages = [
        writing.preparation(),
        writing.sources(),
        *writing.restoring(caches, cache_dir),
        *writing.dependencies(),
        *writing.steps(),
        *writing.keeping(caches, cache_dir, brings=brings),
        *writing.collecting(artifacts),
        writing.cleanup(),
    ]
    return Plan(
        stages=tuple(evolve(stage, number=number) for number, stage in enumerate(stages)),
        artifacts=tuple(artifacts),
        caches=tuple(caches),
        brings=brings,
        problems=(*environment.problems, *bad_caches, *bad_artifacts),
    )


def next_leg(
    plan: Plan,
    last: Leg | None,
    begun: Collection[int],
    ended: Mapping[int, Ended],
    *,
    has_helper: bool,
    is_canceled: bool,
) -> Leg | None:
    """Say what comes after a leg that is over; None if nothing does.

    Args:
        plan: The job's.
        last: The leg; None: none was run.
        begun: The stages that have begun.
        ended: How stages have ended.
        has_helper: Whether another image than the job's takes care of sources and files.
        is_canceled: Whether the job was stopped in a leg because somebody has canceled it.
    """
    is_after_left = _has_begun(plan, begun) and any(each.number not in ended for each in plan.of(Phase.AFTER))
    match last:
        case None:
            return Leg.BEFORE if has_helper else Leg.ALL
        case Leg.ALL:
            return Leg.REST if is_canceled and plan.stages[-1].number not in ended else None
        case Leg.BEFORE:
            return Leg.LATE if is_canceled or status_before(plan, ended)[1] else Leg.BUILD
        case Leg.BUILD:
            return Leg.AFTER if is_canceled and is_after_left else Leg.LATE
        case Leg.AFTER:
            return Leg.LATE
    return None


def stages_of(plan: Plan, leg: Leg, begun: Collection[int], ended: Collection[int]) -> tuple[Stage, ...]:
    """The stages of a leg. A script that had begun when it was stopped has its ``after_script``."""
    first, cleanup = plan.preparation, _silent(plan.stages[-1])
    match leg:
        case Leg.ALL:
            return plan.stages
        case Leg.REST:
            after = plan.of(Phase.AFTER) if _has_begun(plan, begun) else ()
            left = (each for each in (*after, *plan.of(Phase.LATE)) if each.number not in ended)
            return (_silent(first), *left)
        case Leg.BEFORE:
            return (first, *plan.of(Phase.BEFORE), cleanup)
        case Leg.BUILD:
            return (_silent(first), *plan.of(Phase.SCRIPT, Phase.AFTER), cleanup)
        case Leg.AFTER:
            return (_silent(first), *plan.of(Phase.AFTER), cleanup)
        case Leg.LATE:
            return (_silent(first), *plan.of(Phase.LATE))


def _has_begun(plan: Plan, begun: Collection[int]) -> bool:
    return any(stage.number in begun for stage in plan.of(Phase.SCRIPT))


def _silent(stage: Stage) -> Stage:
    return evolve(stage, section="", title="")


def status_before(plan: Plan, ended: Mapping[int, Ended]) -> tuple[bool, bool]:
    """Whether a step has failed, and whether something before the script has, as far as stages have ended."""
    before = [stage for stage in plan.stages if stage.phase is Phase.BEFORE]
    verdict = judge([*before, *plan.of(Phase.SCRIPT)], ended)
    is_broken = verdict.stage is not None and verdict.stage.phase is Phase.BEFORE
    return verdict.cause is not None, is_broken


def _check(job: Job) -> None:
    """Refuse what cannot be run."""
    if job.run:
        raise JobInvalid("the job has `run`, which this runner does not support; use `script`")
    if job.secrets:
        raise JobInvalid("the job has `secrets`, which this runner does not fetch; use variables")
    if any("\0" in line for step in job.steps for line in step.script):
        raise JobInvalid("the script has a NUL character, which no shell can read; remove it", reason="script_failure")


@frozen(kw_only=True)
class _Writing:
    """Writes the stages of a job; their numbers come later."""

    job: Job
    settings: RunnerSettings
    environment: JobEnvironment

    def preparation(self) -> Stage:
        project = shlex.quote(self.environment.project_dir)
        script = "\n".join(
            [
                self.environment.preamble(),
                f"mkdir -p {project} || exit",
                _GREETING,
            ]
        )
        return Stage(
            number=0, phase=Phase.BEFORE, section="prepare_script", title="Preparing environment", script=script
        )

    def sources(self) -> Stage:
        hooks = {hook.name: hook.script for hook in self.job.hooks}
        before = _commands(self.settings.pre_get_sources_script, *hooks.get(_PRE, ()))
        after = _commands(*hooks.get(_POST, ()), self.settings.post_get_sources_script)
        script = sources_script(self.job, self.environment, self.settings, before=before, after=after)
        return Stage(
            number=0,
            phase=Phase.BEFORE,
            section="get_sources",
            title="Getting source from Git repository",
            script=self._ours(script),
            attempts=self.environment.options.get_sources_attempts,
            retry=self._ours(clear_worktree_script(self.environment)),
        )

    def restoring(self, caches: Sequence[KnownCache], directory: str) -> Iterable[Stage]:
        if pulled := [cache for cache in caches if cache.pulls]:
            yield Stage(
                number=0,
                phase=Phase.BEFORE,
                section="restore_cache",
                title="Restoring cache",
                script=self._in_project(restore_script(pulled, directory)),
                attempts=self.environment.options.restore_cache_attempts,
            )

    def dependencies(self) -> Iterable[Stage]:
        wanted = [number for number, each in enumerate(self.job.dependencies) if each.artifacts_file.filename]
        if wanted:
            lines = []
            for number in wanted:
                each = self.job.dependencies[number]
                text = shlex.quote(f"Downloading artifacts for {' '.join(each.name.split())} ({each.id})...")
                lines += [f"printf '%s\\n' {text}", _TAKE.replace("@PLACE@", f"{PLACE}/{number}")]
            yield Stage(
                number=0,
                phase=Phase.BEFORE,
                section="download_artifacts",
                title="Downloading artifacts",
                script=self._in_project("\n".join(lines)),
            )

    def steps(self) -> Iterable[Stage]:
        for step in self.job.steps:
            if step.script and step.name != AFTER_SCRIPT:
                section = f"step_{step.name or 'script'}"
                yield Stage(
                    number=0,
                    phase=Phase.SCRIPT,
                    section=section,
                    title=f'Executing "{section}" stage of the job script',
                    script=self._theirs(step, self.settings.pre_build_script, self.settings.post_build_script),
                    when=When.of(step.when),
                    allow_failure=step.allow_failure,
                )
        for step in self.job.steps:
            if step.script and step.name == AFTER_SCRIPT:
                options = self.environment.options
                yield Stage(
                    number=0,
                    phase=Phase.AFTER,
                    section=AFTER_SCRIPT,
                    title="Running after_script",
                    script=self._theirs(step),
                    timeout=options.after_script_timeout,
                    is_counted=not options.after_script_ignore_errors,
                )

    def keeping(self, caches: Sequence[KnownCache], directory: str, *, brings: bool) -> Iterable[Stage]:
        for when, suffix, word in _KINDS:
            kept = [cache for cache in caches if cache.pushes and cache.when in (when, When.ALWAYS)]
            if kept:
                yield Stage(
                    number=0,
                    phase=Phase.LATE,
                    section=f"archive_cache{suffix}",
                    title=f"Saving cache for {word} job",
                    script=self._in_project(archive_script(kept, directory, brings=brings)),
                    when=when,
                )

    def collecting(self, artifacts: Sequence[KnownArtifact]) -> Iterable[Stage]:
        for when, _, _ in _KINDS:
            left = [each for each in artifacts if each.when in (when, When.ALWAYS)]
            if left:
                script = self._in_project(collect_script(left))
                yield Stage(number=0, phase=Phase.LATE, script=script, when=when)

    def cleanup(self) -> Stage:
        return Stage(
            number=0,
            phase=Phase.LATE,
            section="cleanup_file_variables",
            title="Cleaning up project directory and file based variables",
            script=f"{self.environment.cleanup()}\nrm -rf {shlex.quote(self.environment.temp_dir)}",
            is_counted=False,
        )

    @property
    def _is_status_ours(self) -> bool:
        """Whether the job leaves the variable to us that says how its script has ended."""
        return all(each.key != _STATUS for each in self.job.variables)

    def _ours(self, script: str) -> str:
        return f"{self.environment.preamble(write_files=False)}\n{script}\n"

    def _in_project(self, script: str) -> str:
        return self._ours(f"cd {shlex.quote(self.environment.project_dir)} || exit\n{script}")

    def _theirs(self, step: Step, before: str = "", after: str = "") -> str:
        return "\n".join(
            [
                self.environment.preamble(write_files=False),
                f'export {_STATUS}="$_t_status"' if step.name == AFTER_SCRIPT and self._is_status_ours else "",
                "unset _t_status",
                "if (set -o pipefail) 2>/dev/null; then set -o pipefail; fi",
                "set -e",
                f"cd {shlex.quote(self.environment.project_dir)}",
                *(["set -x"] if self.environment.options.debug_trace else []),
                _commands(before, *step.script, after),
                "",
            ]
        )


def _command(command: str) -> str:
    """A command of the job's, behind the line that shows it."""
    first, *more = command.strip("\n").split("\n")
    shown = f"$ {first.rstrip()}{' # collapsed multi-line command' if more else ''}"
    return f"printf '\\033[32;1m%s\\033[0;m\\n' {shlex.quote(shown)}\n{command}"


def _commands(*commands: str) -> str:
    return "\n".join(map(_command, filter(None, commands)))
