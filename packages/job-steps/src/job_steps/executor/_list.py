"""From a job to the list of steps that is run for it: pure."""

from attrs import evolve, frozen

from job_steps._breakpoints import of_variables
from job_steps._expressions import has_expression
from job_steps._gate import admit_breakpoints, admit_steps, as_function, written
from job_steps._policy import Policy
from job_steps._reading import read_steps
from job_steps.executor._options import StepsOptions
from taskscaler.executors import JobSpec

SCRIPT = "script"
"""What the only step of a job is called whose script it is."""

FILE = ".job-script"
"""The script's file in the job's directory, if it is one."""

LONGEST = 100_000
"""Characters of a script that is an argument; a longer one would not fit into a command."""


@frozen
class StepsOfJob:
    """What is run for a job."""

    text: str
    """As the agent takes it."""

    script: str = ""
    """What is put into `FILE` before; empty: nothing is."""

    breakpoints: tuple[str, ...] = ()
    """Where it is held."""

    breakpoint_timeout: float | None = None
    """Seconds for which it is; None: as long as the agent holds one that does not say."""

    policy: Policy | None = None
    """The job's own."""


def steps_of(job: JobSpec, policy: Policy) -> StepsOfJob:
    """Make the list of a job, as the policy wants it.

    A script is its only step: one for bash or sh, which ends with the first command that fails, unless it names its
    interpreter.

    Raises:
        PolicyRefused: The policy does not allow a step.
        StepsInvalid: They cannot be read.
        ValueError: A breakpoint names no step, or is none.
    """
    options = job.options if isinstance(job.options, StepsOptions) else StepsOptions()
    own = options.policy.restrictions if options.policy else None
    listed = _list_of(job, options, policy, own)
    points, wanted = of_variables(job.env)
    points = (*options.breakpoints, *points)
    admit_breakpoints(policy, points, listed.text)
    wanted = options.breakpoint_timeout or wanted
    return evolve(listed, breakpoints=points, breakpoint_timeout=wanted, policy=own)


def _list_of(job: JobSpec, options: StepsOptions, policy: Policy, own: Policy | None) -> StepsOfJob:
    if options.stands_for_script:
        return StepsOfJob(admit_steps(policy, as_function(options.text), own=own))
    script, file = f"set -e\n{job.script}", ""
    if job.script.startswith("#!"):
        script, file = f"exec ./{FILE}", job.script
    elif len(job.script) > LONGEST or has_expression(job.script):  # a job's script is one, and has no expressions
        script, file = f"set -e\n. ./{FILE}", job.script
    listed = written({}, {"run": [{"name": SCRIPT, "script": script}]})
    return StepsOfJob(admit_steps(policy, listed, own=own), file)


def first_in_container(steps: StepsOfJob) -> str:
    """The name of the first step that is to run in a container; empty if none is."""
    return next((each.name for each in read_steps(steps.text).steps if each.container), "")
