"""What a run says of programs that it lacks, in its last lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import REQUIRED

ROOT = Path(__file__).parents[1]
SOME = [
    "tests/gitlab_jobs/test_peers.py",
    "tests/gitlab_jobs/test_real_runner.py",
    "-k",
    "cancels or alone",
]


@pytest.mark.slow
@pytest.mark.parametrize("insist", [False, True])
def test_a_run_without_peers_says_so(tmp_path: Path, insist: bool) -> None:  # noqa: FBT001  (a parameter)
    """It is skipped in plain words, and in continuous integration it is a failure."""
    given = {**os.environ, "CARGO_TARGET_DIR": str(tmp_path), REQUIRED: "1" if insist else ""}
    given.pop("GITLAB_RUNNER", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *SOME]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    remedy = "cargo build --manifest-path tests/peers/Cargo.toml"
    if insist:
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
        assert f"independent peers (a GitLab and a runner, in Rust) not found; {remedy}" in done.stdout
    else:
        assert done.returncode == pytest.ExitCode.OK, done.stdout
        assert f"independent peers (a GitLab and a runner, in Rust): 1 tests did not run; {remedy}" in done.stdout
    assert "the real gitlab-runner: 2 tests did not run; set GITLAB_RUNNER to its path" in done.stdout
