"""A directory of a job's own on a POSIX instance, which needs a shell and ``tar``; for authors of executors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from fleeting import Completed, ConnectError, Connection
from fleeting.archives import Packed
from fleeting.connectors import Sink

# A job may leave directories that it took its own permissions from, hence the second try.
EMPTY: Final = """
empty() { rm -rf -- "$1" "$1.script" 2>/dev/null || { chmod -R u+rwX -- "$1" && rm -rf -- "$1" "$1.script"; }; }
"""
"""A shell function that removes a directory, and a job's script beside it."""

_REMOVE: Final = f"""{EMPTY}
status=0
for directory do
    empty "$directory" || status=$?
done
exit $status
"""

# An empty IFS keeps names with spaces whole while their globs are still expanded.
_COLLECT: Final = """
CDPATH= cd -- "$1" || exit
shift
IFS=
asked=$#
for pattern do
    for path in $pattern; do
        if [ -e "$path" ] || [ -L "$path" ]; then set -- "$@" "./$path"; fi
    done
done
shift "$asked"
[ $# -eq 0 ] || exec tar -cf - "$@"
"""

_MAKE: Final = """
[ -d "$1" ] || (umask 077; exec mkdir -p -- "$1") || exit
CDPATH= cd -- "$1" && { [ -d "./$2" ] || mkdir -m 700 -- "$2"; } && cd "./$2" || exit
[ "$3" = empty ] || tar -xf - || exit
pwd
"""


async def make(connection: Connection, base: str, name: str, files: Mapping[str, Path]) -> str:
    """Make a directory, unless it is there, and put files into it.

    Args:
        connection: To the instance.
        base: What it is made in, and is made too; relative to where commands start, or absolute.
        name: Its name there.
        files: Where they go, relative to it, and where they are on this side.

    Returns:
        Its path, absolute.

    Raises:
        ConnectError: It cannot be made, or the files cannot be unpacked there.
        Unreachable: The connection died.
        OSError: The files cannot be read.
    """
    command = ("/bin/sh", "-c", _MAKE, "sh", base, name, "files" if files else "empty")
    made = await connection.run(command, stdin=Packed.of(files) if files else None)
    if not made.ok:
        raise ConnectError(f"cannot prepare {base}/{name}: {made.account}")
    path = made.stdout.removesuffix(b"\n")
    if not path.startswith(b"/"):
        raise ConnectError(f"cannot prepare {base}/{name}: the instance does not say where it is")
    try:
        return path.decode()
    except UnicodeDecodeError as error:
        raise ConnectError(f"{base} has a name that is not UTF-8; set base to an absolute path") from error


async def download(connection: Connection, directory: str, patterns: Sequence[str], store: Sink) -> Completed:
    """Give *store* a tar archive of what matches the patterns in a directory; nothing if nothing does."""
    return await connection.run(("/bin/sh", "-c", _COLLECT, "sh", directory, *patterns), stdout=store)


async def remove(connection: Connection, directories: Sequence[str]) -> Completed:
    """Remove directories with all that is in them, and the script beside each."""
    return await connection.run(("/bin/sh", "-c", _REMOVE, "sh", *directories))
