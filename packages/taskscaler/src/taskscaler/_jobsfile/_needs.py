"""What is wrong with the needs of the tables of a jobs file: names of nothing, and cycles."""

from collections.abc import Iterator, Mapping, Sequence

from fleeting.config import did_you_mean, quoted
from fleeting.errors import ConfigProblem
from taskscaler.batch import Plan
from taskscaler.batch._graph import Graph

_MOST_NEAR = 10_000  # names that are compared with one that is not there
_MOST_SHOWN = 10  # of a cycle


def wrong_needs(plan: Plan, paths: Mapping[str, str]) -> Iterator[ConfigProblem]:
    """Find needs that name nothing, and the first cycle.

    Args:
        plan: All jobs, with names that differ.
        paths: Where each group stands, by its name.
    """
    graph = Graph(plan)
    for job, name in graph.unknown:
        path = paths[plan.likes[graph.run_of(job)].group]
        near = did_you_mean(name, _known(plan, paths))
        hint = near or "name a table, or one of the jobs that it stands for"
        yield ConfigProblem(path=f"{path}.needs", found=f"{quoted(name)}, which is not a job", hint=hint)
    if cycle := graph.cycle():
        first = plan.names.number(cycle[0])
        path = paths[cycle[0] if first is None else plan.likes[graph.run_of(first)].group]
        yield ConfigProblem(path=f"{path}.needs", found=_said(cycle), hint="remove one of these needs")


def _known(plan: Plan, paths: Mapping[str, str]) -> Sequence[str]:
    return [*paths, *plan.names[:_MOST_NEAR]]


def _said(cycle: Sequence[str]) -> str:
    """Say a cycle, ``a needs b, b needs a``."""
    if len(cycle) == 1:
        return f"{quoted(cycle[0])} needs itself"
    following = [*cycle[1:], cycle[0]]
    parts = [f"{quoted(one)} needs {quoted(other)}" for one, other in zip(cycle, following, strict=True)]
    if len(parts) > _MOST_SHOWN:
        parts[_MOST_SHOWN - 2 : -1] = [f"and so on over {len(parts) - _MOST_SHOWN + 1} more jobs"]
    return f"a cycle: {', '.join(parts)}"
