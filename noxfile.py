"""Checks of the whole workspace, in the environment that ``uv run nox`` has just brought up to date."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "none"  # uv run has synced everything, pinned; a second environment costs minutes
nox.options.sessions = ["lint", "types", "tests"]

SKIPPED = 77
"""What a benchmark exits with that needs something which the machine lacks; see ``benchmarks/_needs.py``."""

COMPILED = {"PYTHONDONTWRITEBYTECODE": None, "PYTHONPYCACHEPREFIX": str(Path(".nox/bytecode").absolute())}
"""Keep what Python compiles, apart from the sources: without, each of the suite's thousands of processes compiles all
that it imports anew, and each worker rewrites the assertions of every test."""

ON_ALL_CORES = (f"--numprocesses={3 * (os.cpu_count() or 1) + 2}", "--durations=10")
"""Three workers a core, because most tests wait most of the time, and two more, since some wait for one another: of
what two cores could do, a third was idle with four, and a sixth with six. Which tests stay together,
``tests/conftest.py`` says."""

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""Those that the packages are for."""

MACHINES = (
    "tests/fleeting/test_messages.py",
    "tests/fleeting/test_plan_machine.py",
    "tests/fleeting/test_static_assignments.py",
    "tests/fleeting_exec/test_requests.py",
    "tests/gitlab_jobs/test_job_machine.py",
    "tests/job_steps/test_once.py",
    "tests/taskscaler/test_batch.py",
    "tests/taskscaler/test_core_machine.py",
    "tests/taskscaler/test_ledger_machine.py",
    "tests/taskscaler/test_page_view.py",
    "tests/taskscaler/test_serve_clients.py",
    "tests/taskscaler/test_serve_kept_bound.py",
    "tests/taskscaler_gitlab/test_custom_contract.py",
    "tests/taskscaler_gitlab/test_dispatch.py",
    "tests/taskscaler_gitlab/test_relay_machine.py",
    "tests/taskscaler_gitlab/test_switch.py",
    "tests/taskscaler_gitlab/test_upstreams.py",
)
"""The state machines, whose examples in the suite are always the same."""

SEEDS = range(1, 7)
"""Those of other examples for them."""

A_CORE_EACH = f"--numprocesses={os.cpu_count() or 1}"
"""A worker a core, for what waits for nothing."""

TWO_A_CORE = f"--numprocesses={2 * (os.cpu_count() or 1)}"
"""Two workers a core, for what waits for half of its time and must not wait for the others, too."""


def _run_pytest(session: nox.Session, *args: str) -> None:
    """Run tests, and run those that failed and use real processes again, two at a time; see ``tests/flaky.py``."""
    failures = Path(".nox/failures.json").absolute()
    failures.unlink(missing_ok=True)
    try:
        session.run("pytest", *args, f"--write-failures={failures}", env=COMPILED)
    except CommandFailed:
        if not failures.exists():
            raise
        session.run("pytest", *args, "--numprocesses=2", f"--repeat-failures={failures}", env=COMPILED)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the whole suite on all cores; arguments after ``--`` go to pytest."""
    _run_pytest(session, *ON_ALL_CORES, *session.posargs)


@nox.session
def bare(session: nox.Session) -> None:
    """Run the tests that start programs where there is only Python, a shell, coreutils and git."""
    session.run("python", "-m", "tests.bare", *ON_ALL_CORES, *session.posargs, env=COMPILED)


@nox.session
def quick(session: nox.Session) -> None:
    """Run the suite without the slow end-to-end tests."""
    _run_pytest(session, *ON_ALL_CORES, "-m", "not slow", *session.posargs)


@nox.session
def pythons(session: nox.Session) -> None:
    """Run ``quick`` on each Python that this machine has; arguments after ``--`` are versions or paths of others."""
    uv = os.environ.get("UV", "uv")  # uv run tells where it is
    env = {**COMPILED, "UV_PYTHON_DOWNLOADS": "never"}
    for python in session.posargs or PYTHONS:
        found = session.run(uv, "python", "find", python, env=env, external=True, silent=True, success_codes=[0, 1, 2])
        if not Path(str(found).strip()).is_file():
            session.warn(f"there is no Python {python} here; its tests are left out")
            continue
        command = ("pytest", *ON_ALL_CORES, "-m", "not slow")
        session.run(uv, "run", "--isolated", "--python", python, *command, env=env, external=True)


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of source and tests."""
    session.run("mypy", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format."""
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")


@nox.session
def build(session: nox.Session) -> None:
    """Build a wheel and an sdist of every package into ``dist``, and check them as an index will."""
    uv = os.environ.get("UV", "uv")
    shutil.rmtree("dist", ignore_errors=True)
    session.run(uv, "build", "--all-packages", "--out-dir", "dist", external=True)
    session.run("twine", "check", "--strict", *map(str, sorted(Path("dist").glob("*-*"))))


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into ``site``: ``uv run --group docs nox -s docs``; a warning is an error."""
    session.run("pytest", "-q", "tests/test_workspace.py", "-k", "pinned", env=COMPILED)
    session.run("python", "-m", "docs.site.build", "site")


@nox.session
def chaos(session: nox.Session) -> None:
    """Play stories of a fleet in trouble, in virtual time; arguments after ``--`` replace ``--fresh 50000``."""
    session.run("python", "-m", "tests.chaos", *(session.posargs or ["--fresh", "50000"]), env=COMPILED)


@nox.session
def later(session: nox.Session) -> None:
    """Run what the suite leaves out or samples, and more stories; arguments after ``--`` replace ``--seeds 100:700``.

    With two workers a core, for whole pipelines and installations have time limits of others' making. Stories take
    nothing but a core, and have what these leave of it.
    """
    command = ("nice", sys.executable, "-m", "tests.chaos", *(session.posargs or ["--seeds", "100:700"]))
    env = {key: value for key, value in {**os.environ, **COMPILED}.items() if value is not None}
    with subprocess.Popen(command, env=env) as stories:  # noqa: S603  (our own)
        try:
            _run_pytest(session, TWO_A_CORE, "--durations=10", "--later")
        except BaseException:
            stories.terminate()
            raise
    if stories.returncode:
        session.error("a story broke a promise")


@nox.session
def full(session: nox.Session) -> None:
    """Run in full what the suite has a part of; arguments after ``--`` replace ``--seeds 0:2000``.

    On an idle machine, for half an hour, before a release and whenever what it is about has changed; continuous
    integration runs ``tests`` and ``later``.
    """
    _run_pytest(session, *ON_ALL_CORES, "--rest")
    for seed in SEEDS:
        other = ("--hypothesis-profile=fresh", f"--hypothesis-seed={seed}")
        session.run("pytest", A_CORE_EACH, *other, "-k", "runTest", *MACHINES, env=COMPILED)
    session.run("python", "-m", "tests.chaos", *(session.posargs or ["--seeds", "0:2000"]), env=COMPILED)


@nox.session
def bench(session: nox.Session) -> None:
    """Run every benchmark; each prints its results as JSON, one line each, or why this machine cannot run it."""
    failed = []
    for script in sorted(Path("benchmarks").glob("[!_]*.py")):
        try:
            session.run("python", str(script), success_codes=[0, SKIPPED])
        except CommandFailed:  # the others are worth running all the same
            failed.append(script.name)
    if failed:
        session.error(f"these benchmarks failed: {', '.join(failed)}")


@nox.session
def pictures(session: nox.Session) -> None:
    """Make the pictures of the documentation anew; unless something has changed, they come out as they were."""
    session.run("python", "docs/pictures/make.py")
