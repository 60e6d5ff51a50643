"""What an operator allows of steps: a policy as a value, and the two places where it is applied.

`admit_steps` looks at all that a job is to run, where it is admitted; `gate` makes what looks at each step right before
it is loaded, for `run_steps`; `admit_breakpoints` looks at where a job is to be held, which `breakpoints_of` finds in
its variables. `as_mapping` and `policy_of` write and read a policy as JSON can hold it.
"""

from job_steps._breakpoints import of_variables as breakpoints_of
from job_steps._gate import admit_breakpoints, admit_steps, gate
from job_steps._policy import Policy, PolicyRefused, as_mapping, policy_of

__all__ = [
    "Policy",
    "PolicyRefused",
    "admit_breakpoints",
    "admit_steps",
    "as_mapping",
    "breakpoints_of",
    "gate",
    "policy_of",
]
