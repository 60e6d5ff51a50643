"""What CI systems read: JUnit XML and annotations, as functions of what became of the jobs."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from taskscaler.batch import BatchState, Begun, Ended, GivenUp, JobState, Planned, Results, Retries, Started
from taskscaler.cli._for_ci import ForCI
from taskscaler.report._annotations import github, gitlab
from taskscaler.report._junit import MOST_OUTPUT, junit
from tests.golden import Golden

ATTRIBUTES = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "time", "skipped", "timestamp"},
    "testcase": {"name", "time", "classname"},
    "failure": {"type", "message"},
    "skipped": {"type", "message"},
    "system-out": set(),
}
"""Of junit-10.xsd of Jenkins' xUnit plugin, those elements that are used, with all attributes that they may have."""

INSIDE = {
    "testsuites": {"testsuite"},
    "testsuite": {"testcase"},
    "testcase": {"failure", "skipped", "system-out"},
}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")
"""`SUREFIRE_TIME` there."""

ENDS = {
    "good": JobState.SUCCEEDED,
    "bad": JobState.FAILED,
    "late": JobState.TIMED_OUT,
    "lost": JobState.LOST,
    "given-up": JobState.NO_CAPACITY,
    "cancelled": JobState.CANCELLED,
    "waiting": JobState.QUEUED,
}


def batch(ends: dict[str, JobState], why: str = "") -> BatchState:
    """Make a batch whose jobs ended so."""
    state = BatchState(Begun(at=0.0, jobs=tuple(Planned(name=name, retries=Retries(lost=0)) for name in ends)))
    for name, end in ends.items():
        if end in (JobState.NO_CAPACITY, JobState.CANCELLED):
            state.apply(GivenUp(at=2.0, jobs=(name,), state=end, why=why or "no slot became free"))
        elif end is not JobState.QUEUED:
            state.apply(Started(at=1.0, job=name, pool="", instance="i-1", slot=0))
            state.apply(Ended(at=13.5, job=name, state=end, exit_code=3, why=why or "exited with 3"))
    return state


def tail(job: str) -> Sequence[str]:
    """What a job has printed last."""
    return [f"{job}: 100% of <&> is bad", "the very end: a,b"]


def valid(text: str) -> ET.Element:
    """Parse it, and see that each element and attribute is one of the schema."""
    root = ET.fromstring(text)  # noqa: S314  (our own)
    for element in root.iter():
        assert element.attrib.keys() <= ATTRIBUTES[element.tag]
        assert {each.tag for each in element} <= INSIDE.get(element.tag, set())
        assert TIME.fullmatch(element.get("time", ""))
    return root


def test_junit_has_each_job_as_a_test_case(golden: Golden) -> None:
    """With its state, its reason and its last lines."""
    text = "\n".join(junit(batch(ENDS), name="nightly", tail=tail))
    suite = valid(text)[0]
    assert {key: suite.get(key) for key in ("tests", "failures", "skipped")} == {
        "tests": "7",
        "failures": "4",
        "skipped": "2",
    }
    golden("for_ci/junit", text)


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF, categories=None), max_size=50))
def test_whatever_a_job_prints_is_valid_xml(text: str) -> None:
    """Control characters, surrogates and markup; and no more than there is room for."""
    said = f'{text}]]><&"\x00\x1b\ud800\uffff'
    state = batch({"a": JobState.FAILED}, why=said)
    (case,) = valid("\n".join(junit(state, name=said, tail=lambda _: [said * 200])))[0]
    assert len(case.findtext("system-out", "")) <= MOST_OUTPUT


def test_annotations_of_github(golden: Golden) -> None:
    """What would end a command or a property is escaped; of many, the last one counts the rest."""
    golden("for_ci/github", "\n".join(github(batch(ENDS, why="100%:\n\rbad, really"), tail)))
    many = [*github(batch({f"job-{number}": JobState.FAILED for number in range(30)}), tail)]
    assert len(many) == 10
    assert many[-1] == "::error title=21 more jobs failed::see the summary, or results.json"


def test_annotations_of_gitlab(golden: Golden) -> None:
    """A finding for each job that ended badly; the same one whenever the same job fails."""
    text = "".join(gitlab(batch(ENDS), tail, path="ci/jobs.toml"))
    findings = json.loads(text)
    assert [each["check_name"] for each in findings] == [
        "taskscaler/failed",
        "taskscaler/timed_out",
        "taskscaler/lost",
        "taskscaler/no_capacity",
    ]
    assert len({each["fingerprint"] for each in findings}) == len(findings)
    assert (
        json.loads("".join(gitlab(batch(ENDS, why="otherwise"), tail, path="ci/jobs.toml")))[0]["fingerprint"]
        == findings[0]["fingerprint"]
    )
    golden("for_ci/gitlab", text)
    assert json.loads("".join(gitlab(batch({"a": JobState.SUCCEEDED}), tail, path="x"))) == []


def test_it_is_left_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are for our user alone; what GitHub could take for orders from jobs is not obeyed."""
    monkeypatch.chdir(tmp_path)
    results = Results(tmp_path / "results")
    results.log("bad").parent.mkdir(parents=True)
    results.log("bad").write_text("::set-env name=PATH::evil\n")
    state = batch({"bad": JobState.FAILED})
    ForCI(junit=tmp_path / "junit.xml", annotations="gitlab").leave(state, results, tmp_path / "jobs.toml", Console())
    suite = valid((tmp_path / "junit.xml").read_text())[0]
    assert (suite.get("name"), suite[0].findtext("system-out")) == ("jobs", "::set-env name=PATH::evil")
    (finding,) = json.loads(results.annotations.read_text())
    assert finding["location"] == {"path": "jobs.toml", "lines": {"begin": 1}}
    assert (tmp_path / "junit.xml").stat().st_mode & 0o777 == 0o600
    for_github = ForCI(annotations="github")
    with for_github.nothing_obeyed(Console(width=200)):
        Console().print("  ::set-env name=PATH::evil")
    for_github.leave(state, results, tmp_path / "jobs.toml", Console(width=200))
    stop, _, go_on, error = capsys.readouterr().out.splitlines()
    assert stop.removeprefix("::stop-commands::") == go_on.strip(":")
    assert error == "::error title=bad failed::exited with 3 · ::set-env name=PATH::evil"
