"""Every example, and every program in the documentation that needs no cloud, does what its reader expects."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.leftovers import environment
from tests.taskscaler.otlp import receiving

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SCRIPTS = {
    "scripts/hello.py": r"hello from \S+\n",
    "scripts/words.py": r"(counted \w+\.py\n){6}(\d+ times '\w+', which has \d+ letters\n){3}",
}
"""Those that run by themselves to an end, and what they print."""

ELSEWHERE = {
    "connector/src/fleeting_here/__init__.py": "tests/conformance/test_connectors.py",
    "custom-runner/runner.py": "below: it runs until it is told to end",
    "quickstart/measure.py": "test_quickstart.py",
    "quickstart/report.py": "test_quickstart.py",
    "scripts/count.py": "sent along by words.py",
    "scripts/print_traces.py": "tests/taskscaler/test_traces.py",
}
"""The others, and where they are run."""

PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def snippets(page: Path) -> list[str]:
    """The programs of a page that a reader can run as they are: they can be compiled, and need no fleet but `local`."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [block for block in blocks if 'fleeting.load("local"' in block and is_program(block)]


def is_program(block: str) -> bool:
    """Whether it could be a file of its own."""
    try:
        compile(block, "snippet", "exec")
    except SyntaxError:
        return False
    return True


PROGRAMS = {
    f"{page.relative_to(ROOT)}-{number}": program
    for page in PAGES
    for number, program in enumerate(snippets(page), start=1)
}


def run(command: Sequence[str | Path], home: Path) -> str:
    """Run a program to its end; returns what it printed."""
    done = subprocess.run(
        command,
        env=environment(home),
        cwd=home.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_in_the_documentation_runs_as_printed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """It ends well and says something; one that sends traces has somebody who receives them."""
    script = tmp_path / "program.py"
    script.write_text(program)
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        assert run([sys.executable, script], home)
        assert bool(receiver.spans) == ("observers.traces" in program)


def test_the_readme_begins_with_a_script_of_ten_lines(home: Path, tmp_path: Path) -> None:
    """What is promised there: a command on an instance, in ten lines that know nothing of async."""
    program = snippets(ROOT / "README.md")[0]
    assert len(program.splitlines()) == 10
    script = tmp_path / "program.py"
    script.write_text(program)
    assert "async" not in program.replace("taskscaler.sync", "")
    assert run([sys.executable, script], home) == run(["uname", "-a"], home)


@pytest.mark.parametrize(("script", "output"), SCRIPTS.items(), ids=SCRIPTS)
def test_an_example_runs(home: Path, script: str, output: str) -> None:
    """It ends well and prints what it should."""
    assert re.fullmatch(output, run([sys.executable, EXAMPLES / script], home))


def test_no_example_is_forgotten() -> None:
    """Each is run by a test."""
    scripts = (path for path in EXAMPLES.rglob("*.py") if "puddle" not in path.parts)  # which has tests of its own
    there = {str(path.relative_to(EXAMPLES)) for path in scripts}
    assert there == SCRIPTS.keys() | ELSEWHERE.keys()


def test_the_custom_runner_fits_on_a_screen() -> None:
    """A sketch has at most 80 lines."""
    assert len((EXAMPLES / "custom-runner" / "runner.py").read_text().splitlines()) <= 80


def start(home: Path, *command: str | Path) -> "subprocess.Popen[str]":
    """Start a program of the custom runner's: itself, or a GitLab for it."""
    return subprocess.Popen(
        [sys.executable, *command],
        env=environment(home),
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def gitlab(home: Path) -> Iterator[tuple["subprocess.Popen[str]", str, str]]:
    """A GitLab with the custom runner's jobs: its process, its address and the token for it."""
    main = "from gitlab_jobs.cli import main; main()"
    with start(home, "-c", main, "fake", EXAMPLES / "custom-runner" / "jobs.toml") as process:
        url, token, _ = (line.split()[-1] for line in lines(process, 3))
        yield process, url, token
        process.kill()


def lines(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """Read so many lines of what it prints."""
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_the_custom_runner_runs_jobs_and_drains(home: Path) -> None:
    """All end as their file says; told to end, it asks for no more."""
    with gitlab(home) as (desk, url, token):
        process = start(home, EXAMPLES / "custom-runner" / "runner.py", url, token)
        assert desk.wait() == 0, desk.communicate()
        process.send_signal(signal.SIGTERM)
        said, wrong = process.communicate()
    assert (process.returncode, wrong) == (0, "")
    ends = {"first": "success", "second": "success", "third": "failed", "fourth": "success"}
    assert sorted(said.splitlines()) == sorted(f"{name} {state} reported" for name, state in ends.items())


def test_the_custom_runner_ends_at_the_second_interrupt(home: Path) -> None:
    """Without leaving an instance."""
    with gitlab(home) as (_, url, token):
        process = start(home, EXAMPLES / "custom-runner" / "runner.py", url, token)
        lines(process, 1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode in (0, -signal.SIGINT, 1)
