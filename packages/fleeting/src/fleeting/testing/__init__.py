"""For tests: a cloud in memory, virtual time, and the conformance suites for plugins.

Needs ``fleeting[testing]``: trio for virtual time on trio; pytest for `virtual_time`, `GroupConformance` and
`ConnectorConformance`, which are loaded when they are first asked for.
"""

from typing import TYPE_CHECKING

from fleeting.testing._cloud import FakeCloud as FakeCloud
from fleeting.testing._cloud import OnCommand as OnCommand
from fleeting.testing._conformance import CHECKS as CHECKS
from fleeting.testing._conformance import Check as Check
from fleeting.testing._conformance import anchor_of as anchor_of
from fleeting.testing._conformance import judge as judge
from fleeting.testing._conformance import name_of as name_of
from fleeting.testing._connection import FakeConnection as FakeConnection
from fleeting.testing._connector_checks import CONNECTOR_CHECKS as CONNECTOR_CHECKS
from fleeting.testing._connector_checks import ConnectorCheck as ConnectorCheck
from fleeting.testing._connector_checks import DialInstance as DialInstance
from fleeting.testing._connector_checks import MakeDial as MakeDial
from fleeting.testing._fake import FakeGroup as FakeGroup
from fleeting.testing._faults import DecreaseFault as DecreaseFault
from fleeting.testing._faults import Fault as Fault
from fleeting.testing._faults import IncreaseFault as IncreaseFault
from fleeting.testing._faults import SuspendFault as SuspendFault
from fleeting.testing._faults import UpdateFault as UpdateFault
from fleeting.testing._harness import Harness as Harness
from fleeting.testing._harness import MakeHarness as MakeHarness
from fleeting.testing._harness import NotApplicable as NotApplicable
from fleeting.testing._harness import NotChecked as NotChecked
from fleeting.testing._harness import Probe as Probe
from fleeting.testing._harness import Trouble as Trouble
from fleeting.testing._harness import TroubleMaker as TroubleMaker
from fleeting.testing._harness import Violation as Violation
from fleeting.testing._machine import Bill as Bill
from fleeting.testing._machine import Call as Call
from fleeting.testing._machine import Command as Command
from fleeting.testing._machine import Machine as Machine
from fleeting.testing._machine import Mark as Mark
from fleeting.testing._virtual_time import Deadlock as Deadlock
from fleeting.testing._virtual_time import virtual_backend as virtual_backend
from fleeting.testing._virtual_time import virtual_run as virtual_run

if TYPE_CHECKING:
    from fleeting.testing._connector_pytest import ConnectorConformance as ConnectorConformance
    from fleeting.testing._pytest import GroupConformance as GroupConformance
    from fleeting.testing._pytest import virtual_time as virtual_time


def __getattr__(name: str) -> object:
    """Load what needs pytest when it is asked for."""
    if name == "ConnectorConformance":
        from fleeting.testing._connector_pytest import ConnectorConformance

        return ConnectorConformance
    if name in {"GroupConformance", "virtual_time"}:
        from fleeting.testing import _pytest

        return getattr(_pytest, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
