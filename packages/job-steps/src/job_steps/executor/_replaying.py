"""A job of a jobs file of taskscaler, as its batch would run it: its list of steps, environment and policies."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tomllib
from attrs import frozen

from fleeting import ConfigError
from fleeting.plugins import structure
from job_steps._agent._running import Rules
from job_steps._definitions import Function
from job_steps._errors import JobStepsError
from job_steps._limits import Limits, check_limits
from job_steps._loading import read_text
from job_steps._nearest import nearest
from job_steps._reading import read_steps
from job_steps.executor._config import StepsConfig
from job_steps.executor._list import FILE, steps_of
from job_steps.executor._options import StepsOptions
from taskscaler.executors import JobSpec

_SEVERAL: Final = ("matrix", "for_each")
"""Keys that make several jobs of one table, which only taskscaler knows."""


class NoSuchJob(JobStepsError):
    """The file has no such job that could be run here; says why, and what to do."""


@frozen(kw_only=True)
class BatchJob:
    """What a batch would run."""

    function: Function
    env: Mapping[str, str]
    script: str
    """What has to be in `FILE` beside it; empty: nothing."""
    breakpoints: tuple[str, ...]
    admit: Callable[..., None]
    """Applies the policies to each step."""
    own: frozenset[str]
    """The names of the steps that the operator's policy adds."""
    limits: Limits
    """Of each command."""


def read_batch_job(path: Path, name: str) -> BatchJob:
    """Read a jobs file, and find a job.

    Raises:
        JobStepsError: It has none of that name, or one that is refused, or that could not be run here.
    """
    try:
        data = tomllib.loads(read_text(str(path)))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise NoSuchJob(f"{path}: not TOML: {error}") from error
    jobs = {str(each.get("name")): each for each in data.get("jobs", ()) if isinstance(each, dict)}
    if name not in jobs:
        near = nearest(name, list(jobs))
        known = ", ".join(f"`{each}`" for each in list(jobs)[:10]) or "none"
        raise NoSuchJob(
            f"{path} has no job `{name}`; " + (f"did you mean `{near}`?" if near else f"its jobs are {known}")
            if name
            else f"{path} is a jobs file; name one of its jobs with --job: {known}"
        )
    try:
        return _read(path, jobs[name], data.get("defaults", {}), data.get("executors", {}).get("steps", {}))
    except (ConfigError, AttributeError, TypeError, ValueError) as error:
        hint = "`taskscaler check` says what is wrong with it"
        raise NoSuchJob(f"{path}: the job `{name}` cannot be read: {error}; {hint}") from error


def _read(path: Path, job: Mapping[str, Any], defaults: Mapping[str, Any], settings: Mapping[str, Any]) -> BatchJob:
    executor = job.get("executor", defaults.get("executor", "instance"))
    if executor != "steps":
        raise NoSuchJob(f"the job `{job['name']}` has the executor {executor}; only those of `steps` can be replayed")
    if several := [key for key in _SEVERAL if key in job]:
        raise NoSuchJob(f"the job `{job['name']}` has `{several[0]}`, so it is several; they cannot be replayed")
    wishes = {**defaults.get("options", {}).get("steps", {}), **job.get("options", {}).get("steps", {})}
    options = structure(wishes, StepsOptions, path="options.steps")
    if options.file is not None:
        options = options.with_text(read_text(str(path.parent / options.file)))
    policy = structure(settings, StepsConfig, path="executors.steps").policy.policy
    env = {**defaults.get("env", {}), **job.get("env", {})}
    steps = steps_of(JobSpec(name=job["name"], script=job.get("script", ""), env=env, options=options), policy)
    rules = Rules([policy], own=steps.policy)
    check_limits(rules.limits)
    return BatchJob(
        function=read_steps(steps.text),
        env={**env, "TASKSCALER_JOB_NAME": job["name"]},
        script=steps.script,
        breakpoints=steps.breakpoints,
        admit=rules.gate(),
        own=rules.own_names,
        limits=rules.limits,
    )


@contextmanager
def script_in(directory: Path, script: str) -> Iterator[None]:
    """Have a job's script as a file in a directory, for as long as it runs.

    Raises:
        OSError: It cannot be made; or there is such a file, which is somebody else's.
    """
    if not script:
        yield
        return
    path = directory / FILE
    path.touch(mode=0o700, exist_ok=False)
    try:
        path.write_text(script)
        yield
    finally:
        path.unlink(missing_ok=True)
