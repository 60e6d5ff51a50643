"""Executors run one job on a leased slot. Third parties add theirs as plugins.

An executor is named in the jobs file and found through an entry point of the group ``taskscaler.executors``
whose module has a hook::

    from taskscaler.executors import ExecutorPlugin, hookimpl

    @hookimpl
    def taskscaler_executor() -> ExecutorPlugin:
        return ExecutorPlugin(config=MyConfig, executor=MyExecutor)
"""

from taskscaler._tracer import enter_phase
from taskscaler._uses import MemoryLimit, StepUse
from taskscaler.executors._hooks import available_executors, find_executor, hookimpl, load_executor
from taskscaler.executors._protocol import (
    Executor,
    ExecutorPlugin,
    ForeseesRefusal,
    JobOutcome,
    JobSpec,
    Leased,
    Reattaches,
    StandsForScript,
    StartsAttached,
    TakesFile,
    Verdict,
    check_job_name,
)

__all__ = [
    "Executor",
    "ExecutorPlugin",
    "ForeseesRefusal",
    "JobOutcome",
    "JobSpec",
    "Leased",
    "MemoryLimit",
    "Reattaches",
    "StandsForScript",
    "StartsAttached",
    "StepUse",
    "TakesFile",
    "Verdict",
    "available_executors",
    "check_job_name",
    "enter_phase",
    "find_executor",
    "hookimpl",
    "load_executor",
]
