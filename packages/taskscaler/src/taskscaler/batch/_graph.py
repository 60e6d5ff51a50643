"""Which jobs of a batch wait for which, and what may be begun. Pure.

A job may need jobs by their names, and groups of jobs by theirs. Jobs that need the same stand next to each other in a
plan and are one run of it, so that a thousand jobs that need a million others are one edge. All of it together takes
time in proportion to the jobs and to what is written as their needs, and nothing is searched.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice

from attrs import frozen

from taskscaler.batch._job_state import JobState
from taskscaler.batch._plan import Plan


class Graph:
    """The needs of the jobs of a plan: runs of jobs, and what each of them needs."""

    def __init__(self, plan: Plan) -> None:
        """Look up what the needs name."""
        self.plan = plan
        self.unknown: list[tuple[int, str]] = []
        """Needs that name nothing: the number of the first job that has it, and the name."""

        groups = defaultdict[str, list[int]](list)
        for run, like in enumerate(plan.likes):
            if like.group:
                groups[like.group].append(run)
        self.needs: list[Sequence[int]] = [self._needed_by(run, groups) for run in range(len(plan.likes))]
        """What each run needs: a job by its number, or a run by its number and that of all jobs."""

    def run_of(self, job: int) -> int:
        """Return which run a job is in."""
        return bisect_right(self.plan.starts, job) - 1

    def jobs_of(self, run: int) -> range:
        """Give the jobs of a run."""
        starts = self.plan.starts
        return range(starts[run], starts[run + 1] if run + 1 < len(starts) else len(self.plan))

    def cycle(self) -> Sequence[str]:
        """Find names each of which needs the next one, and the last one the first; empty if there are none."""
        whole, on_path, over = [0] * len(self.needs), set[int](), set[int]()
        for root in range(len(self.needs)):
            path = [root] if root not in over and self.needs[root] else []
            on_path.update(path)
            while path:
                run = path[-1]
                if whole[run] == len(self.needs[run]):
                    over.add(run)
                    on_path.discard(path.pop())
                    continue
                needed = self._run_needed(self.needs[run][whole[run]])
                whole[run] += 1
                if needed in on_path:
                    cycle = path[path.index(needed) :]
                    names = [self.said(self.needs[each][whole[each] - 1]) for each in cycle]
                    return [names[-1], *names[:-1]]
                if needed not in over and self.needs[needed]:
                    path.append(needed)
                    on_path.add(needed)
        return ()

    def first(self, name: str) -> int:
        """Give the number of the first job that a name means."""
        starts = (start for start, like in zip(self.plan.starts, self.plan.likes, strict=True) if like.group == name)
        job = self.plan.names.number(name)
        return next(starts, 0) if job is None else job

    def named(self, need: int) -> range:
        """Give the jobs that are needed."""
        return range(need, need + 1) if need < len(self.plan) else self.jobs_of(need - len(self.plan))

    def said(self, need: int) -> str:
        """Name what is needed."""
        if need < len(self.plan):
            return self.plan.names[need]
        return self.plan.likes[need - len(self.plan)].group

    def _needed_by(self, run: int, groups: "defaultdict[str, list[int]]") -> Sequence[int]:
        needs = array("Q")
        for name in self.plan.likes[run].needs:
            if name in groups:
                needs.extend(len(self.plan) + each for each in groups[name])
            elif (job := self.plan.names.number(name)) is not None:
                needs.append(job)
            else:
                self.unknown.append((self.plan.starts[run], name))
        return needs or ()

    def _run_needed(self, need: int) -> int:
        return self.run_of(need) if need < len(self.plan) else need - len(self.plan)


def lacking(plan: Plan, job: int, is_over: Callable[[int], bool]) -> Sequence[str]:
    """Name what a job needs that is not over."""
    graph = Graph(plan)
    return [graph.said(need) for need in graph.needs[graph.run_of(job)] if not all(map(is_over, graph.named(need)))]


def with_needs(plan: Plan, names: Iterable[str]) -> Iterator[str]:
    """Name jobs, and all that they need, and all that these need, in the order of the batch."""
    graph = Graph(plan)
    chosen = bytearray(len(plan))
    left = deque(number for name in names if (number := plan.names.number(name)) is not None)
    expanded = set[int]()
    while left:
        chosen[job := left.popleft()] = True
        if (run := graph.run_of(job)) not in expanded:
            expanded.add(run)
            for need in graph.needs[run]:
                left.extend(number for number in graph.named(need) if not chosen[number])
    return (plan.names[number] for number, is_chosen in enumerate(chosen) if is_chosen)


@frozen
class Doomed:
    """Jobs that are not to be begun, because of one that they need."""

    jobs: range
    needed: int
    """The job that did not succeed."""


class Front:
    """What of a batch may be begun: it has what it needs, and its table has room for it."""

    def __init__(self, plan: Plan, is_over: Callable[[int], bool]) -> None:
        """Take over a plan, of which nothing has begun and, as far as `over` has not been called, nothing is over.

        Args:
            plan: Whose needs are known, and no cycle.
            is_over: Returns whether a job, by its number, need not be begun (any more).
        """
        self.graph = graph = Graph(plan)
        self._is_over = is_over
        self._left = array("Q", (len(graph.jobs_of(run)) for run in range(len(plan.likes))))
        """Jobs of each run that are not over."""

        self._unmet = array("Q", map(len, graph.needs))
        """What each run needs that is not over."""

        self._next = array("Q", plan.starts)
        """The next job of each run."""

        runs = len(plan.likes)
        edges = sorted(need * runs + run for run, needs in enumerate(graph.needs) for need in needs)
        self._needs = array("Q", (edge // runs for edge in edges))
        self._needed_by = array("Q", (edge % runs for edge in edges))
        self._spoilt = set[tuple[int, bool]]()
        """Runs with a job that did not succeed, and whether that stands."""

        self._gone = set[int]()
        """Runs that are doomed."""

        self._blocked = {run: None for run, unmet in enumerate(self._unmet) if unmet}
        """Runs that wait for what they need, in the order of the batch."""

        self._at_once: dict[int, set[int]] = {run: set() for run, like in enumerate(plan.likes) if like.max_parallel}
        """Jobs begun and not over, of runs that may have only so many of them."""

        self._ready = [run for run, unmet in enumerate(self._unmet) if not unmet]
        """A heap of the runs of which a job may be begun, or which have no more."""

        self._begun = set[int]()
        """Jobs that were begun before their turn."""

        self.doomed: deque[Doomed] = deque()
        """What is not to be begun any more; whoever takes it from here says what becomes of it."""

    def next(self) -> int | None:
        """Begin the first job, in the order of the batch, that may begin; None: there is none for now."""
        while self._ready:
            run = self._ready[0]
            job = None if self._is_full(run) else self._skip_over(run)
            if job is None:
                heappop(self._ready)
                continue
            self._next[run] = job + 1
            if run in self._at_once:
                self._at_once[run].add(job)
                if self._is_full(run):
                    heappop(self._ready)
            return job
        return None

    def begin(self, job: int) -> None:
        """Begin a job before its turn, once."""
        run = self.graph.run_of(job)
        self._begun.add(job)
        if run in self._at_once:
            self._at_once[run].add(job)

    def over(self, job: int, state: JobState) -> None:
        """Take in that a job is over, once."""
        run = self.graph.run_of(job)
        if job in self._at_once.get(run, ()):
            was_full = self._is_full(run)
            self._at_once[run].discard(job)
            if was_full and not self._is_full(run) and not self._unmet[run] and run not in self._gone:
                heappush(self._ready, run)
        self._left[run] -= 1
        everybody = len(self.graph.plan) + run
        if state is not JobState.SUCCEEDED and (run, state.stands) not in self._spoilt:
            self._spoilt.add((run, state.stands))
            for dependent in self._dependents(everybody):
                self._doom(dependent, job, state)
        for dependent in self._dependents(job):
            self._meet(dependent, job, state)
        if not self._left[run]:
            for dependent in self._dependents(everybody):
                self._meet(dependent, job, JobState.SUCCEEDED)  # if not all did, it is doomed, or does not mind

    def waits_for(self, limit: int) -> Sequence[str]:
        """Name what the first jobs wait for that cannot begin, of each thing once, at most so many."""
        names = dict[str, None]()
        for run in islice(self._blocked, limit):
            names |= dict.fromkeys(self.graph.said(need) for need in self.graph.needs[run] if self._lacks(need))
        return [*names][:limit]

    def _lacks(self, need: int) -> bool:
        jobs = len(self.graph.plan)
        return not self._is_over(need) if need < jobs else bool(self._left[need - jobs])

    def _skip_over(self, run: int) -> int | None:
        for job in range(self._next[run], self.graph.jobs_of(run).stop):
            if job not in self._begun and not self._is_over(job):
                return job
        self._next[run] = self.graph.jobs_of(run).stop
        return None

    def _is_full(self, run: int) -> bool:
        return run in self._at_once and len(self._at_once[run]) >= self.graph.plan.likes[run].max_parallel

    def _dependents(self, need: int) -> Iterator[int]:
        for place in range(bisect_left(self._needs, need), len(self._needs)):
            if self._needs[place] != need:
                return
            yield self._needed_by[place]

    def _meet(self, run: int, job: int, state: JobState) -> None:
        """Have a run wait for one thing less, or for nothing any more."""
        if state is not JobState.SUCCEEDED:
            self._doom(run, job, state)
        self._unmet[run] -= 1
        if not self._unmet[run] and run not in self._gone:
            del self._blocked[run]
            heappush(self._ready, run)

    def _doom(self, run: int, job: int, state: JobState) -> None:
        """Do not begin a run, unless it begins always; what is not over for good, it waits for in a later command."""
        if run not in self._gone and not (self.graph.plan.likes[run].when == "always" and state.stands):
            self._gone.add(run)
            self._blocked.pop(run, None)
            self.doomed.append(Doomed(self.graph.jobs_of(run), job))
