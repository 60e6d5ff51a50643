"""What the plan keeps in the journal: its kinds of records, and the class of each."""

from collections.abc import Mapping

from fleeting.core._instance import InstanceRecord, LostRecord
from fleeting.core._intents import IntentRecord

INTENT, INSTANCE, LOST = "intent", "instance", "lost"
"""The kinds."""

PLAN_RECORDS: Mapping[str, type] = {INTENT: IntentRecord, INSTANCE: InstanceRecord, LOST: LostRecord}
"""The records' classes, by kind."""
