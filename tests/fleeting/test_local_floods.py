"""Agents and commands that say more than anybody asked for, over the `local` connector."""

import json
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import CommandFailed, Unreachable
from fleeting._setting_command import SettingCommand
from fleeting.connectors._collect import Beginning, Ending
from fleeting.groups.local import _client
from tests.fleeting.local_agents import dialled, opened, started

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["ok", "error", "exit_status", "signal"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@given(st.binary(max_size=50) | JSON.map(lambda answer: json.dumps(answer).encode()))
def test_whatever_an_agent_answers_is_an_answer_or_an_error_of_ours(line: bytes) -> None:
    """A job runs as our user, and may have taken the agent's place."""
    with suppress(Unreachable):
        answer = _client._read(line)
        assert answer.exit_status is None or 0 <= answer.exit_status < 256


def test_answers_are_read_as_agents_write_them() -> None:
    """One of each kind."""
    assert _client._read(b'{"exit_status": 3, "signal": null}').exit_status == 3
    assert _client._read(b'{"exit_status": null, "signal": "SIGKILL"}').signal == "SIGKILL"
    assert _client._read(b'{"error": "no"}').error == "no"
    assert _client._read(b'{"ok": true}') == _client.Answer()


@pytest.mark.anyio
async def test_an_answer_without_an_end_is_given_up(tmp_path: Path) -> None:
    """Who takes an agent's place cannot fill the manager."""

    async def talk(stream: anyio.abc.SocketStream) -> None:
        with suppress(anyio.BrokenResourceError):
            async with stream:
                while True:
                    await stream.send(bytes(1 << 14))

    async with (
        anyio.create_task_group() as talking,
        await anyio.create_unix_listener(tmp_path / "agent") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, talk, talking)
        async with await _client.connect(str(tmp_path / "agent")) as stream:
            with pytest.raises(Unreachable, match="more than 64 KiB"):
                await _client.ping(stream)
        tasks.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_command_of_the_settings_may_print_as_much_as_it_likes(tmp_path: Path) -> None:
    """What gets an instance ready installs packages; of what it says, the end is kept, which tells why it failed."""
    noise = "head -c 20000000 /dev/zero | tee /dev/stderr"
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:
            await SettingCommand("instance_ready_command", noise).run(connection)
            with pytest.raises(CommandFailed, match=r"exited with 3: no disk$"):
                await SettingCommand("instance_ready_command", f"{noise}; echo; echo no disk >&2; exit 3").run(
                    connection
                )


@pytest.mark.anyio
async def test_a_line_that_has_lost_its_beginning_may_be_the_command(tmp_path: Path) -> None:
    """Bash shows the line that it cannot parse, however long, and its end is kept."""
    async with opened(tmp_path) as group:
        (instance,) = await started(group)
        async with dialled(group, instance) as connection:
            quoted = f"echo '({'x' * 9999}marker-of-ours' >&2; echo no disk >&2; exit 3"
            with pytest.raises(CommandFailed, match=r"^'ready' exited with 3: \[the command\] no disk$"):
                await SettingCommand("ready", quoted).run(connection)


@pytest.mark.anyio
@given(st.lists(st.binary(max_size=9)), st.integers(1, 20))
async def test_sinks_keep_what_they_should(chunks: list[bytes], most: int) -> None:
    """The first bytes, or the last, however they come."""
    beginning, ending = Beginning(most), Ending(most)
    for chunk in chunks:
        await beginning(chunk)
        await ending(chunk)
        assert len(ending.data) <= most
    assert bytes(beginning.data) == b"".join(chunks)[:most]
    assert bytes(ending.data) == b"".join(chunks)[-most:]
