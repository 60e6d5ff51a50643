"""JUnit XML, which CI systems show as tests: a job is a test case. Pure.

Valid by the schema of Jenkins' xUnit plugin (junit-10.xsd), and what GitLab reads. A job that ended badly is a failure,
also one that lost its instance or got none; one that was cancelled or is not over is skipped.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from xml.sax.saxutils import escape, quoteattr

from taskscaler._wording import iso
from taskscaler.batch import BatchState, JobRecord, JobState
from taskscaler.report._annotations import FAILURES

MOST_OUTPUT = 4096
"""Characters of a job's last lines that are taken over."""

_MOST_TEXT = 1024
"""Characters of a reason."""

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write."""


def junit(state: BatchState, *, name: str, tail: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Write what became of a batch, line by line: of a million jobs, not all is in memory.

    Args:
        state: Of a batch that may still run.
        name: Of the batch: of the suite, and of the class that test cases are in.
        tail: Gives the last lines that a job has printed; asked for jobs that ended badly.
    """
    failures = state.count(*FAILURES)
    skipped = len(state) - failures - state.count(JobState.SUCCEEDED)
    of_all = f"name={_quoted(name)} tests={_quoted(len(state))} failures={_quoted(failures)} errors={_quoted(0)}"
    time = f"time={_quoted(_seconds(state.last - state.started))}"
    yield '<?xml version="1.0" encoding="UTF-8"?>'
    yield f"<testsuites {of_all} {time}>"
    yield f"  <testsuite {of_all} skipped={_quoted(skipped)} {time} timestamp={_quoted(iso(state.started))}>"
    for record in state.records:
        yield from _case(record, name, tail)
    yield "  </testsuite>"
    yield "</testsuites>"


def _case(record: JobRecord, suite: str, tail: Callable[[str], Sequence[str]]) -> Iterator[str]:
    duration = record.last_attempt.duration if record.last_attempt else 0.0
    case = f"    <testcase name={_quoted(record.name)} classname={_quoted(suite)} time={_quoted(_seconds(duration))}"
    if record.state is JobState.SUCCEEDED:
        yield f"{case}/>"
        return
    tag = "failure" if record.state in FAILURES else "skipped"
    why = record.why[:_MOST_TEXT] or record.state.words
    yield f"{case}>"
    yield f"      <{tag} type={_quoted(record.state.value)} message={_quoted(why)}/>"
    if tag == "failure" and (output := "\n".join(tail(record.name))[-MOST_OUTPUT:]):
        yield f"      <system-out>{escape(_legal(output))}</system-out>"
    yield "    </testcase>"


def _seconds(seconds: float) -> str:
    return f"{max(0.0, seconds):.3f}"


def _quoted(value: object) -> str:
    return quoteattr(_legal(str(value)))


def _legal(text: str) -> str:
    return _ILLEGAL.sub("", text)
