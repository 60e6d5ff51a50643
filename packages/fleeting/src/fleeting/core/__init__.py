"""Pure: what is known of a group and what to do about it. For taskscaler; may change with any minor version."""

from fleeting.core._building import build_plan, refusal_of
from fleeting.core._instance import Instance, InstanceRecord, Origin, Stage
from fleeting.core._intents import Intent
from fleeting.core._plan import PLAN_RECORDS, Limits, Plan
from fleeting.core._step import NOTHING, Drop, Put, Step, Write
from fleeting.core._timers import Timers

__all__ = [
    "NOTHING",
    "PLAN_RECORDS",
    "Drop",
    "Instance",
    "InstanceRecord",
    "Intent",
    "Limits",
    "Origin",
    "Plan",
    "Put",
    "Stage",
    "Step",
    "Timers",
    "Write",
    "build_plan",
    "refusal_of",
]
