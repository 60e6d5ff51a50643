"""The jobs of a stream: checked as they come, kept in a file, and made when somebody looks.

The file is the batch's own, one JSON object on a line for each job with all that it says itself, so that a later
command finds the jobs there. Of a job nothing is in memory but its name and where its line is.
"""

import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import join
from typing import Any, BinaryIO

from attrs import asdict, evolve, fields_dict

from fleeting import ConfigError
from fleeting.config import quoted
from fleeting.errors import ConfigProblem
from fleeting.plugins import has_surrogates, open_private, structure
from taskscaler._jobsfile._checks import absent_files, wrong_variables
from taskscaler._jobsfile._expansion import job_from, series_of
from taskscaler._jobsfile._needs import wrong_needs
from taskscaler._jobsfile._plugins import options_of_job, wrong_script
from taskscaler._jobsfile._records import Format, records_of
from taskscaler._jobsfile._tables import MOST_JOBS, Defaults, JobTable
from taskscaler.batch import Job, Plan, Planned
from taskscaler.batch._job import PlannedJobs
from taskscaler.batch._retries import as_retries, retries_from

MOST_PROBLEMS = 100
"""Mistakes after which no more of a stream is read."""

SOURCE = "standard input"

_NOT_HERE = ("copies", "matrix", "for_each", "max_parallel")
"""What makes several jobs of a table; here a line is a job."""

_STAND_IN = "true"
"""Of a job that has no script, so that all else of it is still checked."""

_NOTHING = ConfigProblem(path="", found="it has nothing to run", hint="give `script` or `command`")

_PLAIN = frozenset({"name", "script", "env"})


class StreamJobs(PlannedJobs):
    """Jobs of a file of ours, in the order of its lines."""

    def __init__(self, path: Path, defaults: Defaults, directory: Path) -> None:
        """Read where the jobs are in the file, and what they are called.

        Args:
            path: The file that `keep` has written.
            defaults: What a job has that does not say otherwise.
            directory: What the jobs' files are relative to.

        Raises:
            OSError: It cannot be read.
            ValueError: It is damaged.
        """
        self._defaults = defaults
        self._directory = directory
        self._origin = str(directory.resolve())
        self._path = path
        self._retries = as_retries(defaults.retries)
        self._ends = array("Q")
        self._executors = set[str]()
        with path.open("rb") as lines:
            self._plan = Plan.of_groups(map(self._planned, lines))

    @property
    def executors(self) -> frozenset[str]:
        """Names of the executors that the jobs use."""
        return frozenset(self._executors)

    def _make(self, number: int) -> Job:
        start = self._ends[number - 1] if number else 0
        with self._path.open("rb", buffering=0) as file:
            table = _table(json.loads(os.pread(file.fileno(), self._ends[number] - start, start)))
        options = options_of_job("", table, self._defaults, None, [])
        return job_from(
            table,
            self._defaults,
            options,
            self._directory,
            name=table.name,
            number=number,
            count=len(self),
            series=series_of(self._origin, table.name),
        )

    def _planned(self, line: bytes) -> tuple[Planned, tuple[str]]:
        self._ends.append((self._ends[-1] if self._ends else 0) + len(line))
        data = json.loads(line)
        self._executors.add(data.get("executor", self._defaults.executor))
        retries = retries_from(data["retries"]) if "retries" in data else self._retries
        like = Planned(
            name="", retries=retries, needs=tuple(data.get("needs", ())), when=data.get("when", "on_success")
        )
        return like, (data["name"],)


def keep(
    stream: BinaryIO,
    format_: Format | None,
    path: Path,
    *,
    defaults: Defaults,
    directory: Path,
    is_executor: Callable[[str], ConfigProblem | None],
) -> StreamJobs:
    """Read the jobs of a stream, check them, and keep them in a file.

    Args:
        stream: With a line, or a row, for each job.
        format_: None: it is seen from the first line.
        path: Where they are kept; there is nothing yet.
        defaults: What a job has that does not say otherwise.
        directory: What the jobs' files are relative to.
        is_executor: Says what is wrong with the name of an executor.

    Raises:
        ConfigError: With the mistakes of all lines, as many as are reported.
        OSError: They cannot be kept.
    """
    problems: list[ConfigProblem] = []
    numbers = array("Q")
    check = partial(_checked, defaults=defaults, directory=directory, is_executor=is_executor)
    with open(path, "wb", opener=open_private) as file:
        for number, record in records_of(stream, format_):
            if len(problems) >= MOST_PROBLEMS or len(numbers) == MOST_JOBS:
                problems.append(_stopped(number, len(numbers)))
                break
            numbers.append(number)
            found, table = check(record, len(numbers))
            if table is None or found:
                problems += (_at(number, table.name if table else "", problem) for problem in found)
            else:
                file.write(_line(table))
        file.flush()
        os.fsync(file.fileno())
    if not numbers and not problems:
        problems.append(ConfigProblem(path="", found="no jobs", expected="a line for each job"))
    if problems:
        raise ConfigError(problems, source=SOURCE)
    jobs = StreamJobs(path, defaults, directory)
    if wrong := [*_wrong_together(jobs.plan, numbers)][:MOST_PROBLEMS]:
        raise ConfigError(wrong, source=SOURCE)
    return jobs


def _checked(
    record: Mapping[str, object] | ConfigProblem,
    number: int,
    *,
    defaults: Defaults,
    directory: Path,
    is_executor: Callable[[str], ConfigProblem | None],
) -> tuple[Sequence[ConfigProblem], JobTable | None]:
    """Give what is wrong with a record, and the job that it is."""
    if isinstance(record, ConfigProblem):
        return [record], None
    problems: list[ConfigProblem] = []
    may_lack_script = bool(defaults.options) or "options" in record
    data = _with_script({"name": f"job-{number}", **record}, problems, may_lack_script=may_lack_script)
    table = _plain(data) or structure(data, JobTable, problems=problems)
    problems += wrong_variables(table.env, "")
    if table.files:
        problems += absent_files(table.files, "", directory)
    if table.executor and (problem := is_executor(table.executor)):
        problems.append(problem)
    wishes = options_of_job("", table, defaults, None, problems) if table.options or defaults.options else {}
    wrong = wrong_script(table, wishes.get(table.executor or defaults.executor))
    if wrong is not None and not problems:
        problems.append(_NOTHING if table.script is None else wrong)
    return problems, table


def _with_script(data: dict[str, Any], problems: list[ConfigProblem], *, may_lack_script: bool) -> Mapping[str, Any]:
    """Let a job say its script as a command, too: as text, or as a program and its arguments."""
    for key in _NOT_HERE:
        if key in data:
            del data[key]
            problems.append(
                ConfigProblem(path=key, found="a key that makes several jobs", hint="write a line for each job")
            )
    if "command" not in data and "script" not in data and not may_lack_script:
        problems.append(_NOTHING)
        data["script"] = _STAND_IN
    if "command" in data:
        command = data.pop("command")
        if "script" in data:
            problems.append(ConfigProblem(path="command", found="script, too", hint="remove one of them"))
        elif isinstance(command, list) and command and all(isinstance(each, str) for each in command):
            data["script"] = join(command)
        elif isinstance(command, str):
            data["script"] = command
        else:
            expected = "a string, or an array of a program and its arguments"
            problems.append(ConfigProblem(path="command", found="something else", expected=expected))
            data["script"] = _STAND_IN
    return data


def _plain(data: Mapping[str, Any]) -> JobTable | None:
    """Make a job that says no more than most do, fifty times as fast; None: it needs a closer look."""
    env = data.get("env", {})
    texts = (data.get("name"), data.get("script"), *(env.values() if isinstance(env, dict) else (None,)))
    if data.keys() <= _PLAIN and all(
        isinstance(text, str) and "\0" not in text and not has_surrogates(text) for text in texts
    ):
        try:
            return JobTable(**data)
        except ValueError:
            pass
    return None


def _wrong_together(plan: Plan, numbers: Sequence[int]) -> Iterator[ConfigProblem]:
    repeated = False
    for earlier, later in plan.names.repeated():
        repeated = True
        found = f"{quoted(plan.names[later])} is also the name of line {numbers[earlier]}"
        yield ConfigProblem(path=f"line {numbers[later]}: name", found=found, hint="give each job its own name")
    if not repeated:
        yield from wrong_needs(plan, lambda job: f"line {numbers[job]} (job {quoted(plan.names[job])}): needs", ())


def _at(number: int, name: str, problem: ConfigProblem) -> ConfigProblem:
    """Say at which line a problem is, and with which job."""
    job = f" (job {quoted(name)})" if name else ""
    return evolve(problem, path=problem.path.lstrip("."), record=f"line {number}{job}")


def _stopped(number: int, jobs: int) -> ConfigProblem:
    if jobs == MOST_JOBS:
        return ConfigProblem(path=f"line {number}", found="one more job", expected=f"at most {MOST_JOBS} jobs")
    return ConfigProblem(
        path=f"line {number}", found="more lines", expected="fewer mistakes before them; they were not read"
    )


def _line(table: JobTable) -> bytes:
    """Give a job as its line in the file: what it says itself."""
    said = asdict(
        table, recurse=False, filter=lambda each, value: value not in (None, (), {}, _DEFAULTS.get(each.name))
    )
    if table.retries is not None:
        said["retries"] = as_retries(table.retries).data()
    return json.dumps(said).encode() + b"\n"


def _table(data: Mapping[str, Any]) -> JobTable:
    """Read what `_line` has given."""
    tuples = {key: tuple(data[key]) for key in ("files", "artifacts", "needs") if key in data}
    retries = {"retries": retries_from(data["retries"])} if "retries" in data else {}
    return JobTable(**{**data, **tuples, **retries})


_DEFAULTS = {"when": fields_dict(JobTable)["when"].default}
