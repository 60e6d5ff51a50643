"""The runtime: durable first, then done; a burst costs one commit; a failing journal delays and loses nothing."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from fleeting import JournalError, LoopClock, MemoryJournal
from fleeting.core import NOTHING, Drop, Put, Step, Write, messages
from fleeting.runtime import Runtime
from fleeting.testing import virtual_time

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


class Recorder(MemoryJournal):
    """A journal that takes its time, can fail, and notes each commit in a common history."""

    def __init__(self, history: list[object], *, seconds: float = 0.0) -> None:
        """Write to this history."""
        super().__init__()
        self.history = history
        self.seconds = seconds
        self.error = ""

    async def commit(self, writes: Sequence[Write]) -> None:
        """Take so long, then commit or fail."""
        await anyio.sleep(self.seconds)
        if self.error:
            raise JournalError(self.error)
        await super().commit(writes)
        self.history.append(tuple(writes))


class Sleeper:
    """A core that wants to be woken at given times and notes what it is told."""

    def __init__(self, *wake_at: float) -> None:
        """Be woken at these times."""
        self.times = list(wake_at)
        self.told: list[str] = []
        self.refusal = None

    def handle(self, pool: str, fact: messages.Fact, now: float) -> Step:
        """Note it."""
        self.told.append(f"{now:g}: {fact}")
        return NOTHING

    @property
    def wake_at(self) -> float | None:
        """The next of the times."""
        return self.times[0] if self.times else None

    def heed(self, now: float) -> None:
        """Nothing that it is told changes when it wants to be woken."""

    def tick(self, now: float) -> Step:
        """Act on each time that has come."""
        due = [at for at in self.times if at <= now]
        self.times = [at for at in self.times if at > now]
        return Step((), [f"woken at {at:g}" for at in due])

    def journal_failed(self, error: str, now: float) -> Step:
        """Note it."""
        self.told.append(f"{now:g}: {error}")
        return NOTHING

    def journal_recovered(self, now: float) -> Step:
        """Note it."""
        self.told.append(f"{now:g}: recovered")
        return NOTHING


@asynccontextmanager
async def running(core: Sleeper, journal: Recorder, epoch: float = 0) -> AsyncIterator[Runtime[Sleeper]]:
    """A runtime at work, without any groups."""
    perform = journal.history.append
    async with Runtime(
        [], lambda *_: core, perform, kinds={}, journal=journal, clock=LoopClock(epoch=epoch)
    ) as runtime:
        yield runtime


async def test_writes_come_before_the_actions_of_their_step() -> None:
    """The action is performed only once the commit is through."""
    journal = Recorder([], seconds=5)
    async with running(Sleeper(), journal) as runtime:
        runtime.take(Step([Put("kind", "key", 1)], ["act"]))
        await anyio.sleep(4)
        assert journal.history == []
        await anyio.sleep(2)
        assert journal.history == [(Put("kind", "key", 1),), "act"]
        assert journal.records == {"kind": {"key": 1}}


async def test_no_time_means_never() -> None:
    """Not even zero, from which clocks may count."""
    journal = Recorder([])
    async with running(Sleeper(0.0), journal, epoch=-5):
        await anyio.sleep(6)
    assert journal.history == ["woken at 0"]


async def test_what_piles_up_during_a_commit_is_committed_at_once() -> None:
    """Many steps of one burst make one commit, and keep their order."""
    journal = Recorder([], seconds=1)
    async with running(Sleeper(), journal) as runtime:
        runtime.take(Step([Put("kind", "first", 0)]))
        await anyio.sleep(0.5)
        for number in range(100):
            runtime.take(Step([Put("kind", "key", number)], [number]))
        runtime.take(Step([Drop("kind", "first")]))
        await anyio.sleep(5)
    first, second, *actions = journal.history
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert (len(first), len(second)) == (1, 101)
    assert actions == list(range(100))
    assert journal.records == {"kind": {"key": 99}}


async def test_a_failing_journal_delays_and_loses_nothing() -> None:
    """The core is told once, the writes are tried again until they are durable, the actions wait for them."""
    journal, core = Recorder([]), Sleeper()
    async with running(core, journal) as runtime:
        journal.error = "disk full"
        runtime.take(Step([Put("kind", "a", 1)], ["act on a"]))
        await anyio.sleep(10.5)
        runtime.take(Step([Put("kind", "b", 2)], ["act on b"]))
        assert journal.history == []
        journal.error = ""
        await anyio.sleep(2)
    assert journal.history == [(Put("kind", "a", 1), Put("kind", "b", 2)), "act on a", "act on b"]
    assert core.told[0] == "0: disk full"
    assert [told.partition(": ")[2] for told in core.told] == ["disk full", "recovered"]


async def test_a_request_that_waited_for_a_failing_journal_is_not_sent() -> None:
    """It was decided on what is long over: the core is told, and decides anew; all else is performed."""
    journal, core = Recorder([]), Sleeper()
    async with running(core, journal) as runtime:
        journal.error = "disk full"
        runtime.take(Step([Put("kind", "a", 1)], [messages.Increase("default", "intent", 2), "act on a"]))
        await anyio.sleep(30)
        journal.error = ""
        await anyio.sleep(30)
    assert journal.history == [(Put("kind", "a", 1),), "act on a"]
    assert core.told[-1].endswith(f": {messages.NotAsked('intent')}")


async def test_the_core_is_woken_when_it_wants_to_be() -> None:
    """Neither earlier nor later, in virtual time to the dot."""
    journal = Recorder([])
    async with running(Sleeper(10, 3600), journal):
        await anyio.sleep(9.9)
        assert journal.history == []
        await anyio.sleep(0.2)
        assert journal.history == ["woken at 10"]
        await anyio.sleep(3600)
        assert journal.history == ["woken at 10", "woken at 3600"]


async def test_a_core_is_woken_in_time_for_what_it_has_heard_and_no_earlier() -> None:
    """A step that changes nothing for it lets it sleep on; one that does brings forward when it is woken."""

    class Hearer(Sleeper):
        """Has something to do at times that it hears of, and notes when it was asked."""

        heard: float | None = None

        def heed(self, now: float) -> None:
            """It is time at what was heard last, beside all else."""
            self.times = sorted({*self.times, *([self.heard] if self.heard is not None else [])})
            self.heard = None

        def tick(self, now: float) -> Step:
            """Note it."""
            asked.append(round(now))
            return super().tick(now)

    asked: list[int] = []
    journal, core = Recorder([]), Hearer(1000)
    async with running(core, journal) as runtime:
        await anyio.sleep(10)
        runtime.take(NOTHING)
        await anyio.sleep(10)
        core.heard = 50
        runtime.take(NOTHING)
        await anyio.sleep(10)
        assert asked == [0]
        await anyio.sleep(30)
        assert (asked, journal.history) == ([0, 50], ["woken at 50"])


async def test_closing_makes_durable_what_is_queued_and_begins_nothing() -> None:
    """What comes in while everything ends because of a defect is remembered."""
    journal = Recorder([])

    def perform(action: object) -> None:
        if action == "defect":
            raise ZeroDivisionError
        journal.history.append(action)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with Runtime([], lambda *_: Sleeper(), perform, kinds={}, journal=journal) as runtime:
            runtime.take(Step([], ["defect", "never"]))
            with pytest.raises(anyio.get_cancelled_exc_class()):
                await anyio.sleep_forever()
            runtime.take(Step([Put("kind", "last", 1)], ["too late"]))
    assert journal.history == [(Put("kind", "last", 1),)]


async def test_an_action_that_waits_for_no_write_is_performed_at_once() -> None:
    """Without a journal that is every action; with one, an action still comes after those before it."""
    done: list[object] = []
    async with Runtime([], lambda *_: Sleeper(), done.append, kinds={}) as runtime:
        runtime.take(Step([Put("kind", "key", 1)], ["act"]))
        assert done == ["act"]
    journal = Recorder([], seconds=1)
    async with running(Sleeper(), journal) as runtime:
        runtime.take(Step([], ["first"]))
        assert journal.history == ["first"]
        runtime.take(Step([Put("kind", "key", 1)], ["second"]))
        runtime.take(Step([], ["third"]))
        assert journal.history == ["first"]
    assert journal.history == ["first", (Put("kind", "key", 1),), "second", "third"]


async def test_what_an_action_leads_to_comes_after_the_others_of_its_step() -> None:
    """A step that is taken while another is performed waits for its turn."""
    done: list[object] = []

    def perform(action: object) -> None:
        done.append(action)
        if action == "first":
            runtime.take(Step([], ["last"]))

    async with Runtime([], lambda *_: Sleeper(), perform, kinds={}) as runtime:
        runtime.take(Step([], ["first", "second"]))
    assert done == ["first", "second", "last"]
