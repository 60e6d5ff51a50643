"""Messages and steps as plain data: all of them come back as they were, and replayed they lead to the same again."""

import json
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import given, settings
from hypothesis import strategies as st

from fleeting import Observation, Observed, Problem
from fleeting.core import Plan, Step, messages
from fleeting.core._plain import CLASSES, Message, from_plain, step_from_plain, step_to_plain, to_plain
from tests.fleeting.test_plan_machine import PlanMachine
from tests.strategies import QUICK, a_plan

words = st.text(max_size=5)
observations = st.builds(
    Observation,
    st.dictionaries(words, st.from_type(Observed)),
    st.lists(st.from_type(Problem), max_size=3).map(tuple),
)


def strategy_of(kind: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401  (a type, of any kind)
    """Values of a field."""
    if get_origin(kind) is tuple:
        return st.lists(words, max_size=3).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(words, words, max_size=3)
    if NoneType in get_args(kind):
        return st.one_of(st.none(), *(strategy_of(each) for each in get_args(kind) if each is not NoneType))
    known = {
        Observation: observations,
        float: st.floats(allow_nan=False),
        messages.Loss: st.builds(messages.Loss, st.sampled_from(messages.LossKind), words),
    }
    return known[kind] if kind in known else st.from_type(kind)


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    """One of any class."""
    cls = draw(st.sampled_from(list(CLASSES.values())))
    message: Message = cls(*(draw(strategy_of(kind)) for kind in get_type_hints(cls).values()))
    return message


@given(any_message())
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Through JSON, whatever is in it."""
    back = from_plain(json.loads(json.dumps(to_plain(message))))
    assert type(back) is type(message)
    assert back == message


def test_all_that_a_plan_takes_or_gives_has_a_plain_form() -> None:
    """Each under a name of its own."""
    kinds = {
        *get_args(messages.Command),
        *get_args(messages.Fact),
        *get_args(messages.Action),
        *get_args(messages.Event),
    }
    assert set(CLASSES.values()) == kinds


class Recorded(Plan):
    """A plan that keeps what it was given, and what it answered."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401  (as `Plan` takes them)
        """Begin as `Plan` does."""
        super().__init__(*arguments, **settings)
        self.story: list[tuple[str, float, str]] = []

    def handle(self, message: messages.Command | messages.Fact, now: float) -> Step:
        """Answer as `Plan` does."""
        asked, step = json.dumps(to_plain(message)), super().handle(message, now)
        self.story.append((asked, now, json.dumps(step_to_plain(step))))
        return step


class ReplayMachine(PlanMachine):
    """The stories of the plan, each told a second time from what was recorded."""

    def begin_plan(self, seed: int, recovered: dict[str, dict[str, Any]]) -> None:
        """Have the plan of this life recorded, and that of the last one told again."""
        self.replay()
        self.seed, self.recovered, self.began, self.lived = seed, recovered, self.now, self.life
        self.plan = self.recorded = self.another()

    def another(self) -> Recorded:
        """A plan that begins as the one of this life did."""
        plan = a_plan(
            self.config,
            now=self.began,
            named=self.cloud.named,
            withdraws=self.withdraws,
            suspends=self.suspends,
            recovered=self.recovered,
            seed=self.seed,
            life=self.lived,
            cls=Recorded,
        )
        assert isinstance(plan, Recorded)
        return plan

    def teardown(self) -> None:
        """Report the last life again."""
        self.replay()

    def replay(self) -> None:
        """The same messages at the same times lead to the same steps."""
        before: Sequence[tuple[str, float, str]] = self.recorded.story if hasattr(self, "recorded") else ()
        plan = self.another() if before else None
        for asked, now, answered in before:
            assert plan is not None
            message = from_plain(json.loads(asked))
            assert isinstance(message, messages.Command | messages.Fact)
            step = plan.handle(message, now)
            assert json.dumps(step_to_plain(step)) == answered
            again = step_from_plain(json.loads(answered))
            assert [*again.writes] == [*step.writes]
            assert [*again.actions] == [*step.actions]
            assert [*again.events] == [*step.events]


TestReplayMachine = ReplayMachine.TestCase
TestReplayMachine.settings = settings(max_examples=30, stateful_step_count=50, phases=QUICK)
