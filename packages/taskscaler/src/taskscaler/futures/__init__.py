"""`concurrent.futures` over a fleet: what is submitted runs in slots on instances.

::

    from taskscaler.futures import FleetExecutor
    from taskscaler.sync import Taskscaler

    with Taskscaler(pool) as scaler, FleetExecutor(scaler) as fleet:
        for result in fleet.map('gzip -9c "$1" | wc -c', paths):
            print(result.output)
"""

from taskscaler._errors import CallFailed, ScriptFailed
from taskscaler.futures._executor import FleetExecutor
from taskscaler.futures._future import FleetFuture
from taskscaler.futures._work import Call, Result, Work

__all__ = ["Call", "CallFailed", "FleetExecutor", "FleetFuture", "Result", "ScriptFailed", "Work"]
