"""What keeps an agent from being brought to an instance."""

from job_steps._errors import JobStepsError


class AgentError(JobStepsError):
    """An agent cannot run on an instance, or be reached there; says why, and what to do, in one sentence."""
