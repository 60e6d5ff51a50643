"""What is shown when a batch is over."""

from collections import Counter
from collections.abc import Iterator, Sequence
from shlex import quote
from statistics import median

from rich.console import Console
from rich.text import Text

from fleeting.plugins import one_line, span
from taskscaler._wording import counted
from taskscaler.batch import BatchState, JobRecord, JobState, Results
from taskscaler.cli._choice import RERUN
from taskscaler.cli._last_lines import last_lines
from taskscaler.cli._text import broken, listed

_BAD = (JobState.FAILED, JobState.TIMED_OUT, JobState.LOST, JobState.NO_CAPACITY)

_SKIPPED = {JobState.SKIPPED}

MOST_NAMED = 10
"""So many retries are listed one by one; the rest is counted."""

MOST_IN_DETAIL = 3
"""Of so many failed jobs the last lines are shown; of more, each is one line with its last one."""

MOST_IN_LINES = 50
"""So many failed jobs have a line; the rest is counted."""

LABELS = 11
"""Characters that the labels take."""

_LONGEST_LAST = 200  # bytes of a last line of output

_LONGEST = 16 * 1024  # bytes of a row: a path, or the names of ten jobs and why they were tried again


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
        print_row(console, label, text, wrap=console.is_terminal)
    print_row(console, "timeline", timeline, wrap=False)
    print_row(console, "results", str(results.directory), wrap=False)
    if not state.all_stand:
        print_row(console, "resume", f"taskscaler run --resume {quote(str(results.directory))}", wrap=False)
    if kinds := " ".join(f"--rerun {word}" for word in ("failed", "lost") if state.count(*RERUN[word] - _SKIPPED)):
        print_row(console, "run again", f"taskscaler run --resume {quote(str(results.directory))} {kinds}", wrap=False)
    for line in _failures(state, results):
        console.print(line, highlight=False, soft_wrap=True)


def print_row(console: Console, label: str, text: str, *, wrap: bool) -> None:
    """Print a label and what belongs to it; a path is not broken, so that it can be copied."""
    text = one_line(text, _LONGEST)
    for line in broken(text, console.width - LABELS) if wrap else [text]:
        console.print(Text.assemble((f"{label:<{LABELS}}", "dim"), line), highlight=False, soft_wrap=True)
        label = ""


def _sums(state: BatchState, now: float) -> Iterator[tuple[str, str]]:
    yield "jobs", _counts(state)
    yield "time", f"{time_taken(now - state.started, state.paused)}{_waiting(state)}"
    yield "instances", _instances(state)
    yield from (("retried", line) for line in _at_most(_retries(state)))
    warnings = [f"{record.name}: {warning}" for record in state.records for warning in record.warnings]
    yield from (("warning", line) for line in _at_most(warnings))


def time_taken(seconds: float, paused: float) -> str:
    """Say how long a batch took, and how much of it some command ran it, if there were times when none did."""
    return f"{span(seconds)} in all" + (f", {span(seconds - paused)} of it at work" if paused else "")


def _retries(state: BatchState) -> list[str]:
    """Which jobs were tried again, and why; those of one instance together."""
    tries: dict[str, Counter[str]] = {}
    for record in state.records:
        for attempt in record.retried_attempts:
            if attempt.state is JobState.SUCCEEDED:  # it was run again because somebody wanted it
                continue
            tries.setdefault(attempt.why, Counter())[record.name] += 1
    return [f"{', '.join(_at_most(_with_numbers(jobs)))}: {why}" for why, jobs in tries.items()]


def _with_numbers(jobs: Counter[str]) -> list[str]:
    return [f"{name} ({times} times)" if times > 1 else name for name, times in jobs.items()]


def _counts(state: BatchState) -> str:
    kinds = (f"{state.count(kind)} {kind.words}" for kind in JobState if state.count(kind))
    return f"{len(state)}: {listed(kinds)}"


def _waiting(state: BatchState) -> str:
    waits = [record.waited for record in state.records if record.waited is not None]
    return f"; jobs waited {span(median(waits))} in the median, {span(max(waits))} at most" if waits else ""


def _instances(state: BatchState) -> str:
    attempts = [attempt for record in state.records for attempt in record.attempts]
    used = Counter(attempt.place for attempt in attempts)
    lost = Counter(attempt.place for attempt in attempts if attempt.state is JobState.LOST)
    named = [
        f"{instance} ({counted(tries, 'job')}{f', {lost[instance]} lost' if lost[instance] else ''})"
        for instance, tries in used.most_common()
    ]
    return f"{len(named)}: {', '.join(named)}" if 0 < len(named) <= MOST_NAMED else f"{len(named)}"


def _failures(state: BatchState, results: Results) -> Iterator[Text]:
    failed = [record for record in state.records if record.state in _BAD]
    if len(failed) <= MOST_IN_DETAIL:
        for record in failed:
            log = results.log(record.name)
            yield Text.assemble(
                "\n", (record.name, "bold"), " ", (record.state.words, "red"), f": {one_line(record.why)}"
            )
            if tail := last_lines(log):
                yield Text("\n".join(f"  {line}" for line in tail), style="dim")
                yield Text(f"  {one_line(str(log), _LONGEST)}")
        return
    yield Text()
    for record in failed[:MOST_IN_LINES]:
        last = "".join(last_lines(results.log(record.name), 1))
        said = [one_line(record.why), one_line(last, _LONGEST_LAST)]
        yield Text.assemble(
            (record.name, "bold"), " ", (record.state.words, "red"), f": {' · '.join(filter(None, said))}"
        )
    if len(failed) > MOST_IN_LINES:
        more = counted(len(failed) - MOST_IN_LINES, "more job")
        yield Text(f"and {more}; see {one_line(str(results.summary), _LONGEST)}")
    yield Text(f"for more of what a job printed: taskscaler logs {quote(str(results.directory))} JOB", style="dim")


def _ended(record: JobRecord, why: str) -> Text:
    return Text.assemble((record.name, "bold"), " ", (record.state.words, "red"), f": {why}")


def _at_most(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:MOST_NAMED]
    if len(lines) > MOST_NAMED:
        yield f"and {len(lines) - MOST_NAMED} more"
