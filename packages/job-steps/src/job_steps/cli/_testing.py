"""What ``job-steps test`` does."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import click

from job_steps._definitions import Function
from job_steps._errors import StepsInvalid
from job_steps._loading import read_text
from job_steps._printable import printable
from job_steps._reading import read_steps
from job_steps._results import StepResult
from job_steps._run import Variable
from job_steps._runner import run_steps
from job_steps._suites import SUFFIX, Test, differences, read_tests


def run_tests(directory: Path, *, only: str, as_json: bool, timeout: float) -> int:
    """Run all tests below a directory; returns the exit status."""
    suites = [(file, _function(file), read_tests(read_text(str(file)), source=str(file))) for file in _files(directory)]
    wanted = [(file, function, each) for file, function, tests in suites for each in tests if only in each.name]
    if not wanted:
        why = f"whose name contains `{only}`" if suites else f"in {directory}; tests of func.yml go into func{SUFFIX}"
        click.echo(f"error: there are no tests {why}", err=True)
        return 2
    failed = 0
    with TemporaryDirectory(prefix="job-steps-cache-") as cache:
        for file, function, test in wanted:
            result, log = _run(function, test, file.parent, Path(cache), timeout)
            wrong = differences(test.expected, result, log)
            failed += bool(wrong)
            if as_json:
                click.echo(
                    json.dumps({"file": str(file), "name": test.name, "differences": wrong, **_told(result, log)})
                )
            else:
                _show(file, test, wrong, log)
    if not as_json:
        click.echo(f"{len(wanted) - failed} of {len(wanted)} {'test' if len(wanted) == 1 else 'tests'} passed")
    return 1 if failed else 0


def _told(result: StepResult, log: str) -> dict[str, object]:
    return {"log": log, "result": result.as_dict()}


def _show(file: Path, test: Test, wrong: list[str], log: str) -> None:
    """Print how a test went; of one that did not pass, where it is and what its steps printed."""
    click.echo(f"{'failed' if wrong else 'passed'}  {file.parent.name}: {test.name}")
    for each in wrong:
        click.echo(f"        {printable(each)}")
    if wrong:
        click.echo(f"        {file}:{test.line}")
        for line in log.splitlines():
            click.echo(f"        | {printable(line)}")


def _files(directory: Path) -> Iterator[Path]:
    """Find the files of tests; directories whose name begins with a dot are left out."""
    for where, below, names in os.walk(directory):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(where) / name for name in sorted(names) if name.endswith(SUFFIX))


def _function(tests: Path) -> Function:
    """Read the function that a file of tests is for."""
    file = tests.with_name(f"{tests.name.removesuffix(SUFFIX)}.yml")
    if not file.exists():
        raise StepsInvalid(f"there is no {file.name} beside it, which it would test", source=str(tests), line=1)
    return read_steps(read_text(str(file)), source=str(file))


def _run(function: Function, test: Test, directory: Path, cache: Path, timeout: float) -> tuple[StepResult, str]:
    """Run one test in an empty directory of its own."""
    log = bytearray()

    async def keep(data: bytes) -> None:
        if len(log) < _MAX_LOG:
            log.extend(data)

    with TemporaryDirectory(prefix="job-steps-test-") as base:
        work_dir = Path(base).resolve()
        for name, text in test.files.items():
            (work_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (work_dir / name).write_text(text)
        running = partial(
            run_steps,
            function,
            directory=directory,
            work_dir=work_dir,
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(work_dir), **test.env},
            variables=[Variable(key=key, value=value) for key, value in test.variables.items()],
            inputs=test.inputs,
            log=keep,
            cache=cache,
            timeout=timeout,
        )
        result = anyio.run(running)
    return result, log.decode(errors="replace")


_MAX_LOG = 16 * 1024 * 1024
"""Bytes that are kept of what a test prints."""
