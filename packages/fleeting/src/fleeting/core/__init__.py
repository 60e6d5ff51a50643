"""Pure: what is known of a group and what to do about it. For taskscaler; may change with any minor version."""

from fleeting.core._building import build_plan, refusal_of
from fleeting.core._chance import Chance
from fleeting.core._instance import TOO_OLD, Instance, InstanceRecord, Origin
from fleeting.core._intents import Intent
from fleeting.core._pacing import Limits
from fleeting.core._plan import Plan, Standing
from fleeting.core._records import PLAN_RECORDS
from fleeting.core._stages import Boot, Removing, Stage, Start
from fleeting.core._step import NOTHING, Drop, Put, Step, Write
from fleeting.core._timers import Timers

__all__ = [
    "NOTHING",
    "PLAN_RECORDS",
    "TOO_OLD",
    "Boot",
    "Chance",
    "Drop",
    "Instance",
    "InstanceRecord",
    "Intent",
    "Limits",
    "Origin",
    "Plan",
    "Put",
    "Removing",
    "Stage",
    "Standing",
    "Start",
    "Step",
    "Timers",
    "Write",
    "build_plan",
    "refusal_of",
]
