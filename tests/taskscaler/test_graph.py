"""What may be begun, with needs between jobs and groups: against a model that looks at all jobs each time."""

from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from taskscaler.batch import JobState, Plan, Planned
from taskscaler.batch._graph import Front, Graph, lacking, with_needs

ENDS = [JobState.SUCCEEDED, JobState.FAILED, JobState.LOST, JobState.CANCELLED]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Groups of up to three jobs, each of which needs some of what stands before it."""
    jobs: list[Planned] = []
    names: list[str] = []
    for group in range(draw(st.integers(1, 5))):
        needs = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
        like = Planned(
            name="",
            retries=0,
            group=f"g{group}",
            needs=tuple(needs),
            when=draw(st.sampled_from(["on_success", "always"])),
            max_parallel=draw(st.integers(0, 2)),
        )
        mine = [f"g{group}-{number}" for number in range(draw(st.integers(1, 3)))]
        jobs += [evolve(like, name=name) for name in mine]
        names += [*mine, like.group]
    return Plan(jobs)


@define
class Naive:
    """Looks at every job and all that it needs."""

    plan: Plan
    begun: set[int] = field(factory=set)
    ends: dict[int, JobState] = field(factory=dict)

    def needed(self, job: int) -> list[int]:
        """Numbers of all jobs that one needs."""
        return [number for number, each in enumerate(self.plan) if {each.name, each.group} & {*self.plan[job].needs}]

    def doomed(self) -> list[int]:
        """What is not to begin any more: a group that needs a whole one does not wait for all of it."""
        return [job for job in range(len(self.plan)) if self.is_open(job) and self.is_spoilt(job)]

    def is_open(self, job: int) -> bool:
        """Whether it has not begun, nor is over."""
        return job not in self.begun and job not in self.ends

    def is_spoilt(self, job: int) -> bool:
        """Whether something that it needs stands in its way."""
        ends = [self.ends[each] for each in self.needed(job) if each in self.ends]
        always = self.plan[job].when == "always"
        return any(not end.stands or (end is not JobState.SUCCEEDED and not always) for end in ends)

    def next(self) -> int | None:
        """The first job that may begin."""
        return next((job for job in range(len(self.plan)) if self.is_open(job) and self.may_begin(job)), None)

    def may_begin(self, job: int) -> bool:
        """Whether all that it needs is over and well, and its group has room."""
        group, most = self.plan[job].group, self.plan[job].max_parallel
        at_once = sum(self.plan[each].group == group for each in self.begun - self.ends.keys())
        has_all = all(each in self.ends for each in self.needed(job))
        return has_all and not self.is_spoilt(job) and (not most or at_once < most)


@given(plans(), st.data())
def test_what_may_begin_is_what_a_look_at_all_jobs_says(plan: Plan, data: st.DataObject) -> None:
    """Whatever ends how, in whatever order; in the end nothing is left that waits."""
    naive = Naive(plan)
    for job in data.draw(st.sets(st.sampled_from(range(len(plan))))):  # a batch that is resumed
        naive.ends[job] = data.draw(st.sampled_from([JobState.SUCCEEDED, JobState.FAILED, JobState.SKIPPED]))
    front = Front(plan, lambda job: job in naive.ends)
    for job, end in naive.ends.items():
        front.over(job, end)
    while True:
        while front.doomed:
            for job in front.doomed.popleft().jobs:
                if job not in naive.ends:
                    assert job in naive.doomed()
                    naive.ends[job] = JobState.SKIPPED
                    front.over(job, JobState.SKIPPED)
        assert naive.doomed() == []
        following = naive.next()
        if following is not None and (not naive.begun - naive.ends.keys() or data.draw(st.booleans())):
            assert front.next() == following
            naive.begun.add(following)
        elif under_way := sorted(naive.begun - naive.ends.keys()):
            job = data.draw(st.sampled_from(under_way))
            naive.ends[job] = data.draw(st.sampled_from(ENDS))
            front.over(job, naive.ends[job])
        else:
            break
    assert front.next() is None
    assert len(naive.ends) == len(plan)
    assert front.waits_for(3) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_a_cycle_is_found_if_there_is_one(edges: list[tuple[int, int]]) -> None:
    """And each job in it needs the next one."""
    needs: dict[int, set[int]] = {job: {needed for each, needed in edges if each == job} for job in range(6)}
    plan = Plan(Planned(name=f"{job}", retries=0, needs=tuple(map(str, needs[job]))) for job in needs)
    found = Graph(plan).cycle()
    reached = {job: {*needs[job]} for job in needs}
    for _ in needs:
        reached = {job: into.union(*(reached[each] for each in into)) for job, into in reached.items()}
    assert bool(found) == any(job in into for job, into in reached.items())
    for job, following in zip(found, [*found[1:], *found[:1]], strict=True):
        assert int(following) in needs[int(job)]


def test_a_need_of_nothing_is_found() -> None:
    """With the job that has it."""
    plan = Plan([Planned(name="a", retries=0, group="g"), Planned(name="b", retries=0, needs=("a", "g", "x"))])
    graph = Graph(plan)
    assert graph.unknown == [(1, "x")]
    assert [graph.said(need) for need in graph.needs[1]] == ["a", "g"]


def test_a_chain_and_a_star_take_time_in_proportion() -> None:
    """A look at all jobs for each of them would take minutes."""
    size = 10_000
    chain = Plan(Planned(name=f"{job}", retries=0, needs=(f"{job - 1}",) if job else ()) for job in range(size))
    star = Plan(Planned(name=f"{job}", retries=job % 2, needs=("0",) if job else ()) for job in range(size))
    for plan in (chain, star):
        ends = set[int]()
        front = Front(plan, ends.__contains__)
        while (job := front.next()) is not None:
            ends.add(job)
            front.over(job, JobState.SUCCEEDED)
        assert len(ends) == len(plan)
        assert Graph(plan).cycle() == ()


@given(plans(), st.data())
def test_what_a_job_needs_is_all_that_its_needs_need(plan: Plan, data: st.DataObject) -> None:
    """As a look at all jobs says; and it lacks what is not over of it."""
    naive = Naive(plan)
    chosen = {data.draw(st.sampled_from(range(len(plan))))}
    (job,) = chosen
    lacks = lacking(plan, job, lambda _: False)
    assert bool(lacks) == bool(naive.needed(job))
    assert lacking(plan, job, lambda _: True) == []
    while more := {needed for each in chosen for needed in naive.needed(each)} - chosen:
        chosen |= more
    assert [*with_needs(plan, [plan.names[job]])] == [plan.names[each] for each in sorted(chosen)]
