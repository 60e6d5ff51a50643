"""Terminals on instances, over each connector that opens some."""

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from fleeting import ConnectError, Connection, Unreachable, Unsupported
from fleeting.cli._ssh import _in_terminal
from fleeting.connectors import OpensTerminals, Terminal
from tests.fleeting import sshd
from tests.fleeting.breakable import KINDS, Breakable, connected
from tests.fleeting.local_agents import watched

pytestmark = pytest.mark.anyio

SIZE = "stty size; "


@pytest.fixture(params=KINDS)
async def breakable(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Breakable]:
    """A connection of each kind."""
    async with connected(request.param, tmp_path) as breakable:
        yield breakable


async def until(terminal: Terminal, text: bytes) -> bytes:
    """Receive until the text has come."""
    seen = b""
    while text not in seen:
        chunk = await terminal.receive()
        assert chunk, seen
        seen += chunk
    return seen


async def rest(terminal: Terminal) -> bytes:
    """Receive all that still comes."""
    seen = b""
    while chunk := await terminal.receive():
        seen += chunk
    return seen


async def test_a_command_finds_a_terminal(breakable: Breakable) -> None:
    """Of the kind and size that were told, on all three of its streams."""
    command = f'{SIZE} echo "$TERM"; for each in 0 1 2; do [ -t $each ] && echo yes; done; : </dev/tty && echo its own'
    async with breakable.terminal(command, term="vt100") as terminal:
        assert (await rest(terminal)).split(b"\r\n") == [b"40 100", b"vt100", *[b"yes"] * 3, b"its own", b""]
        assert (await terminal.wait()).ok


async def test_a_window_changes_its_size(breakable: Breakable) -> None:
    """The command is told by SIGWINCH."""
    async with breakable.terminal(
        "trap 'stty size; exit 3' WINCH; echo ready; while :; do read line; done"
    ) as terminal:
        await until(terminal, b"ready")
        await terminal.resize(120, 50)
        assert b"50 120" in await rest(terminal)
        assert (await terminal.wait()).exit_status == 3


async def test_keys_arrive_and_ctrl_c_interrupts(breakable: Breakable) -> None:
    """The terminal over there does with them what terminals do."""
    async with breakable.terminal('read line; echo "<$line>"; exec sleep 1000') as terminal:
        await terminal.send(b"hello\r")
        await until(terminal, b"<hello>")
        await terminal.send(b"\x03")
        await rest(terminal)
        assert (await terminal.wait()).signal == "SIGINT"


async def test_without_a_command_there_is_a_shell(breakable: Breakable) -> None:
    """It ends as one tells it to."""
    async with breakable.terminal(None) as terminal:
        await terminal.send(b"exit 5\r")
        await rest(terminal)
        assert (await terminal.wait()).exit_status == 5


async def test_a_list_is_a_program_and_its_arguments(breakable: Breakable) -> None:
    """No shell touches them."""
    async with breakable.terminal(["printf", "%s|", "$HOME", "a b", "'"]) as terminal:
        assert await rest(terminal) == b"$HOME|a b|'|"


async def test_what_is_not_found_exits_as_in_a_shell(breakable: Breakable) -> None:
    """With 127."""
    async with breakable.terminal(["no-such-program"]) as terminal:
        await rest(terminal)
        assert (await terminal.wait()).exit_status == 127


async def test_leaving_hangs_up(breakable: Breakable) -> None:
    """What runs in a terminal ends with it."""
    with ExitStack() as stack:
        async with breakable.terminal("echo =$$=; exec sleep 1000") as terminal:
            _, pid, _ = (await until(terminal, b"=\r")).split(b"=")
            (process,) = stack.enter_context(watched(int(pid)))
        await process.ended()


async def test_nothing_is_lost_of_much(breakable: Breakable) -> None:
    """However much faster it is written than read."""
    async with breakable.terminal("head -c 5000000 /dev/zero; exit 4") as terminal:
        assert len(await rest(terminal)) == 5_000_000
        assert (await terminal.wait()).exit_status == 4


async def test_a_lost_connection_is_told(breakable: Breakable) -> None:
    """Nobody knows how the command ended."""
    async with breakable.terminal("echo ready; exec sleep 1000") as terminal:
        await until(terminal, b"ready")
        breakable.lose()
        await rest(terminal)
        await terminal.send(b"is anybody there?")
        with pytest.raises(Unreachable):
            await terminal.wait()


async def test_a_host_may_open_no_terminals(tmp_path: Path) -> None:
    """It says so, and what to look at."""
    with sshd.sshd(tmp_path / "sshd", "PermitTTY no") as server:
        async with sshd.dialled(server.info) as connection:
            assert isinstance(connection, OpensTerminals)
            async with connection.open_terminal("true", term="xterm", columns=80, rows=24) as terminal:
                await rest(terminal)
                with pytest.raises(ConnectError, match="opens no terminal for this user; check PermitTTY"):
                    await terminal.wait()


async def test_not_every_connection_opens_terminals() -> None:
    """The command says so, and what can be done instead."""
    with pytest.raises(Unsupported, match="the connector for i-1 opens no terminals; use fleeting run"):
        await _in_terminal(cast("Connection", object()), None, "i-1")
