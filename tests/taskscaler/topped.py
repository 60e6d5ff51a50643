"""Fleets for `top` to show, made up or drawn, and a feed that has one without a daemon."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from attrs import define, evolve, field
from hypothesis import strategies as st

from fleeting import LoopClock
from taskscaler._errors import DaemonRefused
from taskscaler.cli._top._feed import Feed
from taskscaler.cli._top._fleet import Fleet, Instance, Job, Said
from taskscaler.cli._top._view import Question, Subject
from tests.taskscaler.scaling import EPOCH

PLANTED = "\x1b]0;owned\x07\x1b[2Jred\x9b31m\u202egnp\r\x00"
"""What a terminal would obey, from a cloud or a job."""


def fleet_of(count: int, *, slots: int = 2, waiting: int = 3) -> Fleet:
    """A fleet of so many instances: each third is booting, and the others run a job each."""
    instances, running = {}, {}
    for number in range(count):
        booting = number % 3 == 2
        key = f"job-{number:04}"
        each = Instance(
            pool="default",
            id=f"i-{number:04}",
            state="creating" if booting else "running",
            since=EPOCH - 10 * number,
            slots=() if booting else (key, *[None] * (slots - 1)),
        )
        instances[each.place] = each
        if not booting:
            running[key] = Job(key=key, state="running", since=EPOCH, pool="default", instance=each.id)
    queue = tuple(
        Job(key=f"queued-{number}", state="waiting", since=EPOCH, place=number + 1, why="the limit is reached")
        for number in range(waiting if count else 0)
    )
    return Fleet(
        name="/srv/fleet.toml",
        state="serving",
        answer=f"{len(queue)} jobs are waiting: the limit of {count} instances (max_instances) is reached",
        capacity={"idle": len(running) * (slots - 1), "acquired": len(running), "pending": len(queue)},
        pools={"default": f"{count} instances"},
        ceilings={"default": count},
        instances=instances,
        running=running,
        waiting=queue,
        waiting_in_all=len(queue),
        decisions=tuple(Said(at=EPOCH - number, text=f"decision {number}") for number in range(5 if count else 0)),
    )


@define(eq=False)
class FakeFeed(Feed):
    """A feed whose news the test brings, and which remembers what it was asked to do."""

    done: list[Question] = field(factory=list, init=False)
    refusal: str = field(default="", init=False)

    async def run(self) -> None:
        """Bring nothing by itself."""
        await anyio.sleep_forever()

    async def explain(self, subject: Subject) -> list[str]:
        """Say what was asked about."""
        return [f"{subject.name} is explained", *(f"because of reason {number}" for number in range(40))]

    async def hold(self, question: Question) -> None:
        """Do it, or refuse."""
        if self.refusal:
            raise DaemonRefused(self.refusal)
        self.done.append(question)
        pool, _, id_ = question.instance.partition("/")
        if question.verb in ("cordon", "uncordon"):
            self.bring(changed(self.fleet, pool, id_, cordoned=question.why if question.verb == "cordon" else None))

    def bring(self, fleet: Fleet) -> None:
        """Have news."""
        self.fleet = fleet
        self.changed()


def changed(fleet: Fleet, pool: str, id_: str, **fields: Any) -> Fleet:  # noqa: ANN401  (an instance's)
    """A fleet with one instance that is otherwise."""
    each = evolve(fleet.instances[pool, id_], **fields)
    return evolve(fleet, instances={**fleet.instances, each.place: each})


def feeding(fleet: Fleet) -> Callable[[Callable[[], object]], Feed]:
    """What makes a feed that has a fleet."""

    def opened(changed: Callable[[], object]) -> FakeFeed:
        feed = FakeFeed(Path("/nowhere.sock"), LoopClock(EPOCH), changed)
        feed.fleet = fleet
        return feed

    return opened


TEXTS = st.text(max_size=8) | st.sampled_from(
    ["", "a", "ab", PLANTED, "日本語", "e\u0301", "\ud800", "\t\n", "x" * 300]
)
STATES = st.sampled_from(["creating", "pending", "running", "suspended", "resuming", "deleting", "unusable", "later"])
TIMES = st.floats(EPOCH - 1e6, EPOCH + 10)

INSTANCES = st.builds(
    Instance,
    pool=st.sampled_from(["default", "spot", PLANTED]),
    id=TEXTS,
    state=STATES,
    since=TIMES,
    slots=st.lists(st.none() | TEXTS, max_size=3).map(tuple),
    cleaning=st.integers(0, 2),
    why=TEXTS,
    cordoned=st.none() | TEXTS,
    retained=st.none() | TEXTS,
)
JOBS = st.builds(
    Job,
    key=TEXTS,
    state=st.sampled_from(["waiting", "reserved"]),
    since=st.none() | TIMES,
    place=st.none() | st.just(3),
)


def _fleet(instances: Sequence[Instance], waiting: Sequence[Job], text: str, pools: Mapping[str, str]) -> Fleet:
    return Fleet(
        name=text,
        state=text,
        answer=text * 3,
        pools=pools,
        ceilings=dict.fromkeys(pools, 3),
        instances={each.place: each for each in instances},
        waiting=tuple({job.key: job for job in waiting}.values()),
        waiting_in_all=len(waiting),
        decisions=(Said(at=EPOCH, text=text),),
    )


FLEETS = st.builds(
    _fleet,
    st.lists(INSTANCES, max_size=12),
    st.lists(JOBS, max_size=4),
    TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=6),
)
