"""Jobs on standard input: what lines and rows become, what is said of bad ones, and a batch of them."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConfigError
from fleeting.errors import ConfigProblem
from taskscaler._jobsfile import StreamJobs, keep
from taskscaler._jobsfile._records import LONGEST_LINE, records_of
from taskscaler._jobsfile._stream import MOST_PROBLEMS
from taskscaler._jobsfile._tables import Defaults
from taskscaler.cli import main

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=8)


def read(directory: Path, text: str | bytes, defaults: Defaults | None = None) -> StreamJobs:
    """Keep the jobs of a stream."""
    stream = io.BytesIO(text.encode() if isinstance(text, str) else text)
    path = directory / "jobs.jsonl"
    path.unlink(missing_ok=True)
    return keep(
        stream,
        None,
        path,
        defaults=defaults or Defaults(),
        directory=directory,
        is_executor=lambda name: ConfigProblem(path="executor", found=name) if name == "none" else None,
    )


def wrong(directory: Path, text: str | bytes) -> list[str]:
    """All that is wrong with a stream."""
    with pytest.raises(ConfigError) as caught:
        read(directory, text)
    assert caught.value.source == "standard input"
    problems = caught.value.problems
    return [": ".join([*filter(None, [each.record, each.path]), each.found]) for each in problems]


def test_a_line_says_what_a_table_says(tmp_path: Path) -> None:
    """With a command for a script, and a number for a name; what it does not say, the defaults say."""
    (tmp_path / "data").touch()
    lines: Sequence[dict[str, object]] = [
        {"name": "a", "script": "echo a", "env": {"X": "1"}},
        {"command": ["echo", "a b"], "needs": ["a"], "when": "always"},
        {"name": "c", "command": "true", "files": ["data"], "timeout": "1m", "retries": {"failed": 1, "backoff": "2s"}},
    ]
    stream = "\n\n".join(map(json.dumps, lines))
    first, second, third = read(tmp_path, stream, Defaults(retries=5, env={"Y": "2"}))
    assert (first.name, first.spec.script, first.retries.lost) == ("a", "echo a", 5)
    assert {
        "X": "1",
        "Y": "2",
        "TASKSCALER_JOB_INDEX": "0",
        "TASKSCALER_JOB_COUNT": "3",
    }.items() <= first.spec.env.items()
    assert (second.name, second.spec.script) == ("job-2", "echo 'a b'")
    assert (third.spec.timeout, third.retries.failed, third.retries.backoff) == (60.0, 1, 2.0)
    assert third.spec.files == {"data": tmp_path / "data"}
    again = StreamJobs(tmp_path / "jobs.jsonl", Defaults(), tmp_path)
    assert (again.plan[1].needs, again.plan[1].when, again.plan[2].retries.failed) == (("a",), "always", 1)


@given(st.lists(st.fixed_dictionaries({"command": texts}, optional={"X": texts, "env.Y": texts}), min_size=1))
def test_a_table_is_the_same_as_lines(rows: list[dict[str, str]]) -> None:
    """Whatever is in its cells; columns that are not keys are variables."""
    table = io.StringIO()
    writer = csv.DictWriter(table, ["command", "X", "env.Y"])
    writer.writeheader()
    writer.writerows(rows)
    records = [record for _, record in records_of(io.BytesIO(table.getvalue().encode()), "csv")]
    for row, record in zip(rows, records, strict=True):
        assert isinstance(record, dict)
        assert record["command"] == row["command"]
        env = {key: row[column] for key, column in [("X", "X"), ("Y", "env.Y")] if column in row}
        assert record.get("env", {}) == env


def test_cells_may_be_lists_and_numbers(tmp_path: Path) -> None:
    """Parts are separated by semicolons; an empty cell says nothing."""
    (tmp_path / "in").touch()
    rows = "name,script,files,retries,timeout,needs,SIZE\na,true,in,3,1m,,1\nb,true,,,,a; a,\n"
    first, second = read(tmp_path, rows)
    assert (first.retries.lost, first.spec.timeout, first.spec.env["SIZE"]) == (3, 60.0, "1")
    assert first.spec.files == {"in": tmp_path / "in"}
    assert "SIZE" not in second.spec.env


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ["no jobs"]),
        ('{"name": "a", "script": "true"}\n[1]\n{"x"', ["line 2: an array", "line 3: JSON with a mistake"]),
        ('{"name": "a", "script": 1, "timout": "1m"}', ['line 1 (job "a"): script', 'line 1 (job "a"): timout']),
        ('{"script": "true", "copies": 2}', ['line 1 (job "job-1"): copies: a key that makes several jobs']),
        ('{"script": "true", "command": "true"}', ['line 1 (job "job-1"): command: script, too']),
        ('{"script": "true", "env": {"a b": ""}}', ['line 1 (job "job-1"): env: "a b"']),
        ('{"script": "echo \\ud800"}', ['line 1 (job "job-1"): script: "echo \\ud800"']),
        ('{"command": ["echo", "\\u0000"]}', ['line 1 (job "job-1"): script: "echo']),
        ('{"script": "true", "env": {"A": "\\udfff"}}', ['line 1 (job "job-1"): env.A: a string']),
        ('{"script": "true", "env": {"A\\u0000": ""}}', ['line 1 (job "job-1"): env: "A']),
        ("script,A\ntrue,\0\n", ['line 2 (job "job-1"): env.A: a string']),
        ('{"script": "true", "files": ["x"]}', ['line 1 (job "job-1"): files[0]: "x"']),
        ('{"script": "true", "executor": "none"}', ['line 1 (job "job-1"): executor: none']),
        (
            '{"name": "a", "script": "x"}\n\n{"name": "a", "script": "x"}',
            ['line 3: name: "a" is also the name of line 1'],
        ),
        ('{"name": "a", "script": "x", "needs": ["b"]}', ['line 1 (job "a"): needs: "b", which is not a job']),
        ('{"name": "a", "script": "x", "needs": ["a"]}', ['line 1 (job "a"): needs: "a" needs itself']),
        ("name,script\na,true,1\n", ["line 2: 3 cells"]),
        ("name,name\n", ['line 1: the column "name" twice']),
        ('name,script\na,"tr', ["line 2: no CSV"]),
        (b"name,script\n\xff,true\n", ["line 2: no CSV"]),
        (b'{"script": "' + b"x" * LONGEST_LINE + b'"}', ["line 1: a longer line"]),
    ],
)
def test_each_bad_line_is_named(tmp_path: Path, text: str | bytes, found: list[str]) -> None:
    """With its job, all at once."""
    problems = wrong(tmp_path, text)
    assert len(problems) == len(found)
    for problem, beginning in zip(problems, found, strict=True):
        assert problem.startswith(beginning)


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        (b'{"name": "a", "script": "x", "timout": 1}', ['(job "a"): unknown key `timout`; did you mean `timeout`?']),
        (b'{"name": "a"}', ['(job "a"): it has nothing to run; give `script` or `command`']),
        (
            b'{"name": "a", "scrip": "x"}',
            [
                '(job "a"): it has nothing to run; give `script` or `command`',
                '(job "a"): unknown key `scrip`; did you mean `script`?',
            ],
        ),
        (b'{"script": "true", "retries": {"faild": 1}}', ['(job "job-1"): unknown key `faild` in [retries]']),
        (b"{'name': 'a'}", ["JSON with a mistake at character 2"]),
        (b"{" + b'"a":[' * 3 + b"0" * 2, ["JSON with a mistake at character"]),
        (b'{"a":' * 100_000, ["brackets that are nested too deeply"]),
        (b'{"a": "\xff"}', ["bytes that are not UTF-8"]),
        (b'{"a": ' + b"1" * 5_000 + b"}", ["a number with too many digits"]),
    ],
)
def test_sentences_about_a_line_are_whole(tmp_path: Path, line: bytes, sentences: list[str]) -> None:
    """A key is named as a key, with what it may have been; what is no JSON, without the parser's words."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, line)
    said = [str(problem) for problem in caught.value.problems]
    assert len(said) == len(sentences)
    for text, sentence in zip(said, sentences, strict=True):
        assert text.startswith("line 1")
        assert sentence in text
        assert "line 1 column" not in text


def test_only_so_many_mistakes_are_reported(tmp_path: Path) -> None:
    """A stream of something else may have no end."""
    problems = wrong(tmp_path, "{}\n" * 1_000)
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1] == f"line {MOST_PROBLEMS + 1}: more lines"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet's file, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "fleet.toml"
    path.write_text('[autoscaler]\nplugin = "local"\nmax_instances = 1\ncapacity_per_instance = 4\n')
    return path


def test_a_batch_of_standard_input(fleet: Path) -> None:
    """It is run, and what failed is not kept for ever; while it is not over, it is resumed from what was kept."""
    lines = (
        '{"name": "a", "command": "exit 3"}\n{"name": "b", "command": "true", "needs": ["a"]}\n{"command": "echo hi"}\n'
    )
    arguments = ["run", str(fleet), "-", "--output", "results"]
    first = CliRunner().invoke(main, [*arguments, "--only", "job-3"], input=lines)
    assert first.exit_code == 0, first.output
    kept = Path("results/resume/jobs.jsonl")
    assert [json.loads(line)["name"] for line in kept.read_text().splitlines()] == ["a", "b", "job-3"]
    second = CliRunner().invoke(main, ["run", "--resume", "results"])
    assert second.exit_code == 1, second.output
    states = {job["name"]: job["state"] for job in json.loads(Path("results/results.json").read_text())["jobs"]}
    assert states == {"a": "failed", "b": "skipped", "job-3": "succeeded"}
    assert not Path("results/resume").exists()
    third = CliRunner().invoke(main, ["run", "--resume", "results", "--rerun", "failed"])
    assert third.exit_code == 2
    assert "its jobs came from standard input" in third.stderr


def test_nothing_is_left_of_a_bad_stream(fleet: Path) -> None:
    """Neither results nor what was read before the mistake; and the file's own jobs are refused."""
    result = CliRunner().invoke(main, ["run", str(fleet), "-"], input='{"script": "true"}\n{}\n')
    assert result.exit_code == 2
    assert 'standard input: line 2 (job "job-2"): it has nothing to run; give `script` or `command`' in result.stderr
    assert not Path("taskscaler-results").exists()
    fleet.write_text(fleet.read_text() + '[[jobs]]\nname = "a"\nscript = "true"\n')
    result = CliRunner().invoke(main, ["run", str(fleet), "-"], input='{"script": "true"}\n')
    assert "no jobs, because they come from standard input" in result.stderr
