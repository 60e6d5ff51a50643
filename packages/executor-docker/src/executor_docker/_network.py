"""The network that a job's containers are put on."""

from secrets import token_hex

from executor_docker._bodies import Place
from executor_docker._config import NetworkMode
from executor_docker._owner import Unit
from fleeting_docker_engine import Engine

_SETTLED = {"bridge": Place("bridge"), "none": Place("none")}


async def prepare(engine: Engine, mode: NetworkMode, unit: Unit) -> Place:
    """Make a network of the job's own, unless there is one for all.

    No two are named alike: a daemon may still be making one for a manager that was killed, and refuses containers on a
    network whose name several have. All bear the job's label, by which they are removed.
    """
    if mode != "job":
        return _SETTLED[mode]
    name = f"taskscaler-{unit.id}-{token_hex(4)}"
    await engine.ask("POST", "/networks/create", json={"Name": name, "Labels": unit.of_kind("network")})
    return Place(name, is_own=True)
