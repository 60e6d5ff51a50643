"""The page of the package: its programs run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "packages" / "gitlab-jobs" / "README.md"
PROGRAMS = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text())


@pytest.mark.parametrize(("number", "printed"), [(0, "17 0-31 crc32:"), (1, "success b'hello\\n'")])
def test_a_program_of_the_page_runs(number: int, printed: str, tmp_path: Path) -> None:
    """In an empty directory, with what it says it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[number]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(printed)
    assert len(PROGRAMS) == 2
