"""A job's `run`: steps that an agent on its instance carries out, in the place of a script: pure but for that agent.

The agent is brought to the instance once. In the job's stage it is a command like any other: it prints what the steps
print, is stopped as a script is, and exits with the code of the step that failed. What it is asked for is GitLab's own
request for a step runner; how each step went comes back in a file.
"""

import json
import posixpath

import anyio
from attrs import frozen

from fleeting import Unreachable
from gitlab_jobs import Job
from job_steps import StepsInvalid
from job_steps.client import PYTHONS, AgentError, place_agent
from job_steps.policy import Policy, PolicyRefused, admit_breakpoints, admit_steps, as_mapping, breakpoints_of
from taskscaler.executors import Leased
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._record import RESULTS
from taskscaler_gitlab.runner._shell import quote
from taskscaler_gitlab.runner._stages import AFTER_SCRIPT
from taskscaler_gitlab.runner._variables import JobEnvironment

OMITTED = frozenset({"STEPS", "FF_USE_NATIVE_STEPS"})
"""Variables that are not the steps' to see. Source: ``steps/steps.go`` of gitlab-runner."""

PATIENCE = 300.0
"""Seconds within which the agent has to be on its instance."""

AGENT = "agent.pyz"
"""The agent's file in the directory of a leg in a container."""

_FIND_PYTHON = f"""_t_python= _t_found=
for _t_each in {" ".join(PYTHONS)}; do
    command -v "$_t_each" >/dev/null 2>&1 || continue
    "$_t_each" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && _t_python=$_t_each && break
    _t_found=" (it has $("$_t_each" -V 2>&1))"
done
[ -n "$_t_python" ] || {{
    echo "ERROR: the job has \\`run\\`, which needs Python 3.10 or later in its image$_t_found; use another image"
    exit 1
}}"""

_SCRIPT_FAILURE = "script_failure"
_REQUEST, _POLICY, _ENVIRONMENT = "steps-request.json", "steps-policy.json", "steps-environment.json"

_KEEP_ENVIRONMENT = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"


@frozen
class AgentThere:
    """An agent on an instance."""

    python: str
    """What runs it; empty: it is not there yet."""

    path: str
    """Where it is."""

    @property
    def is_brought(self) -> bool:
        """Whether the job's own leg brings it into a container, where nobody has looked for a Python yet."""
        return not self.path

    @property
    def found(self) -> str:
        """What says in a leg where it is, and what runs it; for any POSIX shell, without the job's variables."""
        if self.is_brought:
            return f'_t_agent="$PWD/{AGENT}"\n{_FIND_PYTHON}'
        return f"_t_agent={quote(self.path)} _t_python={quote(self.python)}"


async def have_agent(lease: Leased) -> AgentThere:
    """Bring the agent to an instance, unless it is there.

    Raises:
        JobInvalid: It cannot run there.
        Unreachable, ConnectError: The instance does not answer, or not in time.
    """
    with anyio.move_on_after(PATIENCE):
        async with lease.dial() as connection:
            try:
                placed = await place_agent(connection)
            except AgentError as error:
                raise JobInvalid(f"the job has `run`, and steps cannot be run on {lease.instance}: {error}") from error
            return AgentThere(placed.python, placed.path)
    raise Unreachable(f"{lease.instance} did not take the agent for steps within {PATIENCE:.0f} s")


def check_run(job: Job, settings: RunnerSettings) -> None:
    """Refuse a job whose `run` cannot be run by this runner.

    Raises:
        JobInvalid: Says why.
    """
    if any(step.script and step.name != AFTER_SCRIPT for step in job.steps):
        raise JobInvalid("the job has `run` and `script`; keep one of them", reason="runner_system_failure")
    policy = settings.taskscaler.steps_policy.policy
    points = _check_breakpoints(job, policy, steps_of(job, policy))
    if points and settings.kind != "instance":
        raise JobInvalid("the job has breakpoints, at which this runner holds jobs with the executor `instance` alone")


def _check_breakpoints(job: Job, policy: Policy, steps: str) -> bool:
    """Refuse a job that is to be held where that is not allowed, or cannot be; returns whether it is to be held.

    What is made of other variables is left to the agent, which has the same policy, and knows their values.
    """
    try:
        points, _ = breakpoints_of({each.key: each.value for each in job.variables if "$" not in each.value})
        admit_breakpoints(policy, points, steps)
    except PolicyRefused as error:
        raise JobInvalid(str(error), reason=_SCRIPT_FAILURE) from error
    except ValueError as error:
        raise JobInvalid(f"the job's breakpoints: {error}", reason=_SCRIPT_FAILURE) from error
    return bool(points)


def check_scripts(job: Job, policy: Policy) -> None:
    """Refuse a job that has scripts where a policy allows none, wherever they stand.

    Raises:
        JobInvalid: Says which.
    """
    if policy.scripts:
        return
    names = [*(hook.name for hook in job.hooks if hook.script), *(step.name for step in job.steps if step.script)]
    if names:
        raise JobInvalid(
            f"the policy's `scripts` refuses the job's `{names[0]}`: here, a job may only have `run`, with steps that"
            " are not scripts",
            reason=_SCRIPT_FAILURE,
        )


def steps_of(job: Job, policy: Policy) -> str:
    """The steps of a job, as a step runner takes them, with those that the policy adds.

    Raises:
        JobInvalid: They cannot be read, or the policy does not allow them.
    """
    try:
        listed = json.loads(job.run)
    except (ValueError, RecursionError) as error:
        raise JobInvalid("the job has a `run` that is not JSON", reason=_SCRIPT_FAILURE) from error
    if not isinstance(listed, list):
        raise JobInvalid("the job has a `run` that is not a list of steps", reason=_SCRIPT_FAILURE)
    try:
        return admit_steps(policy, f"{{}}\n---\n{json.dumps({'run': listed}, ensure_ascii=False)}\n")
    except PolicyRefused as error:
        raise JobInvalid(f"the job's `run`: {error}", reason=_SCRIPT_FAILURE) from error
    except StepsInvalid as error:  # its line is one of our own text
        said = str(error).removeprefix(f"{error.source}:{error.line}: ")
        raise JobInvalid(f"the job's `run`: {said}", reason=_SCRIPT_FAILURE) from error


def steps_script(job: Job, environment: JobEnvironment, settings: RunnerSettings, agent: AgentThere) -> str:
    """Write what runs the steps of a job, for any POSIX shell, which begins in the directory of its leg.

    With a policy, the agent begins without the job's variables, and has them from a file: they are for the job's
    steps, and change neither the agent nor the steps that the policy adds.
    """
    policy = settings.taskscaler.steps_policy.policy
    request = {
        "id": str(job.id),
        "work_dir": environment.project_dir,
        "build_dir": environment.project_dir,
        "env": {},
        "variables": _variables(job, environment),
        "steps": steps_of(job, policy),
    }
    place = quote(environment.temp_dir)
    rules = as_mapping(policy)
    command = ["run", posixpath.join(environment.temp_dir, _REQUEST)]
    command += ["--policy", posixpath.join(environment.temp_dir, _POLICY)] if rules else []
    kept = posixpath.join(environment.temp_dir, _ENVIRONMENT)
    keep = ["-I", "-c", _KEEP_ENVIRONMENT, kept]
    command += ["--environment", kept] if rules else []
    files = {_REQUEST: request, **({_POLICY: rules} if rules else {})}
    return "\n".join([
        '_t_out="$PWD/out"',
        agent.found,
        "(" if rules else "",
        environment.preamble(write_files=False),
        f"mkdir -p {place} || exit",
        f"rm -rf {' '.join(quote(path) for path in _paths(environment))} || exit",  # an earlier job may have left links
        *(
            f"(umask 077 && printf '%s' {quote(json.dumps(data, ensure_ascii=False))}"
            f" > {quote(posixpath.join(environment.temp_dir, name))}) || exit"
            for name, data in files.items()
        ),
        f'umask 077\nexec "$_t_python" {" ".join(map(quote, keep))}\n) || exit' if rules else "",
        f"cd {quote(environment.project_dir)} || exit",
        f'exec "$_t_python" -I "$_t_agent" {" ".join(map(quote, command))} --results "$_t_out/{RESULTS}"',
        "",
    ])  # fmt: skip


def cleanup_script(environment: JobEnvironment) -> str:
    """Write what removes the files of that again."""
    return "\n".join(f"rm -f {quote(path)}" for path in _paths(environment))


def _paths(environment: JobEnvironment) -> list[str]:
    return [posixpath.join(environment.temp_dir, name) for name in (_REQUEST, _POLICY, _ENVIRONMENT)]


def _variables(job: Job, environment: JobEnvironment) -> list[dict[str, object]]:
    """The job's, as a step runner takes them."""
    masked = {each.key for each in job.variables if each.masked}
    known = environment.variables
    return [
        {"key": name, "value": known.content(name), "file": known.is_file(name), "masked": name in masked}
        for name in known.names
        if name not in OMITTED and name in environment.exports
    ]
