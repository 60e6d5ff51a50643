"""What is wrong with the needs of the tables of a jobs file: names of nothing, and cycles."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from fleeting.config import did_you_mean, quoted
from fleeting.errors import ConfigProblem
from taskscaler.batch import Plan
from taskscaler.batch._graph import Graph

_MOST_NEAR = 10_000  # names that are compared with one that is not there
_MOST_SHOWN = 10  # of a cycle


def wrong_needs(plan: Plan, where: Callable[[int], str], groups: Iterable[str]) -> Iterator[ConfigProblem]:
    """Find needs that name nothing, and the first cycle.

    Args:
        plan: All jobs, with names that differ.
        where: Returns where the needs of a job stand, by its number.
        groups: Names of groups of jobs.
    """
    graph = Graph(plan)
    for job, name in graph.unknown:
        near = did_you_mean(name, [*groups, *plan.names[:_MOST_NEAR]])
        hint = near or "name a table, or a job"
        yield ConfigProblem(path=where(job), found=f"{quoted(name)}, which is not a job", hint=hint)
    if cycle := graph.cycle():
        first = graph.first(cycle[0])
        yield ConfigProblem(path=where(first), found=_said(cycle), hint="remove one of these needs")


def _said(cycle: Sequence[str]) -> str:
    """Say a cycle, ``a needs b, b needs a``."""
    if len(cycle) == 1:
        return f"{quoted(cycle[0])} needs itself"
    following = [*cycle[1:], cycle[0]]
    parts = [f"{quoted(one)} needs {quoted(other)}" for one, other in zip(cycle, following, strict=True)]
    if len(parts) > _MOST_SHOWN:
        parts[_MOST_SHOWN - 2 : -1] = [f"and so on over {len(parts) - _MOST_SHOWN + 1} more jobs"]
    return f"a cycle: {', '.join(parts)}"
