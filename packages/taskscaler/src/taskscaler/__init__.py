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
