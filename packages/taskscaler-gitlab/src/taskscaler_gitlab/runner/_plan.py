"""A job's stages, and the legs in which they run: pure.

A *leg* is what one command on the instance runs: for a job on the instance itself, all of it. A job in a container may
have its sources and its files in the hands of another image, which has git where its own has not: that makes three. And
a job that was canceled in its script has a leg for what comes after it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from attrs import evolve, frozen

from gitlab_jobs import Job
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._artifacts import KnownArtifact, artifacts_of
from taskscaler_gitlab.runner._caches import KnownCache, caches_of
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._shell import quote
from taskscaler_gitlab.runner._stages import Ended, Phase, Stage, judge
from taskscaler_gitlab.runner._steps import AgentThere, check_run, check_scripts
from taskscaler_gitlab.runner._variables import JobEnvironment
from taskscaler_gitlab.runner._writing import Writing

MAX_WRITTEN = 64_000_000
"""Characters of all stages together, as they are in the script of a leg: several copies of it are in memory at once."""

_MORE = len(quote("'")) - len("'")
"""Characters that a quotation mark takes in addition there, roughly."""


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

    has_results: bool = False
    """Whether it has steps, which leave how each of them went."""

    @property
    def leaves_files(self) -> bool:
        """Whether anything of it is brought to the manager."""
        return self.has_results or bool(self.artifacts) or any(cache.pushes for cache in self.caches if self.brings)

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
    def has_script(self) -> bool:
        """Whether it runs what the job is for."""
        return self in (Leg.ALL, Leg.BUILD)

    @property
    def takes_files(self) -> bool:
        """Whether it takes what the manager brings."""
        return self in (Leg.ALL, Leg.BEFORE)


def plan_of(
    job: Job,
    settings: RunnerSettings,
    environment: JobEnvironment,
    *,
    cache_dir: str,
    brings: bool,
    agent: AgentThere | None = None,
) -> Plan:
    """Plan a job.

    Args:
        job: As GitLab gave it.
        settings: The runner's.
        environment: Its variables and directories.
        cache_dir: Where this project's caches are, as the job sees it.
        brings: Whether the manager keeps caches too.
        agent: What runs steps on the instance, if the job has any.

    Raises:
        JobInvalid: It cannot be run; says why.
    """
    _check(job, settings)
    project = environment.project_dir
    caches, bad_caches = caches_of(job, environment.expand, project, environment.get("CACHE_FALLBACK_KEY"))
    artifacts, bad_artifacts = artifacts_of(job, environment.expand, project)
    writing = Writing(job=job, settings=settings, environment=environment, agent=agent or AgentThere("", ""))
    stages = _written(writing, caches, artifacts, cache_dir=cache_dir, brings=brings)
    return Plan(
        stages=tuple(evolve(stage, number=number) for number, stage in enumerate(_bounded(stages))),
        artifacts=tuple(artifacts),
        caches=tuple(caches),
        brings=brings,
        problems=(*environment.problems, *bad_caches, *bad_artifacts),
        has_results=bool(job.run),
    )


def _written(
    writing: Writing, caches: Sequence[KnownCache], artifacts: Sequence[KnownArtifact], *, cache_dir: str, brings: bool
) -> Iterator[Stage]:
    """Write the stages, in their order."""
    yield writing.preparation()
    yield writing.sources()
    yield from writing.restoring(caches, cache_dir)
    yield from writing.dependencies()
    yield from writing.steps()
    yield from writing.keeping(caches, cache_dir, brings=brings)
    yield from writing.collecting(artifacts)
    yield from writing.tidying()
    yield writing.cleanup()


def _bounded(stages: Iterable[Stage]) -> Iterator[Stage]:
    """The stages, as long as they fit into memory: none is written after one that does not."""
    size = 0
    for stage in stages:
        size += sum(len(text) + _MORE * text.count("'") for text in (stage.script, stage.retry))
        if size > MAX_WRITTEN:
            raise JobInvalid(
                f"the job has more than {MAX_WRITTEN} characters with what each of its stages runs, its variables in"
                " each of them, and several for each quotation mark; make the scripts or variables shorter, or put"
                " what is long into a file of the project"
            )
        yield stage


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


def _check(job: Job, settings: RunnerSettings) -> None:
    """Refuse what cannot be run."""
    check_scripts(job, settings.taskscaler.steps_policy.policy)
    if job.run:
        check_run(job, settings)
    if job.secrets:
        raise JobInvalid("the job has `secrets`, which this runner does not fetch; use variables")
    if any("\0" in line for step in job.steps for line in step.script):
        raise JobInvalid("the script has a NUL character, which no shell can read; remove it", reason="script_failure")
