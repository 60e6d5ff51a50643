"""What is shown when a batch is over."""

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from fleeting.terminal import harmless
from taskscaler.batch import BatchState, JobState, Results
from taskscaler.cli._text import counted, elapsed, listed

_BAD = (JobState.FAILED, JobState.TIMED_OUT, JobState.LOST, JobState.NO_CAPACITY)

LAST_LINES = 5
"""So many lines of a failed job's log are shown."""

MOST_NAMED = 10
"""So many failed jobs and retries are told one by one; the rest is counted."""

_TAIL = 64 * 1024  # bytes of a log that are read to find its last lines


def print_summary(console: Console, state: BatchState, results: Results, *, now: float) -> None:
    """Tell how it went: the sums, each retry, and each job that did not succeed."""
    console.print()
    for line in (*_sums(state, results, now), *_failures(state, results)):
        console.print(line, highlight=False, soft_wrap=True)


def _sums(state: BatchState, results: Results, now: float) -> Iterator[Text]:
    yield _row("jobs", _counts(state))
    yield _row("time", f"{elapsed(now - state.started)} in all{_waiting(state)}")
    yield _row("instances", _instances(state))
    lost = [f"{record.name}: {attempt.why}" for record in state.records for attempt in record.lost_attempts]
    for line in _at_most(lost):
        yield _row("retried", line)
    warnings = [f"{record.name}: {warning}" for record in state.records for warning in record.warnings]
    for line in _at_most(warnings):
        yield _row("warning", line)
    yield _row("results", str(results.directory))


def _row(label: str, text: str) -> Text:
    return Text.assemble((f"{label:<11}", "dim"), harmless(text))


def _counts(state: BatchState) -> str:
    kinds = (f"{state.count(kind)} {kind.words}" for kind in JobState if state.count(kind))
    return f"{len(state)}: {listed(kinds)}"


def _waiting(state: BatchState) -> str:
    waits = [record.waited for record in state.records if record.waited is not None]
    return f"; jobs waited {elapsed(median(waits))} in the median, {elapsed(max(waits))} at most" if waits else ""


def _instances(state: BatchState) -> str:
    used = Counter(attempt.instance for record in state.records for attempt in record.attempts)
    named = [f"{instance} ({counted(tries, 'job')})" for instance, tries in used.most_common()]
    return f"{len(named)}: {', '.join(named)}" if 0 < len(named) <= MOST_NAMED else f"{len(named)}"


def _failures(state: BatchState, results: Results) -> Iterator[Text]:
    failed = [record for record in state.records if record.state in _BAD]
    for record in failed[:MOST_NAMED]:
        log = results.log(record.name)
        yield Text.assemble("\n", (record.name, "bold"), " ", (record.state.words, "red"), f": {harmless(record.why)}")
        if tail := last_lines(log):
            yield Text("\n".join(f"  {line}" for line in tail), style="dim")
            yield Text(f"  {log}")
    if len(failed) > MOST_NAMED:
        yield Text(f"\nand {counted(len(failed) - MOST_NAMED, 'more job')}; see {results.summary}")


def last_lines(log: Path) -> list[str]:
    """Read the last lines of what a job printed, made harmless; none if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = (line for line in harmless(text).splitlines() if line.strip() and not line.startswith("taskscaler: "))
    return list(deque(lines, maxlen=LAST_LINES))


def _at_most(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        yield f"and {len(lines) - MOST_NAMED} more"
