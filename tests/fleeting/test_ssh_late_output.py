"""A host that reports the end of a command before what the command has printed, as sshd does when it is busy."""

from typing import Any

import pytest
from paramiko import common

from fleeting.connectors.ssh._channel import Channel
from fleeting.connectors.ssh._command import PidReader
from fleeting.connectors.ssh._run import Running
from fleeting.testing import virtual_time
from tests.fleeting.local_agents import Heard
from tests.fleeting.test_ssh_parts import incoming, opened

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time  # what has arrived is read before any patience ends, however busy the machine is

PID = (common.MSG_CHANNEL_EXTENDED_DATA, 1, b"mark 7\n")
PRINTED = (common.MSG_CHANNEL_DATA, b"printed")
EXITED = (common.MSG_CHANNEL_REQUEST, "exit-status", False, 3)
ENDED = (common.MSG_CHANNEL_EOF,)


def arrive(channel: Channel, *messages: tuple[Any, ...]) -> None:
    """Have these come from the host."""
    for kind, *fields in messages:
        channel.handle(kind, incoming(*fields))


@pytest.mark.parametrize("is_to_go_on", [False, True], ids=["that is ended", "that is to go on"])
@pytest.mark.parametrize("known", [0, 1], ids=["no process id", "the process id"])
@pytest.mark.parametrize("answer", [1, 2])
async def test_what_comes_late_is_not_lost(known: int, answer: int, *, is_to_go_on: bool) -> None:
    """It comes with the first answer that the host gives, or with the second: until then, it may be on its way."""
    _, channel = opened()
    late: list[tuple[Any, ...]] = [PID, PRINTED, ENDED]
    asked, heard = list[int | None](), Heard()

    async def end_group(pid: int | None = None) -> bool:
        asked.append(pid)
        if len(asked) == answer:
            arrive(channel, *late[known:])
        return True

    arrive(channel, *late[:known], EXITED)
    running = Running(channel, None if is_to_go_on else end_group, end_group, PidReader("mark"))
    await running.attend(b"", None, heard, heard)
    assert (heard.data, channel.exit_status) == (b"printed", 3)
    assert asked == [7 if known and not is_to_go_on else None] * answer


async def test_what_holds_outputs_open_is_not_waited_for() -> None:
    """Once the host has answered twice, nothing more is on its way."""
    _, channel = opened()
    asked, heard = list[str](), Heard()

    async def answer() -> bool:
        asked.append("answered")
        return True

    arrive(channel, PRINTED, EXITED)
    await Running(channel, None, answer, PidReader("mark")).attend(b"", None, heard, heard)
    assert (heard.data, len(asked)) == (b"printed", 2)
