"""The machine of `Relay` notices it where a job goes to two, to the wrong one or to nobody, or a slot is lost."""

import inspect
from textwrap import dedent

import pytest
from attrs import frozen
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from taskscaler_gitlab.relay import _relay
from tests.chaos.seeds import read_tree, seeds_of_tree
from tests.taskscaler_gitlab.test_relay_machine import RelayMachine


@frozen
class Break:
    """One function of the core, with one mistake."""

    function: str
    """Of the module, or, after ``Relay.``, of the class."""

    old: str
    new: str
    effect: str
    """What is wrong then."""

    def __str__(self) -> str:
        """The line in the list of guards."""
        return f"{self.effect}: {self.old} -> {self.new or 'nothing'} in {self.function}"

    @property
    def name(self) -> str:
        """Without the class."""
        return self.function.rpartition(".")[2]

    @property
    def owner(self) -> object:
        """What has it."""
        return _relay.Relay if self.function.startswith("Relay.") else _relay

    def broken(self) -> object:
        """Make the function with the mistake."""
        source = dedent(inspect.getsource(getattr(self.owner, self.name)))
        assert source.count(self.old) == 1
        names: dict[str, object] = {}
        exec(compile(source.replace(self.old, self.new), self.function, "exec"), vars(_relay), names)  # noqa: S102
        return names[self.name]


POLLED, GIVES = "Relay.polled", "Relay.gives"
STARTING = "record.standing is Standing.STARTING and self.has_payload"

BREAKS = (
    Break(POLLED, STARTING, "record.standing in (Standing.STARTING, Standing.OFFERED)", "a second asker gets the job"),
    Break(POLLED, "_equal(record.secret_hash, hashed(secret))", "True", "who asks with another token gets the job"),
    Break(POLLED, "_equal(record.delivery, delivery)", "True", "who asks on another path gets the job"),
    Break(POLLED, "if claims:", "if True:", "a runner that claims nothing gets a job that is not claimed"),
    Break(GIVES, "self.is_due and ", "", "a second answer to a claim gets the job"),
    Break(GIVES, " and _equal(record.delivery, delivery)", "", "who waits on another path gets the job"),
    Break("Relay.called", "_equal(record.delivery, delivery) and ", "", "a call on another path is passed on"),
    Break("Relay.called", "_equal(record.token_hash, hashed(token))", "True", "another token is passed on"),
    Break("Relay.called", "known = evolve(self, has_token=True)", "known = self", "the token that a call has brought"),
    Break("Relay.starts", "standing=Standing.STARTING,", "", "a sidecar of which nothing is written down"),
    Break("Relay.got_slot", "return _to(self, Action.RELEASE)", "return Step(self)", "a slot that came too late"),
    Break("Relay.left", "if outlives and self.has_slot", "if False", "a sidecar that has the job is given up"),
    Break("Relay.left", "return _to(self, Action.END)", "return Step(self)", "a sidecar is neither ended nor left"),
    Break("Relay.claimed", "if is_ours or self", "if self", "a job that GitLab has confirmed is let go"),
    Break("Relay.resumed", "record.how is How.FAILED or", "False or", "a failure that may not have been told"),
    Break("Relay.resumed", "if is_running:", "if False:", "a sidecar that runs is taken for ended"),
    Break("Relay.interrupted", "_failed(self, why", "_over(self, How.HANDED_BACK, why", "a job that does not lapse"),
    Break("_bereft", "case Standing.AT_WORK:", "case None:", "what has run is run again"),
    Break("_bereft", "*back, Action.ACQUIRE", "Action.ACQUIRE", "the slot of a try that was lost"),
    Break("_given_up", "if relay.record.is_two_phase:", "if True:", "a job is left to lapse that does not"),
    Break("_aftermath", "(Action.END,) if relay.is_running else _given_back(relay)", "()", "the slot of what is over"),
    Break("_failed", "if not relay.has_token:", "if False:", "GitLab is told without a token"),
    Break("_failed", "How.FAILED, why, *after, Action.FAIL", "How.FAILED, why, *after", "GitLab is not told"),
    Break("_failed", "if not relay.has_token:", "if True:", "GitLab is not told although there is a token"),
)

FIRST_FAILURE = settings(
    max_examples=500,
    stateful_step_count=20,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


PART = 6
"""The suite plants one of so many: which, the commit decides, so that in a few of them each has had its turn."""


def test_mistakes_about_a_job_or_its_slot_are_found(full: bool) -> None:  # noqa: FBT001  (a fixture)
    """By one of the machine's assertions: which comes first is chance."""
    missed = []
    turn = seeds_of_tree(read_tree(), 1)[0] % PART
    for each in BREAKS if full else BREAKS[turn::PART]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(each.owner, each.name, each.broken())
            try:
                run_state_machine_as_test(RelayMachine, settings=FIRST_FAILURE)
            except AssertionError:
                continue
        missed.append(str(each))
    assert missed == []
