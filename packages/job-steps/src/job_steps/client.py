"""The manager's side: bring an agent to an instance, have it run steps, and follow them, through any connection.

`bring_agent` needs nothing on the instance but Python 3.10 or later. `reach` finds an agent again where it listens, and
speaks to GitLab's own ``step-runner serve`` as well.
"""

from job_steps._agent_errors import AgentError
from job_steps._bring import PYTHONS, Agent, PlacedAgent, bring_agent, place_agent, reach
from job_steps._call_errors import CallError, CallFailed, ConnectionLost
from job_steps._call_status import Code
from job_steps._client import (
    Environment,
    Held,
    HeldStep,
    JobStatus,
    Results,
    RunRequest,
    StepRunnerClient,
    step_runner,
)
from job_steps._holds import Ended
from job_steps._messages import Cause, RunState
from job_steps._zipapp import Zipapp, zipapp

__all__ = [
    "PYTHONS",
    "Agent",
    "AgentError",
    "CallError",
    "CallFailed",
    "Cause",
    "Code",
    "ConnectionLost",
    "Ended",
    "Environment",
    "Held",
    "HeldStep",
    "JobStatus",
    "PlacedAgent",
    "Results",
    "RunRequest",
    "RunState",
    "StepRunnerClient",
    "Zipapp",
    "bring_agent",
    "place_agent",
    "reach",
    "step_runner",
    "zipapp",
]
