"""Event logs of batches, in memory: what can happen, event by event, and any log that commands can leave."""

from pathlib import Path

from hypothesis import strategies as st

from taskscaler import Decision, DecisionEvent, InstanceEvent
from taskscaler._recorded_run import RecordedRun, recorded
from taskscaler.batch import (
    Begun,
    Ended,
    GivenUp,
    JobState,
    Planned,
    PoolFacts,
    RecordedEvent,
    Resumed,
    Started,
    fold,
)
from taskscaler.core._decide import Demand, PoolDecision

START = 1_700_000_000.0


POOL = PoolFacts(name="default", plugin="fake", capacity_per_instance=2, max_instances=0)
KEYS = ("a", "b", "c")


def begun(*jobs: str) -> Begun:
    """A batch begins, at the start."""
    return Begun(at=START, jobs=tuple(Planned(name=name, retries=1) for name in jobs), pools=(POOL,))


def resumed(at: float) -> Resumed:
    """The next manager begins."""
    return Resumed(at=START + at, pools=(POOL,))


def instance(at: float, id_: str, state: str, why: str = "", *, lost: bool = False) -> InstanceEvent:
    """An instance changes."""
    return InstanceEvent(at=START + at, pool="default", instance=id_, state=state, why=why, lost=lost)


def starts(at: float, key: str, id_: str, slot: int = 0) -> Started:
    """A job is given a slot."""
    return Started(at=START + at, job=key, pool="default", instance=id_, slot=slot)


def ends(at: float, key: str, state: JobState = JobState.SUCCEEDED, why: str = "") -> Ended:
    """A job no longer has it."""
    return Ended(at=START + at, job=key, state=state, why=why)


def waiting(at: float, pending: int) -> DecisionEvent:
    """A decision, while so many jobs wait."""
    demand = Demand(in_use=0, reserved=0, pending=pending)
    pool = PoolDecision("default", have=0, wanted=0, increase=0, limited_by="", withdraw=0, excess=0)
    decision = Decision(START + at, demand, 0, 0, 0, 0, (pool,), float("inf"))
    return DecisionEvent(at=START + at, decision=decision)


def run(*events: RecordedEvent, running: bool = False) -> RecordedRun:
    """A run of these events."""
    return recorded(Path("results"), events, running=running)


ids = st.sampled_from(["i-1", "i-2"])
slots = st.integers(0, 2)
instants = st.integers(0, 50).map(float)
fleet: st.SearchStrategy[RecordedEvent] = st.one_of(
    st.builds(resumed, instants),
    st.builds(
        instance,
        instants,
        ids,
        st.sampled_from(["creating", "pending", "running", "deleting", "unusable", "gone", "of a later release"]),
        lost=st.booleans(),
    ),
    st.builds(waiting, instants, st.integers(0, 3)),
)


@st.composite
def records(draw: st.DrawFn) -> list[RecordedEvent]:
    """Any record that commands can leave: of the fleet whatever, of each job what can follow what was before."""
    events: list[RecordedEvent] = [begun(*KEYS)]
    states = dict.fromkeys(KEYS, JobState.QUEUED)
    for _ in range(draw(st.integers(0, 30))):
        key = draw(st.none() | st.sampled_from(KEYS))
        if key is None:
            events.append(draw(fleet))
        elif states[key] is JobState.QUEUED and draw(st.booleans()):
            events.append(starts(draw(instants), key, draw(ids), draw(slots)))
        elif states[key] is JobState.QUEUED:
            state = draw(st.sampled_from([JobState.CANCELLED, JobState.NO_CAPACITY]))
            events.append(GivenUp(at=START + draw(instants), jobs=(key,), state=state, why="enough"))
        elif states[key] is JobState.RUNNING:
            ended = draw(
                st.sampled_from([state for state in JobState if state.final and state is not JobState.NO_CAPACITY])
            )
            events.append(ends(draw(instants), key, ended))
        states = {name: record.state for name, record in fold(events).jobs.items()}
    return events
