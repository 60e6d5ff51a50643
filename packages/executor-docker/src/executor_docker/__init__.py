"""The *docker* executor: runs jobs in containers on leased instances, through the connection to each.

What is where::

    _executor   one job from its admission to the last trace of it
    _work       what is done for one job on a daemon, from its containers to what it leaves
    _streamed   a job that ends with its manager, whose output comes as it is written
    _kept       a job that outlives its manager, whose output the daemon keeps
    _rules      pure: what a job wishes, held against what the operator allows
    _tailored   pure: how much memory it gets, by what earlier runs needed; _memory keeps those
    _bodies     pure: what the Engine API is asked
    _script     pure: what runs in the container, and what it reports of itself
    _owner      who made what is found on a daemon, and whether it still lives
    _images  _network  _services  _caches  _artifacts      one step each
    _endpoint   how the daemon is reached, and what is wrong with it
"""

from executor_docker._config import DockerConfig, PullPolicy, Registry, TailorMemory
from executor_docker._errors import DockerError
from executor_docker._executor import DockerExecutor
from executor_docker._options import DockerOptions, Service
from taskscaler.executors import ExecutorPlugin, hookimpl

__all__ = [
    "DockerConfig",
    "DockerError",
    "DockerExecutor",
    "DockerOptions",
    "PullPolicy",
    "Registry",
    "Service",
    "TailorMemory",
]


@hookimpl
def taskscaler_executor() -> ExecutorPlugin:
    """Register the executor."""
    return ExecutorPlugin(config=DockerConfig, executor=DockerExecutor, options=DockerOptions)
