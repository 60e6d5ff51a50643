"""What is shown when a batch is over."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from statistics import median

from rich.console import Console
from rich.text import Text

from fleeting.config import harmless
from fleeting.plugins import one_line, span
from taskscaler._wording import counted
from taskscaler.batch import BatchState, JobState, Results
from taskscaler.cli._choice import RERUN
from taskscaler.cli._text import broken, listed

_BAD = (JobState.FAILED, JobState.TIMED_OUT, JobState.LOST, JobState.NO_CAPACITY)

_SKIPPED = {JobState.SKIPPED}

LAST_LINES = 5
"""So many lines of a failed job's log are shown."""

MOST_NAMED = 10
"""So many failed jobs and retries are listed one by one; the rest is counted."""

_LABELS = 11
"""Characters that the labels take."""

_LONGEST = 16 * 1024  # bytes of a row: a path, or the names of ten jobs and why they were tried again

_TAIL = 64 * 1024  # bytes of a log that are read to find its last lines


def print_summary(console: Console, state: BatchState, results: Results, *, now: float, timeline: str) -> None:
    """How it went: the sums, each retry, and each job that did not succeed.

    Args:
        console: Lines are broken between words on a terminal, and not at all elsewhere.
        state: Of a batch that is over.
        results: Where they are.
        now: Seconds since the epoch.
        timeline: Where the picture of the run is, or why there is none.
    """
    console.print()
    for label, text in _sums(state, now):
        _print_row(console, label, text, wrap=console.is_terminal)
    _print_row(console, "timeline", timeline, wrap=False)
    _print_row(console, "results", str(results.directory), wrap=False)
    if not state.all_stand:
        _print_row(console, "resume", f"taskscaler run --resume {quote(str(results.directory))}", wrap=False)
    elif kinds := " ".join(f"--rerun {word}" for word in ("failed", "lost") if state.count(*RERUN[word] - _SKIPPED)):
        _print_row(console, "run again", f"taskscaler run --resume {quote(str(results.directory))} {kinds}", wrap=False)
    for line in _failures(state, results):
        console.print(line, highlight=False, soft_wrap=True)


def _print_row(console: Console, label: str, text: str, *, wrap: bool) -> None:
    """Print a label and what belongs to it; a path is not broken, so that it can be copied."""
    text = one_line(text, _LONGEST)
    for line in broken(text, console.width - _LABELS) if wrap else [text]:
        console.print(Text.assemble((f"{label:<{_LABELS}}", "dim"), line), highlight=False, soft_wrap=True)
        label = ""


def _sums(state: BatchState, now: float) -> Iterator[tuple[str, str]]:
    yield "jobs", _counts(state)
    yield "time", f"{span(now - state.started)} in all{_waiting(state)}"
    yield "instances", _instances(state)
    yield from (("retried", line) for line in _at_most(_retries(state)))
    warnings = [f"{record.name}: {warning}" for record in state.records for warning in record.warnings]
    yield from (("warning", line) for line in _at_most(warnings))


def _retries(state: BatchState) -> list[str]:
    """Which jobs were tried again, and why; those of one instance together."""
    names: dict[str, list[str]] = {}
    for record in state.records:
        for attempt in record.retried_attempts:
            names.setdefault(attempt.why, []).append(record.name)
    return [f"{', '.join(_at_most(jobs))}: {why}" for why, jobs in names.items()]


def _counts(state: BatchState) -> str:
    kinds = (f"{state.count(kind)} {kind.words}" for kind in JobState if state.count(kind))
    return f"{len(state)}: {listed(kinds)}"


def _waiting(state: BatchState) -> str:
    waits = [record.waited for record in state.records if record.waited is not None]
    return f"; jobs waited {span(median(waits))} in the median, {span(max(waits))} at most" if waits else ""


def _instances(state: BatchState) -> str:
    used = Counter(attempt.place for record in state.records for attempt in record.attempts)
    named = [f"{instance} ({counted(tries, 'job')})" for instance, tries in used.most_common()]
    return f"{len(named)}: {', '.join(named)}" if 0 < len(named) <= MOST_NAMED else f"{len(named)}"


def _failures(state: BatchState, results: Results) -> Iterator[Text]:
    failed = [record for record in state.records if record.state in _BAD]
    for record in failed[:MOST_NAMED]:
        log = results.log(record.name)
        yield Text.assemble("\n", (record.name, "bold"), " ", (record.state.words, "red"), f": {one_line(record.why)}")
        if tail := last_lines(log):
            yield Text("\n".join(f"  {line}" for line in tail), style="dim")
            yield Text(f"  {one_line(str(log), _LONGEST)}")
    if len(failed) > MOST_NAMED:
        yield Text(
            f"\nand {counted(len(failed) - MOST_NAMED, 'more job')}; see {one_line(str(results.summary), _LONGEST)}"
        )


def last_lines(log: Path) -> list[str]:
    """Read the last lines of what a job printed, made harmless; none if there is no log to read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = (line for line in harmless(text).splitlines() if line.strip() and not line.startswith("taskscaler: "))
    return list(deque(lines, maxlen=LAST_LINES))


def _at_most(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        yield f"and {len(lines) - MOST_NAMED} more"
