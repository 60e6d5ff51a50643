"""How benchmarks are run: what the machine lacks is skipped, what fails is told in the end, and the others run."""

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]

SCRIPTS = {
    "a_fails.py": "raise SystemExit('it broke')",
    "b_lacks.py": """
        from _needs import Need, run
        run(lambda: print("measured"), Need("moon", "wait for the night", lambda: False))
        """,
    "c_lacks_later.py": """
        import pytest
        from _needs import run
        run(lambda: pytest.skip("dockerd does not start here"))
        """,
    "d_is_well.py": """
        from _figures import report
        from _needs import Need, run
        run(lambda: report("figure", 1.0, "s", None), Need("air", "breathe", lambda: True))
        """,
}


def bench(directory: Path, *scripts: str) -> "subprocess.CompletedProcess[str]":
    """Run these as the benchmarks of a workspace of their own."""
    (directory / "benchmarks").mkdir()
    shutil.copy(ROOT / "noxfile.py", directory)
    for helper in (ROOT / "benchmarks").glob("_*.py"):
        shutil.copy(helper, directory / "benchmarks")
    for name in scripts:
        (directory / "benchmarks" / name).write_text(dedent(SCRIPTS[name]))
    command = [sys.executable, "-m", "nox", "-s", "bench"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_what_the_machine_lacks_is_skipped_and_the_others_run(tmp_path: Path) -> None:
    """With a line that says what is missing and what to do, and no traceback."""
    done = bench(tmp_path, "b_lacks.py", "c_lacks_later.py", "d_is_well.py")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "b_lacks.py skipped: this machine has no moon; wait for the night" in said
    assert "c_lacks_later.py skipped: dockerd does not start here" in said
    assert '{"name": "figure", "value": 1.0, "unit": "s", "target": null}' in said
    assert "Traceback" not in said
    assert "measured" not in said


def test_a_benchmark_that_fails_is_told_after_the_others_have_run(tmp_path: Path) -> None:
    """It is a failure all the same."""
    done = bench(tmp_path, "a_fails.py", "d_is_well.py")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert '"figure"' in said
    assert "these benchmarks failed: a_fails.py" in said


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "benchmarks").glob("[!_]*.py")))
def test_every_benchmark_that_starts_something_says_what_it_needs(script: str) -> None:
    """So that it is skipped where that is missing."""
    text = (ROOT / "benchmarks" / script).read_text()
    assert "from _needs import" in text or "from tests" not in text
