"""Every connector keeps the contract: those of ours, and the example's, which is found as one that was installed."""

import os
import re
import shutil
import signal
import socket
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

import fleeting
from fleeting import ConnectInfo
from fleeting.connectors.ssh import MemoryHostKeys, SshConnector
from fleeting.connectors.winrm import WinrmConnector
from fleeting.plugins import load_connector
from fleeting.testing import (
    CONNECTOR_CHECKS,
    DETACHED_CHECKS,
    FORWARDING_CHECKS,
    ConnectorCheck,
    ConnectorConformance,
    DetachedCheck,
    DetachedConformance,
    DialInstance,
    ForwardingCheck,
    ForwardingConformance,
    MakeDial,
)
from tests.fleeting import local_agents
from tests.fleeting.sshd import configured, sshd
from tests.fleeting.winrm_host import Host, winrm_host

WITHOUT_SIGNALS = [check for check in CONNECTOR_CHECKS if check.__name__ != "check_the_signal_is_reported"]
"""What applies to WinRM: it tells an exit status in any case."""

BACKENDS = ("asyncio", "trio")
EXAMPLE = Path(__file__).parents[2] / "examples" / "connector"


class TestLocal(DetachedConformance, ForwardingConformance):
    """The `local` connector, to a real agent."""

    @pytest.fixture
    def make_dial(self, tmp_path: Path) -> MakeDial:
        """Start an instance, and leave none."""

        @asynccontextmanager
        async def make() -> AsyncIterator[DialInstance]:
            async with local_agents.opened(tmp_path) as group:
                (instance,) = await local_agents.started(group)
                info = await group.connect_info(instance)
                yield lambda: fleeting.dial(info)

        return make


class TestSsh(DetachedConformance, ForwardingConformance):
    """The `ssh` connector, to OpenSSH's own server."""

    @pytest.fixture
    def make_dial(self, tmp_path: Path) -> MakeDial:
        """Start a server, and leave none."""

        @asynccontextmanager
        async def make() -> AsyncIterator[DialInstance]:
            connector = SshConnector(MemoryHostKeys())
            with sshd(tmp_path) as server:
                yield lambda: connector.dial(server.info, configured())

        return make


@pytest.fixture(scope="session")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Run a server for all checks, which takes longer to start than most of them."""
    with winrm_host(tmp_path_factory.mktemp("windows")) as found:
        yield found


class TestWinrm(ConnectorConformance):
    """The `winrm` connector, to a server of ours whose commands are this host's."""

    @pytest.fixture
    def make_dial(self, windows: Host) -> MakeDial:
        """Leave nothing running there."""

        @asynccontextmanager
        async def make() -> AsyncIterator[DialInstance]:
            connector = WinrmConnector()
            yield lambda: connector.dial(windows.info, configured())
            assert (await windows.control())["shells"] == 0

        return make

    @pytest.mark.parametrize("check", WITHOUT_SIGNALS, ids=lambda check: check.__name__.removeprefix("check_"))
    async def test_contract(self, check: ConnectorCheck, make_dial: MakeDial) -> None:
        """All clauses hold, except that there are no signals to tell of."""
        await super().test_contract(check, make_dial)


class TestExample(ConnectorConformance):
    """The connector of ``examples/connector``, by its entry point."""

    @pytest.fixture
    def make_dial(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeDial:
        """Install it, as far as Python can tell."""
        install(EXAMPLE, tmp_path / "site", monkeypatch)
        (tmp_path / "instance").mkdir()
        info = ConnectInfo(id="here", protocol="here", internal_addr=str(tmp_path / "instance"))

        @asynccontextmanager
        async def make() -> AsyncIterator[DialInstance]:
            yield lambda: fleeting.dial(info)

        return make


BREAKS = {
    "outputs_and_status_are_reported": ("process.stderr, invocation.stderr)", "process.stderr, invocation.stdout)"),
    "the_signal_is_reported": ("if status < 0", "if status is None"),
    "no_shell_touches_a_list": ("else command", 'else ["/bin/sh", "-c", " ".join(command)]'),
    "bytes_pass_unchanged": ("await sink(chunk)", "await sink(chunk.decode(errors='replace').encode())"),
    "input_is_fed_as_it_is_read": ("with feeding, suppress(anyio.BrokenResourceError):", "with feeding:"),
    "unread_input_is_closed": (
        "async with reading(arriving(invocation.stdin)) as chunks:",
        "for chunks in [globals().setdefault('LEFT', aiter(arriving(invocation.stdin)))]:",  # not for asyncio to close
    ),
    "environment_and_directory": (", **invocation.env}", "}"),
    "the_environment_is_nobodys_argument": (
        "else command",
        "else [*'sh -c'.split(), 'shift; \"$@\"; :', *map('='.join, invocation.env.items()), *command]",
    ),
    "what_cannot_be_started_exits_with_127": ("exit_status=127", "exit_status=1"),
    "check_raises_for_a_failure_only": ("exit_status=status)", "exit_status=0)"),
    "output_is_heard_while_the_command_runs": (
        "async for chunk in pipe:",
        "for chunk in [each async for each in pipe]:",
    ),
    "a_slow_sink_holds_the_command_up": ("await sink(chunk)", "tasks.start_soon(sink, chunk)"),
    "collecting_has_a_limit": (
        "await sink(chunk)",
        "sink.data.extend(chunk) if hasattr(sink, 'data') else await sink(chunk)",
    ),
    "a_failing_sink_ends_the_command": ("raise group.exceptions[0] from None", "raise"),
    "cancelling_ends_the_process_tree_first": ("os.killpg(process.pid, SIGKILL)", "process.kill()"),
    "commands_run_side_by_side": ("exit_status=status)", "exit_status=min(status, 3))"),
    "tunnels_lead_somewhere_or_are_unsupported": (
        'protocol = "the protocol here"',
        "protocol = property(lambda _: 1 / 0)",
    ),
    "the_end_is_reported": ('raise Unreachable("the', 'print("the'),
    "users_do_not_disturb_each_other": ("self.closed = anyio.Event()", "self.closed = SHARED"),
}
"""What could be wrong with the example, by the check that finds it."""


def test_every_check_has_teeth() -> None:
    """Each is shown a connector that does not keep its clause."""
    assert {f"check_{name}" for name in BREAKS} == {check.__name__ for check in CONNECTOR_CHECKS}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("check", "anyio_backend"),
    list(zip(CONNECTOR_CHECKS, cycle(BACKENDS), strict=False)),
    ids=[check.__name__.removeprefix("check_") for check in CONNECTOR_CHECKS],
)
async def test_a_check_finds_what_is_wrong(tmp_path: Path, check: ConnectorCheck) -> None:
    """The example passes it, and does not once a line is changed: on one backend, in turn, as mutants of groups."""
    source = (EXAMPLE / "src" / "fleeting_here" / "__init__.py").read_text()
    line, wrong = BREAKS[check.__name__.removeprefix("check_")]
    assert line in source
    info = ConnectInfo(id="here", protocol="here", internal_addr=str(tmp_path))
    broken: dict[str, Any] = {"SHARED": anyio.Event()}
    exec(source.replace(line, wrong), broken)  # noqa: S102  (our own example)
    with pytest.raises(Exception), anyio.fail_after(20):  # noqa: B017, PT011  (whatever the break leads to)
        await check(lambda: broken["HereConnector"]().dial(info, configured()))


SCRIPTS = Path(fleeting.connectors.__file__).with_name("_detached_scripts.py")
DETACHING = SCRIPTS.with_name("_detached_posix.py")

BREAKS_OF_DETACHED = {
    "output_and_outcome_are_kept": ("    ) 2>&1\n    _f_status=$?", "    ) 2>&1\n    _f_status=0"),
    "input_environment_and_directory": ('eval "$_f_env"', ":"),
    "no_signal_is_ignored": ("    (\n        register", "    trap '' INT\n    (\n        register"),
    "secrets_are_nobodys_argument": (r'\n{START}"', r'\n# {exports}\n{START}"'),
    "it_outlives_its_connection": ('setsid /bin/sh -c "$1"', '/bin/sh -c "$1"'),
    "several_may_be_attached": ('tail -c "+', 'mkdir -- "$at:mine" || exit; tail -c "+'),
    "a_name_is_used_once": ("raise NameTaken(name)", "return"),
    "starting_attached_reports_the_start_first": ("            self._begin()\n", ""),
    "what_was_started_attached_goes_on": ("$(setsid /bin/sh", "$(/bin/sh"),
    "output_is_kept_up_to_a_limit": ('ulimit -f "$_f_blocks"', ":"),
    "killing_ends_the_process_tree": ("kill -KILL $all", ":"),
    "commands_are_listed_until_they_are_forgotten": ("{{ state=running; groups", "{{ groups"),
    "unknown_and_impossible_names_are_refused": ("checked_name(name), mark", "name, mark"),
}
"""What could be wrong with how POSIX hosts run detached commands, by the check that finds it."""


def test_every_check_of_detached_commands_has_teeth() -> None:
    """Each is shown a connection that does not keep its clause."""
    assert {f"check_{name}" for name in BREAKS_OF_DETACHED} == {check.__name__ for check in DETACHED_CHECKS}


@pytest.mark.anyio
@pytest.mark.needs("setsid")
@pytest.mark.parametrize(
    ("check", "anyio_backend"),
    list(zip(DETACHED_CHECKS, cycle(BACKENDS), strict=False)),
    ids=[check.__name__.removeprefix("check_") for check in DETACHED_CHECKS],
)
async def test_a_check_finds_what_is_wrong_with_detached_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: DetachedCheck
) -> None:
    """The example passes it once its connections are those for POSIX hosts, and does not once a line is changed.

    Each on one backend, in turn, as above.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    line, wrong = BREAKS_OF_DETACHED[check.__name__.removeprefix("check_")]
    sources = [SCRIPTS.read_text(), DETACHING.read_text()]
    assert sum(line in source for source in sources) == 1
    try:
        await check(_detaching_example(sources, tmp_path))
        with pytest.raises(Exception), anyio.fail_after(20):  # noqa: B017, PT011  (whatever the break leads to)
            await check(_detaching_example([source.replace(line, wrong) for source in sources], tmp_path))
    finally:
        _end_detached(tmp_path)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("shell", "anyio_backend"),
    [("bash", "asyncio"), pytest.param("busybox", "trio", marks=pytest.mark.needs("busybox"))],
    ids=["bash", "busybox"],
)
@pytest.mark.parametrize("check", DETACHED_CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
async def test_any_shell_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: DetachedCheck, shell: str
) -> None:
    """What is ``/bin/sh`` on other hosts keeps the contract, too; no shell knows of backends, so each has one."""
    monkeypatch.setenv("HOME", str(tmp_path))
    found = shutil.which(shell)
    assert found
    (tmp_path / "sh").symlink_to(found)
    sources = [source.read_text().replace("/bin/sh", f"{tmp_path}/sh") for source in (SCRIPTS, DETACHING)]
    try:
        await check(_detaching_example(sources, tmp_path))
    finally:
        _end_detached(tmp_path)
    assert not any((tmp_path / ".fleeting" / "detached").glob("*"))


LISTENING = SCRIPTS.with_name("_listening_here.py")
PULLING = LISTENING.parents[1] / "_pulled.py"

BREAKS_OF_FORWARDING = {
    "what_connects_comes_to_us": (
        "        if not data:\n",
        '        data = data.replace(b"*", b" ")\n        if not data:\n',
    ),
    "each_direction_has_its_own_end": ("shutdown(socket.SHUT_WR)", "shutdown(socket.SHUT_RDWR)"),
    "many_streams_at_once": (
        "self._open.add(stream)\n",
        "self._open.add(stream)\n            [each._socket.close() for each in self._open if len(self._open) > 5]\n",
    ),
    "who_is_not_read_is_held_up": ("partial(self._socket.send, rest)", "partial(LOSE, self._socket, rest)"),
    "a_cancelled_accept_loses_nothing": (
        "except anyio.EndOfStream:\n",
        f"except BaseException:\n{' ' * 12}self._arrivals.close()\n{' ' * 12}raise\n{' ' * 8}except ValueError:\n",
    ),
    "a_taken_port_is_refused": ("raise PortTaken(instance, host, port)", "raise ConnectError(instance)"),
    "leaving_frees_the_port": ("            await anyio.aclose_forcefully(stream)", "            await checkpoint()"),
    "leaving_ends_the_wait_for_a_stream": (
        "except anyio.EndOfStream:",
        "except (anyio.EndOfStream, anyio.ClosedResourceError):\n            self._why_closed = ''",
    ),
    "the_end_of_the_connection_ends_the_listener": ("raise Unreachable(", "raise ConnectError("),
    "impossible_places_are_refused": ("    check_place(host, port)\n", ""),
}
"""What could be wrong with how a port of this host is listened at, by the check that finds it."""


def test_every_check_of_forwarded_ports_has_teeth() -> None:
    """Each is shown a connection that does not keep its clause."""
    assert {f"check_{name}" for name in BREAKS_OF_FORWARDING} == {check.__name__ for check in FORWARDING_CHECKS}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("check", "anyio_backend"),
    list(zip(FORWARDING_CHECKS, cycle(BACKENDS), strict=False)),
    ids=[check.__name__.removeprefix("check_") for check in FORWARDING_CHECKS],
)
async def test_a_check_finds_what_is_wrong_with_forwarded_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: ForwardingCheck
) -> None:
    """The example passes it once its connections listen, and does not once a line of that is changed.

    Each on one backend, in turn, as above.
    """
    line, wrong = BREAKS_OF_FORWARDING[check.__name__.removeprefix("check_")]
    sources = [PULLING.read_text(), LISTENING.read_text()]
    assert sum(source.count(line) for source in sources) == 1
    await check(_forwarding_example(sources, tmp_path))
    monkeypatch.setattr("fleeting.testing._forwarding_checks._SOON", 2.0)
    with pytest.raises(Exception), anyio.fail_after(20):  # noqa: B017, PT011  (whatever the break leads to)
        await check(_forwarding_example([source.replace(line, wrong) for source in sources], tmp_path))


def _forwarding_example(sources: Sequence[str], directory: Path) -> DialInstance:
    """The example's connector, whose connections listen as these *sources* do it: one that the other imports first."""
    listening: dict[str, Any] = {"LOSE": _send_or_lose}
    for source in sources:
        exec(re.sub("from fleeting._pulled import .*", "", source), listening)  # noqa: S102  (our own)

    class Listens:
        def listen_tcp(self, host: str, port: int) -> object:
            return listening["listening_here"]("here", host, port, self.wait_closed)  # type: ignore[attr-defined]

        async def open_tcp(self, host: str, port: int) -> object:
            try:
                return await anyio.connect_tcp(host, port)
            except OSError as error:
                raise fleeting.Unreachable(str(error)) from error

    example = (EXAMPLE / "src" / "fleeting_here" / "__init__.py").read_text()
    here: dict[str, Any] = {"Listens": Listens}
    exec(example.replace("HereConnection(BaseConnection)", "HereConnection(Listens, BaseConnection)"), here)  # noqa: S102
    info = ConnectInfo(id="here", protocol="here", internal_addr=str(directory))
    return lambda: here["HereConnector"]().dial(info, configured())


def _send_or_lose(sender: socket.socket, data: memoryview) -> int:
    """Let whoever sends never wait."""
    try:
        return sender.send(data)
    except BlockingIOError:
        return len(data)


def _end_detached(home: Path) -> None:
    """End what a broken connection has started and did not kill, whose files it may have removed all the same."""
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it has ended
            pid = int(environment.parent.name)
            if f"HOME={home}\0".encode() in environment.read_bytes() and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)


def _detaching_example(sources: list[str], directory: Path) -> DialInstance:
    """The example's connector, whose connections run detached commands as these two *sources* do it."""
    scripts, posix = ModuleType("scripts"), ModuleType("posix")
    exec(sources[0], vars(scripts))  # noqa: S102  (our own)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, f"fleeting.connectors.{SCRIPTS.stem}", scripts)
        exec(sources[1], vars(posix))  # noqa: S102
    example = (EXAMPLE / "src" / "fleeting_here" / "__init__.py").read_text()
    here: dict[str, Any] = {"PosixConnection": posix.PosixConnection}
    exec(example.replace("HereConnection(BaseConnection)", "HereConnection(PosixConnection)"), here)  # noqa: S102
    info = ConnectInfo(id="here", protocol="here", internal_addr=str(directory))
    return lambda: here["HereConnector"]().dial(info, configured())


def install(package: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what pip does with a pure package: its source on the path, and beside it what it says of itself."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in found.items()) for group, found in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    for directory in (site, package / "src"):
        monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "fleeting_here", raising=False)
    load_connector.cache_clear()
