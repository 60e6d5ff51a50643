"""Who has which host, whatever happens in whatever order."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleeting import State
from fleeting.groups.static import Host
from fleeting.groups.static._assignments import Assignments

NAMES = ("a", "b", "a.1")
PORTS = st.sampled_from([None, 22, 2222])


class AssignmentsMachine(RuleBasedStateMachine):
    """Hosts are taken, given back, released, taken off the list, put back and moved; the group remembers."""

    def __init__(self) -> None:
        """Begin with a list of no hosts that anybody has."""
        super().__init__()
        self.assignments = Assignments({}).open([Host(address=name) for name in NAMES], 0.0)
        self.time = 0.0
        self.given: set[str] = set()
        self.held: dict[str, str] = {}
        """Who has what: intents by instance."""

    @rule(count=st.integers(1, 3), intent=st.sampled_from("xyz"))
    def take(self, count: int, intent: str) -> None:
        """Take those that have been free the longest: every instance is new, and was nobody's."""
        self.time += 1
        before = self.assignments.view
        self.assignments = self.assignments.take(self.assignments.free[:count], intent, self.time)
        new = self.assignments.view.keys() - before.keys()
        assert not new & self.given, "an id was given twice"
        self.given |= new
        self.held |= dict.fromkeys(new, intent)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """The instance goes on being there, being deleted, until its host is released."""
        if self.assignments.view:
            instance = data.draw(st.sampled_from(sorted(self.assignments.view)))
            self.assignments = self.assignments.give_back([self.host_of(instance)])
            assert self.assignments.view[instance].state is State.DELETING

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """The instance is gone, and its host is the last to be taken again."""
        if self.assignments.view:
            self.time += 1
            instance = data.draw(st.sampled_from(sorted(self.assignments.view)))
            host = self.host_of(instance)
            self.assignments = self.assignments.release([host], self.time)
            del self.held[instance]
            assert self.assignments.host_of(instance) is None
            assert self.assignments.free[-1] == host

    @rule(hosts=st.dictionaries(st.sampled_from(NAMES), PORTS, min_size=1))
    def configure(self, hosts: dict[str, int | None]) -> None:
        """Restart with another list: a host that moved is to be reset, one that is not there is not seen."""
        before = {name: self.assignments.records[name] for name in hosts}
        listed = [Host(address=name, port=port) for name, port in hosts.items()]
        self.assignments = self.assignments.open(listed, self.time)
        for host in listed:
            moved = before[host.id].place != host.place
            was_taken = not before[host.id].free
            assert self.assignments.records[host.id].given_back == (before[host.id].given_back or (moved and was_taken))

    @invariant()
    def the_view_is_what_is_held(self) -> None:
        """Each configured host is free or one instance, which carries the intent that asked for it."""
        view = self.assignments.view
        assert {self.host_of(instance) for instance in view} | set(self.assignments.free) == set(
            self.assignments.configured
        )
        assert len(view) + len(self.assignments.free) == len(self.assignments.configured)
        assert {each: shown.intent for each, shown in view.items()}.items() <= self.held.items()

    def host_of(self, instance: str) -> str:
        """The host that the instance must be."""
        name = self.assignments.host_of(instance)
        assert name is not None
        return name


TestAssignments = AssignmentsMachine.TestCase


@given(st.text(max_size=8))
def test_an_id_that_was_never_given_is_no_host(instance: str) -> None:
    """Whatever it looks like."""
    assignments = Assignments({}).open([Host(address="a"), Host(address="b")], 0.0).take(["a"], "intent", 1.0)
    assert (assignments.host_of(instance) is not None) == (instance == "a.1")
