"""Steps of jobs, as GitLab has them: read, run, and told as a tree of results.

`read_steps` reads a function's file or a list of steps, `run_steps` runs it on this machine, on asyncio and trio, and
`StepResult` says how it went. GitLab's own words: a function is an interface with an implementation, a step is one call
of a function.
"""

from job_steps._breakpoints import Decision, Moment, When
from job_steps._definitions import Exec, Function, Parameter, Step
from job_steps._errors import JobStepsError, NotLoaded, ResultInvalid, StepFailed, StepRefused, StepsInvalid
from job_steps._limits import Limits
from job_steps._reading import read_steps
from job_steps._references import (
    BuiltinReference,
    DynamicReference,
    GitReference,
    ImageReference,
    LocalReference,
    Reference,
    parse_reference,
)
from job_steps._results import Resources, Status, StepResult
from job_steps._run import Origin, Variable
from job_steps._runner import run_steps
from job_steps._values import Value

__all__ = [
    "BuiltinReference",
    "Decision",
    "DynamicReference",
    "Exec",
    "Function",
    "GitReference",
    "ImageReference",
    "JobStepsError",
    "Limits",
    "LocalReference",
    "Moment",
    "NotLoaded",
    "Origin",
    "Parameter",
    "Reference",
    "Resources",
    "ResultInvalid",
    "Status",
    "Step",
    "StepFailed",
    "StepRefused",
    "StepResult",
    "StepsInvalid",
    "Value",
    "Variable",
    "When",
    "parse_reference",
    "read_steps",
    "run_steps",
]
