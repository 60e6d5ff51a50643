"""The *steps* executor of `taskscaler`: runs a job's steps by an agent on the leased instance, over its connection.

It needs the extra ``executor``. What is where::

    _config     what the operator sets, the policy among it
    _options    what a job wishes
    _list       pure: from a job to the list of steps that is run for it
    _outcome    pure: from what the agent says of the steps to what became of the job
    _service    how the agent, or GitLab's step-runner, is reached
    _there      what there is of one try at a job on its instance
    _executor   one try, from its admission to the last trace of it
    _replaying  a job of a jobs file, for `job-steps replay`
"""

from job_steps.executor._config import PolicySettings, Restrictions, StepsConfig
from job_steps.executor._executor import StepsExecutor
from job_steps.executor._options import StepsOptions
from taskscaler.executors import ExecutorPlugin, hookimpl

__all__ = ["PolicySettings", "Restrictions", "StepsConfig", "StepsExecutor", "StepsOptions"]


@hookimpl
def taskscaler_executor() -> ExecutorPlugin:
    """Register the executor."""
    return ExecutorPlugin(config=StepsConfig, executor=StepsExecutor, options=StepsOptions)
