"""Which jobs a command runs: all that are left to do, or what its arguments choose among the jobs. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from taskscaler._wording import counted
from taskscaler.batch import BatchState, JobState, Plan
from taskscaler.batch._graph import with_needs
from taskscaler.batch._select import select

RERUN: Mapping[str, frozenset[JobState]] = {
    "failed": frozenset({JobState.FAILED, JobState.TIMED_OUT, JobState.SKIPPED}),
    "lost": frozenset({JobState.LOST, JobState.SKIPPED}),
    "all": frozenset(state for state in JobState if state.stands),
}
"""How jobs ended that are run again, by the words for it; those that were skipped are, if what they need succeeds."""


@frozen(kw_only=True)
class Wishes:
    """What the arguments say."""

    only: tuple[str, ...] = ()
    """Names, places and patterns, as `select` takes them; empty: all jobs."""

    rerun: tuple[str, ...] = ()
    """Words of `RERUN`."""

    fail_fast: int | None = None
    """After so many failures nothing more is begun; None: however many."""


@frozen(kw_only=True)
class Choice:
    """What a command is to run."""

    only: frozenset[str] | None = None
    """The jobs that are run; None: all that are left."""

    rerun: tuple[str, ...] = ()
    """Those of them that are over, and run again."""

    fail_fast: int | None = None
    left: bool = True
    """Whether there is anything to run."""

    notes: tuple[str, ...] = ()
    """What to say about it."""

    def content(self, state: BatchState) -> bool:
        """Whether all jobs have succeeded that matter to who chose."""
        if self.only is None:
            return state.succeeded
        return all(state[name].state is JobState.SUCCEEDED for name in self.only)


def choose(wishes: Wishes, plan: Plan, past: BatchState | None) -> Choice:
    """Choose among jobs.

    Args:
        wishes: What is wished.
        plan: The jobs as they are now, in the order of the batch.
        past: What earlier commands left; None: this is the first.

    Raises:
        WrongArguments: No job is meant by one of `Wishes.only`.
    """
    names = plan.names
    selected = frozenset(select(names, wishes.only)) if wishes.only else None
    only = None if selected is None else selected | {name for name in with_needs(plan, selected) if _waits(name, past)}
    chosen = names if only is None else [name for name in names if name in only]
    again = frozenset[JobState]().union(*(RERUN[word] for word in wishes.rerun))
    rerun = [name for name in chosen if name in past.jobs and past[name].state in again] if past and again else []
    # Of a million jobs, the names are not kept.
    never_run = sum(_waits(name, past) and _never_ran(name, past) for name in chosen) if again else 0
    return Choice(
        only=only,
        rerun=tuple(rerun),
        fail_fast=wishes.fail_fast,
        left=bool(rerun) or any(_waits(name, past) for name in chosen),
        notes=(
            *_notes_on_selection(len(selected or ()), len(only or ()), len(names)),
            *_notes_on_reruns(wishes.rerun, len(rerun), never_run),
        ),
    )


def _never_ran(name: str, past: BatchState | None) -> bool:
    return not (past and name in past.jobs and past[name].attempts)


def _waits(name: str, past: BatchState | None) -> bool:
    """Whether a job is not over for good."""
    return not (past and name in past.jobs and past[name].state.stands)


def _notes_on_selection(selected: int, run: int, of: int) -> Iterator[str]:
    if selected:
        needed = f", and {counted(run - selected, 'job')} that they need" if run > selected else ""
        yield (
            f"{selected} of {counted(of, 'job')} selected{needed}; "
            "the others wait until the batch is resumed without --only"
        )


def _notes_on_reruns(words: Sequence[str], rerun: int, never_run: int) -> Iterator[str]:
    if words:
        kinds = " ".join(f"--rerun {word}" for word in words)
        yield f"running again: {counted(rerun, 'job')} ({kinds})"
        if never_run:
            yield f"running, too: {counted(never_run, 'job')} that never ran"
