"""A real gitlab-runner whose custom executor is ours, on a fleet of the local group that a daemon holds."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.peers.real import RealRunner
from tests.taskscaler.services import Service, serving

DRIVER = Path(sys.executable).with_name("taskscaler-gitlab")
"""As it is installed."""

FLEET = """
[autoscaler]
plugin = "local"
update_interval = "1s"
update_interval_when_expecting = "20ms"
plugin_config = {{ directory = "{here}/fleet", boot_time = "0s" }}
max_instances = {most}
capacity_per_instance = {capacity}
[autoscaler.state_storage]
dir = "{here}/state"
[[autoscaler.policy]]
idle_count = 0
idle_time = "1h"
"""

CUSTOM = """
executor = "custom"
shell = "bash"
[runners.custom]
config_exec = "{driver}"
config_args = [
  "custom-executor", "config", "--socket", "{socket}", "--builds-dir", "{here}/builds", "--cache-dir", "{here}/caches",
]
prepare_exec = "{driver}"
prepare_args = ["custom-executor", "prepare"{ttl}]
prepare_exec_timeout = {prepare_timeout}
run_exec = "{driver}"
run_args = ["custom-executor", "run"]
cleanup_exec = "{driver}"
cleanup_args = ["custom-executor", "cleanup"]
graceful_kill_timeout = {graceful}
force_kill_timeout = 10
"""


def custom(here: Path, socket: Path, *, ttl: str = "15m", prepare_timeout: int = 120, graceful: int = 30) -> str:
    """The table of a gitlab-runner whose jobs run at the daemon with a socket, and leave their files below *here*."""
    return CUSTOM.format(
        driver=DRIVER,
        here=here,
        socket=socket,
        ttl=f', "--ttl", "{ttl}"',
        prepare_timeout=prepare_timeout,
        graceful=graceful,
    )


@contextmanager
def fleet(here: Path, real: RealRunner, *, capacity: int = 6, most: int = 1) -> Iterator[Service]:
    """A daemon whose instances have gitlab-runner in their PATH, for artifacts and caches."""
    (tools := here / "tools").mkdir(parents=True, exist_ok=True)
    (link := tools / "gitlab-runner").unlink(missing_ok=True)
    link.symlink_to(real.program)
    (here / "fleet.toml").write_text(FLEET.format(here=here, capacity=capacity, most=most))
    with serving(here, env={"PATH": f"{tools}:{os.environ['PATH']}"}) as service:
        yield service
