"""What all tests share: both backends, and a guard that keeps them on this machine."""

import atexit
import fcntl
import gc
import ipaddress
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.strategies import text

from tests import flaky, needs, timeouts, undeclared
from tests.chaos.tally import Tally
from tests.golden import Golden
from tests.in_part import IN_PART, LATER, SAMPLED, is_in_part
from tests.one_backend import COLLECTED, IN_TURN, runs_of
from tests.peers import Absent, look_for_peers

if TYPE_CHECKING:
    from tests.fleeting_docker_engine.daemons import Daemon

WITH_DOCKER = (
    "tests/conformance/test_docker.py",
    "tests/e2e/test_docker.py",
    "tests/e2e/test_gitlab_runner.py::test_the_pipeline_ends_as_expected_in_containers",
    "tests/e2e/test_outliving.py::test_jobs_in_containers_outlive_the_command",
    "tests/e2e/test_tailored_memory.py",
    "tests/executor_docker/",
    "tests/fleeting_docker/",
    "tests/fleeting_docker_engine/",
    "tests/gitlab_jobs/test_real_runner_in_containers.py",
    "tests/job_steps/test_containers_on_docker.py",
    "tests/taskscaler_gitlab/test_real_sidecars_in_containers.py",
    "tests/taskscaler_gitlab/test_jobs_in_containers.py",
    "tests/taskscaler_gitlab/test_steps_in_containers.py",
    "tests/taskscaler_gitlab/test_tailored_memory.py",
)
"""Where the tests are that need a Docker daemon, as their ids begin."""

WITH_WHEELS = "tests/distributions/test_wheels.py"
"""Where the tests are that share an environment made of the built wheels."""

TOGETHER = {
    "docker": WITH_DOCKER,
    "wheels": (WITH_WHEELS,),
    "aws": ("tests/fleeting_aws/",),
    "aws e2e": ("tests/e2e/test_aws.py",),
    "azure": ("tests/conformance/test_azure.py", "tests/fleeting_azure/"),
    "gcp": ("tests/conformance/test_gcp.py", "tests/fleeting_gcp/"),
    "prometheus": ("tests/e2e/test_prometheus.py",),
    "chromium": ("tests/e2e/test_page.py",),
    "guards": ("tests/test_guards.py",),
    "generated": ("tests/conformance/test_tutorial.py", "tests/fleeting/test_new_plugin.py"),
    "log events": ("tests/test_log_events.py",),
}
"""Where the tests are that share something expensive; moto's server and the clouds' SDKs take seconds to start, and
mypy takes them for what a generated package imports. Guards are looked for in all tests. Of Prometheus there is one,
which watches one story, and of Chromium."""

COMPUTING = ("tests/chaos/",)
"""Where the tests are that wait for nothing."""

WHOLE_PROGRAMS = ("tests/e2e/",)
"""Where tests take seconds each, most of them waiting: they are over when three quarters of the others are, so that
what comes last is short, and no core idles while one of them ends."""

SOONER = 0.75
"""How far they are spread."""

LONG = (
    *WITH_DOCKER,
    WITH_WHEELS,
    "tests/taskscaler/test_core_machine.py::TestCoreMachine",
    "tests/taskscaler/test_ledger_machine.py::TestLedgerMachine",
    "tests/fleeting_exec/test_requests.py::TestBookkeeping",
    "tests/e2e/test_kept_leases.py",
    "tests/e2e/test_static_ssh.py",
    "tests/e2e/test_gitlab_runner.py",
    "tests/taskscaler_gitlab/test_beside_the_real_runner.py",
)
"""Where single tests take longest, or one worker has many: half a minute of computing or of waiting, or minutes with
one Docker daemon, would leave cores idle at the end of the suite."""

SHORT = "/tmp"  # noqa: S108  (every Unix has it, and pytest makes private directories there)
"""Where temporary files are if the user's own place is a long way down, as on macOS: many tests listen on sockets in
their directories, whose addresses have room for about a hundred characters."""

MEMORY = "/dev/shm"  # noqa: S108  (as /tmp)
"""Where Linux keeps temporary files in memory. The tests sync thousands of journals and notes, and a disk takes 7 ms
for each; nothing here has to outlive the machine."""

ROOM = 6 << 30
"""Bytes that have to be free there: a worker writes a gibibyte at the most, and pytest keeps what three runs wrote."""

AUTHORITY = Path(__file__).with_name("authority.pem")
"""The only one that programs trust here unless a test says otherwise: it has signed nothing, and nobody has its key. To
read those that the system trusts takes a client 20 ms, of which thousands are made."""

_begun = count(1)
"""Counts the tests."""

_frozen_with = 0
"""So many modules were imported when the garbage collector was last spared what stays."""

YOUNG = 50_000
"""So many objects more than before, and the garbage collector looks at the new ones. Python's own 700 cost a tenth of
all that the workers compute, most of it in checks of the contract and of cores, for a few megabytes less."""

MANY_MODULES = 200
"""So many more since then are a cloud's SDK, or the like, which a test has imported."""

settings.register_profile(
    "workspace",
    derandomize=True,  # a red build is red for everybody
    deadline=None,  # how fast the machine is today is no property of the code
    suppress_health_check=[HealthCheck.too_slow],  # the same
    print_blob=True,
)
settings.load_profile("workspace")
settings.register_profile("fresh", parent=settings.get_profile("workspace"), derandomize=False, database=None)
"""With ``--hypothesis-seed``, other examples than the suite's, and the same each time: see ``nox -s full``."""


def _is_roomy_memory(place: str) -> bool:
    """Whether files there are kept in memory, there is room for all that the tests write, and programs may run."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    roomy = found.f_bavail * found.f_frsize >= ROOM
    return roomy and not found.f_flag & os.ST_NOEXEC and os.access(place, os.W_OK | os.X_OK)


gc.set_threshold(YOUNG, *gc.get_threshold()[1:])  # now: of what tests are collected into, all stays
atexit.register(gc.freeze)  # at its end, Python would look through all of it several times
os.environ.setdefault("SSL_CERT_FILE", str(AUTHORITY))
if "TMPDIR" not in os.environ and _is_roomy_memory(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY
if len(tempfile.gettempdir()) > 20 and os.access(SHORT, os.W_OK | os.X_OK):
    os.environ["TMPDIR"] = tempfile.tempdir = SHORT

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell runs in the background, and all it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run each asynchronous test on both backends."""
    backend: str = request.param
    return backend


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether everything is wanted of which the suite has a part."""
    wanted: bool = pytestconfig.getoption("--full")
    return wanted


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> Golden:
    """The prose that users read, to compare with."""
    return Golden(update=pytestconfig.getoption("--golden-update"))


@pytest.fixture(scope="session", autouse=True)
def stay_on_this_machine() -> None:
    """Make every connection to another machine fail the test; once installed, an audit hook stays."""
    sys.addaudithook(_refuse_other_machines)


@pytest.fixture(scope="session", autouse=True)
def state_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep out of the user's directory for state, where fleets of theirs may live, and another worker's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state", numbered=False)))
        yield


@pytest.fixture
def what_mypy_knows(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mypy keep what it learns of all that is installed, for other tests of this worker."""
    monkeypatch.setenv("MYPY_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "mypy"))


@pytest.fixture(scope="session")
def docker() -> "Iterator[Daemon]":
    """Run a Docker daemon, with an image to use, for all tests that need one."""
    from tests.fleeting_docker_engine.daemons import daemon

    with daemon() as running:
        yield running


@pytest.fixture
async def nothing_left(docker: "Daemon") -> AsyncIterator[None]:
    """Look whether all containers, networks and volumes of the daemon are as before."""
    before = await docker.holdings()
    yield
    assert await docker.holdings() == before


def _refuse_other_machines(event: str, args: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        sock, address = args
        if sock.family in (socket.AF_INET, socket.AF_INET6) and address and not _is_here(address[0]):
            pytest.fail(f"{event} to {address}: tests stay on this machine")
    elif event == "socket.getaddrinfo" and args[0] and not _is_here(args[0]):
        pytest.fail(f"{event} of {args[0]!r}: tests stay on this machine")


def _is_here(host: str | bytes) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in ("", "localhost", "0.0.0.0", "::"):  # noqa: S104  (to connect to any address is to connect to this host)
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run be asked for everything of which the suite has a part."""
    parser.addoption(
        "--full",
        action="store_true",
        help="play all crash points, not some of each place, and run what is long in its whole length, and all of it on"
        " both backends",
    )
    parser.addoption(
        "--rest",
        action="store_true",
        help="run in full what a run without options has a part of, and what it leaves to the other backend; nothing"
        " else",
    )
    parser.addoption(
        "--later",
        action="store_true",
        help="run what a run without options has no part of, and what it only has samples of, and nothing else",
    )
    flaky.add_options(parser)
    parser.addoption("--golden-update", action="store_true", help="write prose into tests/golden instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    """Add up what the stories meet, and who was not there, where the reports of all workers come together.

    What is left out of the suite is looked for only where there is any, unless places are named.
    """
    if config.getoption("--rest"):
        config.option.full = True
    if (config.getoption("--rest") or config.getoption("--later")) and not _named(config):
        later = [each.partition("::")[0] for each in (*LATER, *SAMPLED)]
        places = [*IN_PART, *IN_TURN, *later] if config.getoption("--rest") else later
        config.args = [*dict.fromkeys(places)]
    for plugin in (timeouts, needs, undeclared):
        config.pluginmanager.register(plugin)
    flaky.register(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Tally())
        config.pluginmanager.register(Absent())
        config.pluginmanager.register(needs.MissingPackages())


def _named(config: pytest.Config) -> list[str]:
    """The files and tests that were asked for, if any were."""
    return config.args if config.args_source is config.ArgsSource.ARGS else []


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Keep together what shares something expensive, and give everything else to whichever worker is free.

    By hand, since ``--dist loadgroup`` of pytest-xdist 3.8 writes the group into an attribute that pytest 9.2 does not
    read any more, and so keeps nothing together.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # which has no types
        def _split_scope(self, nodeid: str) -> str:
            return next((group for group, places in TOGETHER.items() if nodeid.startswith(places)), nodeid)

        def mark_test_complete(self, node: object, item_index: int, duration: float = 0) -> None:
            """Forget a scope that is done: xdist counts through all that the worker ever had, with each test."""
            nodeid = self.registered_collections[node][item_index]
            scope = self._split_scope(nodeid)
            tests = self.assigned_work[node][scope]
            tests[nodeid] = True
            if all(tests.values()):
                del self.assigned_work[node][scope]
            self._reschedule(node)

        def remove_node(self, node: object) -> str | None:
            """Give others what a worker that has crashed had before it, but for the test in which it did.

            xdist gives them that, too: they crash one after the other.
            """
            work = self.assigned_work[node]
            for scope, tests in work.items():
                for nodeid, is_done in tests.items():
                    if not is_done:
                        tests[nodeid] = True
                        if all(tests.values()):
                            del work[scope]
                        super().remove_node(node)
                        return str(nodeid)
            del self.assigned_work[node]
            return None

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every other worker collect from the end: the first two compile what the other one then need not."""
    report = yield
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if worker % 2 and isinstance(collector, pytest.Directory) and report.passed:
        report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let a worker for each core collect first, and the others once these are done.

    What the first have compiled, the others only read: in a fresh clone it takes each of them 8 s, and 4 s then. The
    very first also has hypothesis work out which characters there are in UTF-8, a second's work that it keeps on disk.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    if worker == 0 and "PYTEST_XDIST_WORKER" in os.environ:
        text().validate()
    with Path(__file__).open() as turn:
        with suppress(OSError):  # on some network's disk nothing can be locked
            if worker < (os.cpu_count() or 1):
                fcntl.flock(turn, fcntl.LOCK_SH)
            else:
                fcntl.flock(turn, fcntl.LOCK_EX)  # which waits for all who have it
                fcntl.flock(turn, fcntl.LOCK_UN)
        gc.disable()  # nearly all that is made now stays: to look through it again and again took a fifth of the time
        try:
            return (yield)
        finally:
            gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give one worker all tests that need a Docker daemon, begin with long ones, and mix what computes and what waits.

    Two daemons that start at once have waited for each other for a minute. Stories take nothing but a core, and most
    other tests wait for processes and time limits: one after the other, each leaves idle what the other lacks.
    """
    items.sort(key=lambda item: str(item.path))  # whichever way they were collected
    config.stash[COLLECTED] = runs = runs_of(items)
    everything = config.getoption("--full") or any("[" in each for each in config.args)  # it was asked for by name
    asked = {"--rest": runs.rest, "--later": runs.later}
    wanted = next((each for option, each in asked.items() if config.getoption(option)), None)
    if wanted is None:
        named = {(config.invocation_params.dir / each.partition("::")[0]).resolve() for each in _named(config)}
        suite = {*runs.suite, *(item for item in runs.later if item.path in named)}
        wanted = runs.all if everything else [item for item in runs.all if item in suite]
    if (repeated := flaky.repeated(config, runs.all)) is not None:
        wanted = repeated
    config.hook.pytest_deselected(items=[*{*items} - {*wanted}])
    items[:] = wanted
    for item in items:
        if "docker" in getattr(item, "fixturenames", ()) and not item.nodeid.startswith(WITH_DOCKER):
            raise pytest.UsageError(f"{item.nodeid} needs a Docker daemon; add its place to WITH_DOCKER in {__file__}")
        if is_in_part(item) and not item.nodeid.startswith(IN_PART):
            raise pytest.UsageError(
                f"{item.nodeid} has a part in the suite; add its place to IN_PART in tests/in_part.py"
            )
    if hasattr(config, "workerinput"):
        long = [item for item in items if item.nodeid.startswith(LONG)]
        computing = [item for item in items if item.nodeid.startswith(COMPUTING)]
        programs = [item for item in items if item.nodeid.startswith(WHOLE_PROGRAMS)]
        waiting = [item for item in items if not item.nodeid.startswith((*COMPUTING, *WHOLE_PROGRAMS))]
        places = [
            (upto * (number + 0.5) / len(part), item)
            for part, upto in ((computing, 1.0), (programs, SOONER), (waiting, 1.0))
            for number, item in enumerate(part)
            if not item.nodeid.startswith(LONG)
        ]
        items[:] = [*long, *(item for _, item in sorted(places, key=itemgetter(0)))]


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Let a worker report whatever a test has printed or compared; its connection takes no lone surrogates."""
    data = yield
    return None if data is None else {key: _encodable(value) for key, value in data.items()}


def _encodable(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_encodable(each) for each in value)
    return value


def pytest_collection_finish() -> None:
    """Spare the garbage collector what stays until the end anyway: the tests, and the clouds' SDKs they import.

    Some tests collect hundreds of times to see what is left behind, and each time took a second. The little that does
    not stay may as well: to find it takes each worker half a second.
    """
    global _frozen_with  # noqa: PLW0603  (of the process, as what is frozen is)
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
    _frozen_with = len(sys.modules)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Look whether programs are there that a test needs, and now and then through what is frozen.

    Checks of the contract freeze more, and not all of it stays. Also once a test has imported an SDK: that stays, and
    tests that follow would collect it many times.
    """
    look_for_peers(item)
    if next(_begun) % 500 == 0 or len(sys.modules) > _frozen_with + MANY_MODULES:
        gc.unfreeze()
        gc.collect()
        pytest_collection_finish()
