"""What can become of a call to a service.

JobStepsError
└── CallError
    ├── CallFailed       the service, or what stands for it, said no: see its code
    └── ConnectionLost   nobody knows what the service made of it: connect and call again; all calls can be repeated
"""

from job_steps._call_status import Code
from job_steps._errors import JobStepsError


class CallError(JobStepsError):
    """Base class of both."""


class CallFailed(CallError):
    """A call that was answered by something other than what it was for."""

    def __init__(self, code: Code, said: str) -> None:
        """Take gRPC's code, and what the service said."""
        super().__init__(said or f"the service answered {code.name}")
        self.code = code


class ConnectionLost(CallError):
    """A connection that broke, or was never there."""
