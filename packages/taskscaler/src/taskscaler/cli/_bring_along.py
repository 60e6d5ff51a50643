"""Brings a working tree to an instance, so that it is there as it is here: what was deleted here goes there, too.

The tree is in ``tree`` in a directory of the lease, beside ``list``, the names of all that was brought, and ``where``,
the directory in the tree from which it was last brought. What commands have made there, and nobody brought, stays.
"""

import os
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from attrs import define, field

from fleeting import ConnectError, Connection, Unsupported
from fleeting.archives import BLOCK, Member, Packed, header
from fleeting.connectors import ReportsSystem
from fleeting.errors import WrongArguments
from taskscaler.cli._work_tree import WorkTree

LONGEST_LIST: Final = 64 << 20
"""Bytes of names."""

_GROUP: Final = 200
"""Names in one call of rm."""

_SECOND: Final = 10**9  # nanoseconds: tar complains of a file that is older

_TAKE: Final = """
[ -d "$1" ] || (umask 077; exec mkdir -p -- "$1") || exit
CDPATH= cd -- "$1" && mkdir -p -- "tree/$2" && tar -xf - && cd -- "tree/$2" && pwd
"""

_LIST: Final = """
! CDPATH= cd -- "$1" 2>/dev/null || [ ! -f list ] || cat list
"""

_WHERE: Final = """
CDPATH= cd -- "$1" 2>/dev/null && [ -f where ] || exit 0
_taskscaler_where=$(cat where)
cd -- "tree/$_taskscaler_where" && pwd
"""


async def bring(connection: Connection, tree: WorkTree, directory: str, *, again: bool) -> str:
    """Bring a tree to an instance.

    Args:
        connection: To the instance.
        tree: What to bring.
        directory: Of the lease, relative to where commands start.
        again: Whether it may have been brought before.

    Returns:
        The absolute path there of where the command was started here.

    Raises:
        WrongArguments: A file cannot be read.
        ConnectError: It could not be brought.
        Unsupported: The instance runs Windows.
    """
    if isinstance(connection, ReportsSystem) and connection.os == "windows":
        raise Unsupported("--sync needs an instance with a POSIX shell and tar, and this one runs Windows")
    if again:
        await _remove(connection, directory, await _gone(connection, tree, directory))
    said = _Bounded(1 << 16)
    command = ("/bin/sh", "-c", _TAKE, "sh", directory, tree.prefix.rstrip("/"))
    try:
        done = await connection.run(command, stdin=_archive(tree), stdout=said)
    except OSError as error:
        name = os.fsdecode(error.filename) if error.filename else str(tree.root)
        raise WrongArguments(
            f"{name} cannot be read ({error.strerror or error}); mend that, or have git ignore it"
        ) from (error)
    if not done.ok:
        raise ConnectError(f"the working tree could not be brought along: tar {done.account}")
    return os.fsdecode(bytes(said.data).removesuffix(b"\n"))


async def find_tree(connection: Connection, directory: str) -> str | None:
    """Give the absolute path of a tree that was brought before; None: there is none."""
    if isinstance(connection, ReportsSystem) and connection.os == "windows":
        return None
    said = _Bounded(1 << 16)
    done = await connection.run(("/bin/sh", "-c", _WHERE, "sh", directory), stdout=said)
    if not done.ok:
        raise ConnectError(f"the directory of the working tree is not there any more: {done.account}")
    return os.fsdecode(bytes(said.data).removesuffix(b"\n")) or None


async def _gone(connection: Connection, tree: WorkTree, directory: str) -> Sequence[str]:
    """Give the names of what was brought before and is no longer here."""
    had = _Bounded(LONGEST_LIST)
    await connection.run(("/bin/sh", "-c", _LIST, "sh", directory), stdout=had, check=True)
    names = (os.fsdecode(each) for each in bytes(had.data).split(b"\0") if each)
    return [name for name in names if name not in tree.files and _is_inside(name)]


async def _remove(connection: Connection, directory: str, names: Sequence[str]) -> None:
    if names:
        await connection.run(("/bin/sh", "-s"), stdin=os.fsencode("".join(_script(directory, names))))


def _script(directory: str, names: Iterable[str]) -> Iterator[str]:
    """Write what deletes files, and directories that are empty then; what is a directory by now stays."""
    yield f"CDPATH= cd -- {shlex.quote(directory)}/tree || exit\n"
    files, parents = iter(names), dict[str, None]()
    while group := [*islice(files, _GROUP)]:
        yield f"rm -f -- {shlex.join(group)} 2>/dev/null\n"
        parents.update((os.path.dirname(name), None) for name in group if "/" in name)  # noqa: PTH120  (no path of ours)
    for parent in parents:
        yield f"rmdir -p -- {shlex.quote(parent)} 2>/dev/null\n"
    yield "exit 0\n"


def _is_inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


async def _archive(tree: WorkTree) -> AsyncIterator[bytes]:
    """Yield an archive of the list and the tree."""
    names = b"".join(os.fsencode(name) + b"\0" for name in tree.files)
    for name, content in ((b"list", names), (b"where", os.fsencode(tree.prefix))):
        member = Member(name=name, size=len(content), mode=0o600, mtime=_SECOND)
        yield header(member) + content + bytes(-len(content) % BLOCK)
    async for chunk in Packed.of({f"tree/{name}": path for name, path in tree.files.items()}):
        yield chunk


@define
class _Bounded:
    """Collects output, within a bound."""

    _most: int
    data: bytearray = field(factory=bytearray, init=False)

    async def __call__(self, chunk: bytes) -> None:
        """Take it in."""
        self.data += chunk
        if len(self.data) > self._most:
            raise ConnectError(f"the instance said more than {self._most} bytes, where less was expected; is it sound?")
