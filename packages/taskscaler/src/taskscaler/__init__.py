"""Job-aware autoscaling: slots on demand, over groups of cloud instances.

How the parts lie on each other; each imports only from those below it:

    cli/        report/     the command line; looking back on a batch: timelines, figures
    batch/                  many jobs over one scaler, and what they leave
    config/                 fleets as files describe them
    futures/    sync/       `concurrent.futures` over a scaler; a scaler for threads
    executors/  observers/  run one job in one slot; report to others what happens
    _state                  where the state of commands is kept
    _scaler     _lease      the async shell, and what it hands out
    diagnose/               answers for people: of the whole, of one instance, of one key, of what comes next
    _observe                what observers receive
    core/                   pure: who holds which slot; how many instances there should be; plans below
    _types                  pools and policies
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taskscaler._attempts import Attempt, Attempts
    from taskscaler._errors import (
        KeyInUse,
        LeaseExpired,
        LeaseLost,
        NoCapacity,
        NoSuchInstance,
        NotDetached,
        NotHeld,
        NotSuspended,
        TaskscalerError,
    )
    from taskscaler._lease import Lease
    from taskscaler._observe import DecisionEvent, InstanceEvent, LeaseEvent, ScalerEvent, ScalerObserver
    from taskscaler._scaler import Taskscaler
    from taskscaler._sigterm import ExitOnSigterm, exit_on_sigterm
    from taskscaler._types import CleanupHook, Policy, Pool, PoolSettings
    from taskscaler.core._decide import Decision, Removal
    from taskscaler.core._slots import Capacity, DetachedLease
    from taskscaler.diagnose._explain import Explanation, InstanceView, PoolView
    from taskscaler.diagnose._explain_instance import InstanceExplanation, JobOnInstance
    from taskscaler.diagnose._explain_key import KeyExplanation
    from taskscaler.diagnose._forecast import Next, Upcoming

_ON_DEMAND = {
    "Attempt": "taskscaler._attempts",
    "Attempts": "taskscaler._attempts",
    "Capacity": "taskscaler.core._slots",
    "CleanupHook": "taskscaler._types",
    "Decision": "taskscaler.core._decide",
    "DecisionEvent": "taskscaler._observe",
    "DetachedLease": "taskscaler.core._slots",
    "ExitOnSigterm": "taskscaler._sigterm",
    "Explanation": "taskscaler.diagnose._explain",
    "InstanceEvent": "taskscaler._observe",
    "InstanceExplanation": "taskscaler.diagnose._explain_instance",
    "InstanceView": "taskscaler.diagnose._explain",
    "JobOnInstance": "taskscaler.diagnose._explain_instance",
    "KeyExplanation": "taskscaler.diagnose._explain_key",
    "KeyInUse": "taskscaler._errors",
    "Lease": "taskscaler._lease",
    "LeaseEvent": "taskscaler._observe",
    "LeaseExpired": "taskscaler._errors",
    "LeaseLost": "taskscaler._errors",
    "Next": "taskscaler.diagnose._forecast",
    "NoCapacity": "taskscaler._errors",
    "NoSuchInstance": "taskscaler._errors",
    "NotDetached": "taskscaler._errors",
    "NotHeld": "taskscaler._errors",
    "NotSuspended": "taskscaler._errors",
    "Policy": "taskscaler._types",
    "Pool": "taskscaler._types",
    "PoolSettings": "taskscaler._types",
    "PoolView": "taskscaler.diagnose._explain",
    "Removal": "taskscaler.core._decide",
    "ScalerEvent": "taskscaler._observe",
    "ScalerObserver": "taskscaler._observe",
    "Taskscaler": "taskscaler._scaler",
    "TaskscalerError": "taskscaler._errors",
    "Upcoming": "taskscaler.diagnose._forecast",
    "exit_on_sigterm": "taskscaler._sigterm",
}
"""All that is here, by where it is: a command that asks a daemon needs no scaler, and help needs nothing of it."""

__all__ = [
    "Attempt",
    "Attempts",
    "Capacity",
    "CleanupHook",
    "Decision",
    "DecisionEvent",
    "DetachedLease",
    "ExitOnSigterm",
    "Explanation",
    "InstanceEvent",
    "InstanceExplanation",
    "InstanceView",
    "JobOnInstance",
    "KeyExplanation",
    "KeyInUse",
    "Lease",
    "LeaseEvent",
    "LeaseExpired",
    "LeaseLost",
    "Next",
    "NoCapacity",
    "NoSuchInstance",
    "NotDetached",
    "NotHeld",
    "NotSuspended",
    "Policy",
    "Pool",
    "PoolSettings",
    "PoolView",
    "Removal",
    "ScalerEvent",
    "ScalerObserver",
    "Taskscaler",
    "TaskscalerError",
    "Upcoming",
    "exit_on_sigterm",
]


if not TYPE_CHECKING:  # else mypy would take every name for one that is here

    def __getattr__(name: str) -> object:
        """Import a name when it is asked for."""
        if name not in _ON_DEMAND:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = globals()[name] = getattr(import_module(_ON_DEMAND[name]), name)
        return found
