"""The state machines notice it where a detached lease goes two ways, or its slot goes to somebody else."""

import inspect
import traceback
from textwrap import dedent
from typing import Final

import pytest
from attrs import frozen
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from taskscaler.core import _ledger
from tests.taskscaler.test_core_machine import CoreMachine
from tests.taskscaler.test_ledger_machine import LedgerMachine


@frozen
class Break:
    """One method of the ledger, with one mistake, and the machine that finds it."""

    method: str
    old: str
    new: str
    machine: type[RuleBasedStateMachine]
    invariant: str = ""
    """The only one that can; empty: several can, and which is the first to do so is chance."""

    def __str__(self) -> str:
        """The line in the list of guards."""
        finder = f"{self.machine.__name__}.{self.invariant}".rstrip(".")
        return f"{self.old} -> {self.new or 'nothing'} in {self.method}, found by {finder}"

    def broken(self) -> object:
        """Make the method with the mistake."""
        source = dedent(inspect.getsource(getattr(_ledger.Ledger, self.method)))
        assert source.count(self.old) == 1
        names: dict[str, object] = {}
        exec(compile(source.replace(self.old, self.new or "pass"), self.method, "exec"), vars(_ledger), names)  # noqa: S102
        return names[self.method]


NEVER_BOTH: Final = ("reattach", "self.deadlines.cancel(key)", "")
NOT_TAKEN: Final = ("_restore", "_take(node, record.slot)", "")

BREAKS = (
    Break(*NEVER_BOTH, LedgerMachine, "a_detached_lease_is_reattached_or_given_up_never_both"),
    Break(*NEVER_BOTH, CoreMachine, "a_detached_lease_is_reattached_or_given_up_never_both"),
    Break(*NOT_TAKEN, LedgerMachine),
    Break(*NOT_TAKEN, CoreMachine),
)

FIRST_FAILURE = settings(
    max_examples=200,
    stateful_step_count=40,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


BESIDE: Final = (
    "a_constant_load_settles",
    "disown",
    "every_job_is_served_in_the_end",
    "foreign",
    "hold",
    "jobs_sleep",
    "replace",
    "reserve",
    "resume",
    "settle_reservation",
    "suspend",
    "what_is_foreseen_is_what_happens_next",
)
"""Rules of the core's machine with which no lease is left or found again: some are its slowest."""


def about_detached_leases(machine: type[RuleBasedStateMachine]) -> type[RuleBasedStateMachine]:
    """The machine with all its invariants, and without those rules, between which it meets the others too seldom."""
    return type(machine.__name__, (machine,), dict.fromkeys(BESIDE)) if machine is CoreMachine else machine


def test_all_of_those_rules_exist() -> None:
    """One that is renamed is not left in silently."""
    assert {*BESIDE} <= {*vars(CoreMachine)}


@pytest.mark.parametrize("each", BREAKS, ids=str)
def test_a_mistake_about_detached_leases_is_found(each: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the invariant that the list of guards names, if there is one that has to."""
    monkeypatch.setattr(_ledger.Ledger, each.method, each.broken())
    with pytest.raises(AssertionError) as raised:
        run_state_machine_as_test(about_detached_leases(each.machine), settings=FIRST_FAILURE)
    assert each.invariant in ("", traceback.extract_tb(raised.value.__traceback__)[-1].name)
