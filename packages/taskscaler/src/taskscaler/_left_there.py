"""What holders of a kept lease leave on its instance: a detached command, and a directory for their files."""

from typing import Final

from fleeting import ConnectError, Connection
from fleeting.connectors import ReportsSystem, RunsDetached

_REMOVE: Final = """
[ ! -d "$1" ] || rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1" && rm -rf -- "$1"; }
"""
"""What was run there may have taken its own permissions from directories, hence the second try."""


def command_name(name: str) -> str:
    """Name the detached command of a kept lease, as `RunsDetached` wants it."""
    return f"lease-{name}"


def directory_of(name: str) -> str:
    """Give the directory of a kept lease, relative to where commands start."""
    return f".taskscaler/lease-{name}"


async def is_running(connection: Connection, name: str) -> bool:
    """Whether the detached command of a kept lease has not ended."""
    if not isinstance(connection, RunsDetached):
        return False
    return any(each.name == command_name(name) and each.is_running for each in await connection.list_detached())


async def remove_all(connection: Connection, name: str) -> None:
    """End the detached command, and remove it and the directory.

    Raises:
        ConnectError: Some of it is still there.
    """
    if isinstance(connection, RunsDetached):
        found = [each for each in await connection.list_detached() if each.name == command_name(name)]
        for each in found:
            if each.is_running:
                await connection.kill(each.name)
            await connection.forget(each.name)
    if not (isinstance(connection, ReportsSystem) and connection.os == "windows"):  # where nobody brings files
        removed = await connection.run(("/bin/sh", "-c", _REMOVE, "sh", directory_of(name)))
        if not removed.ok:
            raise ConnectError(f"{directory_of(name)} could not be removed: {removed.account}")
