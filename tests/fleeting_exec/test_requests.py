"""Which names there are, and what became of them, whatever happens in whatever order."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleeting import State
from fleeting_exec._contract import Listed, Said
from fleeting_exec._requests import REMEMBER, TO_DESTROY, UNSETTLED, Fate, Requests

INTENTS = st.sampled_from(["a", "b", "an intent that is no name\n"])


class Bookkeeping(RuleBasedStateMachine):
    """Everything that can happen to names, against a plain dictionary of their fates."""

    def __init__(self) -> None:
        """Start with no requests."""
        super().__init__()
        self.requests = Requests("ci")
        self.fates: dict[str, Fate] = {}
        self.intents: dict[str, str] = {}
        self.used: set[str] = set()
        self.now = 0.0

    @rule(intent=INTENTS, count=st.integers(1, 3))
    def name(self, intent: str, count: int) -> None:
        """Names are given: new ones, for ever."""
        self.requests, names = self.requests.name(count, intent, self.now)
        assert len(names) == count
        assert not self.used & set(names)
        self.used |= set(names)
        self.fates |= dict.fromkeys(names, Fate.OPEN)
        self.intents |= dict.fromkeys(names, intent)

    @rule(data=st.data(), fate=st.sampled_from(Fate))
    def settle(self, data: st.DataObject, fate: Fate) -> None:
        """Something becomes of one."""
        if self.fates:
            name = data.draw(st.sampled_from(sorted(self.fates)))
            found = self.requests.find(name)
            assert found is not None
            self.requests = self.requests.put(found[0].settle(found[1], fate))
            self.fates[name] = fate

    @rule()
    def take_over(self) -> None:
        """A manager dies, and another begins: nothing is unsettled."""
        self.requests = self.requests.taken_over()
        self.fates = {name: Fate.ABANDONED if fate in UNSETTLED else fate for name, fate in self.fates.items()}

    @rule(listed=st.booleans())
    def forget(self, *, listed: bool) -> None:
        """What is listed, or not settled, or young is never forgotten."""
        assert self.requests.forgetting((), self.now) == self.requests
        kept = self.requests.forgetting(self.fates if listed else (), self.now + REMEMBER)
        open_ends = UNSETTLED | TO_DESTROY
        assert {*kept.names(*open_ends)} == {*self.requests.names(*open_ends)}
        if listed:
            assert kept == self.requests

    @rule(data=st.data(), said=st.sampled_from(Said))
    def look(self, data: st.DataObject, said: Said) -> None:
        """What is not wholly made is never shown as running; what is to be cleared away explains no intent."""
        names = data.draw(st.lists(st.sampled_from([*sorted(self.fates), "stranger"]), unique=True))
        view = self.requests.view([Listed(name=name, state=said) for name in names], {"stranger": State.RUNNING})
        assert view.keys() == {*names, *(name for name, fate in self.fates.items() if fate in TO_DESTROY)}
        for name, seen in view.items():
            fate = self.fates.get(name)
            assert not (seen.state is State.RUNNING and fate in UNSETTLED | TO_DESTROY)
            assert (seen.state is State.FAILED) or fate not in TO_DESTROY
            assert seen.intent == (None if fate in (Fate.LEFT, Fate.FAILED) else self.intents.get(name))

    @invariant()
    def every_name_has_its_fate(self) -> None:
        """And every intent the number of instances that it brought."""
        assert {name: self.requests.fate(name) for name in self.fates} == self.fates
        for intent in self.intents.values():
            brought = [self.fates[name] for name, whose in self.intents.items() if whose == intent]
            assert self.requests.of(intent, 0).made == sum(fate in (Fate.MADE, Fate.GONE) for fate in brought)
        assert self.requests.fate("ci-000000000000-1") is None
        assert self.requests.fate("other") is None


TestBookkeeping = Bookkeeping.TestCase
