"""For tests: a cloud in memory, virtual time, and the conformance suites for plugins.

Needs ``fleeting[testing]``: trio for virtual time on trio; pytest for `virtual_time`, `GroupConformance`,
`ConnectorConformance`, `DetachedConformance` and `ForwardingConformance`, which are loaded when they are first asked
for.
"""

from typing import TYPE_CHECKING

from fleeting._types import Mark as Mark  # where it was in 0.1.0; it is in fleeting.plugins now
from fleeting.testing._cloud import FakeCloud, OnCommand
from fleeting.testing._conformance import CHECKS, Check, anchor_of, judge, name_of
from fleeting.testing._connection import FakeConnection
from fleeting.testing._connector_checks import CONNECTOR_CHECKS, ConnectorCheck, DialInstance, MakeDial
from fleeting.testing._detached_checks import DETACHED_CHECKS, DetachedCheck
from fleeting.testing._fake import FakeGroup
from fleeting.testing._faults import DecreaseFault, Fault, IncreaseFault, SuspendFault, UpdateFault
from fleeting.testing._forwarding_checks import FORWARDING_CHECKS, ForwardingCheck
from fleeting.testing._harness import (
    Harness,
    MakeHarness,
    NotApplicable,
    NotChecked,
    Probe,
    Trouble,
    TroubleMaker,
    Violation,
)
from fleeting.testing._machine import Bill, Call, Command, Machine
from fleeting.testing._virtual_time import Deadlock, virtual_backend, virtual_run

if TYPE_CHECKING:
    from fleeting.testing._connector_pytest import ConnectorConformance, DetachedConformance, ForwardingConformance
    from fleeting.testing._pytest import GroupConformance, virtual_time

__all__ = [
    "CHECKS",
    "CONNECTOR_CHECKS",
    "DETACHED_CHECKS",
    "FORWARDING_CHECKS",
    "Bill",
    "Call",
    "Check",
    "Command",
    "ConnectorCheck",
    "ConnectorConformance",
    "Deadlock",
    "DecreaseFault",
    "DetachedCheck",
    "DetachedConformance",
    "DialInstance",
    "FakeCloud",
    "FakeConnection",
    "FakeGroup",
    "Fault",
    "ForwardingCheck",
    "ForwardingConformance",
    "GroupConformance",
    "Harness",
    "IncreaseFault",
    "Machine",
    "MakeDial",
    "MakeHarness",
    "NotApplicable",
    "NotChecked",
    "OnCommand",
    "Probe",
    "SuspendFault",
    "Trouble",
    "TroubleMaker",
    "UpdateFault",
    "Violation",
    "anchor_of",
    "judge",
    "name_of",
    "virtual_backend",
    "virtual_run",
    "virtual_time",
]


def __getattr__(name: str) -> object:
    """Load what needs pytest when it is asked for."""
    if name in {"ConnectorConformance", "DetachedConformance", "ForwardingConformance"}:
        from fleeting.testing import _connector_pytest

        return getattr(_connector_pytest, name)
    if name in {"GroupConformance", "virtual_time"}:
        from fleeting.testing import _pytest

        return getattr(_pytest, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
