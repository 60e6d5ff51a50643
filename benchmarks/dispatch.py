"""What becomes of a job by a hundred rules, of which the last is for it: patterns, variables, times and refs.

Each decision reads the job anew, as a runner does that has just been handed it; it has as many variables as GitLab
gives a job.
"""

from time import process_time

from _figures import best_of, report

from gitlab_jobs import GitInfo, Job, JobInfo, Variable
from taskscaler_gitlab._dispatch import Dispatch
from taskscaler_gitlab._dispatch_settings import Rule, When

RULES = 100
VARIABLES = 120
TIMES = 2000


def rules() -> list[Rule]:
    """Of each kind of condition about as many."""
    kinds = [
        lambda n: When(namespace=(f"group-{n}/**", f"team-{n}"), ref_protected=False),
        lambda n: When(project=(f"group-{n}/*/service-{n}",)),
        lambda n: When(variables={f"CI_VARIABLE_{n}": ("no", "never-*")}),
        lambda n: When(ref=(f"release-{n}.*",), timeout_at_least=60.0),
        lambda n: When(stage=(f"stage-{n}",), job=(f"deploy {n} *",)),
    ]
    made = [Rule(name=f"rule {n}", when=kinds[n % len(kinds)](n), pools=("a",)) for n in range(RULES - 1)]
    return [*made, Rule(name="last", pools=("b",))]


def measure(dispatch: Dispatch, job: Job) -> float:
    """Microseconds of a decision, in CPU time."""
    if dispatch.decide(job).rule != "last":
        raise AssertionError("another rule is for it")
    start = process_time()
    for _ in range(TIMES):
        dispatch.decide(job)
    return (process_time() - start) / TIMES * 1e6


if __name__ == "__main__":
    variables = tuple(Variable(key=f"CI_VARIABLE_{n}", value=f"value {n}") for n in range(VARIABLES))
    job = Job(
        id=1,
        token="",
        job_info=JobInfo(name="build", stage="test", project_full_path="platform/web/shop/front"),
        git_info=GitInfo(ref="a-branch-of-mine", ref_type="branch"),
        variables=variables,
    )
    dispatch = Dispatch(rules())
    fewest = best_of(5, lambda: -measure(dispatch, job))
    report("dispatch_us", -fewest, "us", 50, conditions=f"{RULES} rules, {VARIABLES} variables; CPU time")
