"""Files and directories to an instance and back, as archives that tar packs or unpacks there.

What comes is put beside its place first, and moved there once all of it has come. Only where a directory is copied
over one that exists does that happen file by file.
"""

import posixpath
import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread
from attrs import frozen

from fleeting._errors import CopyFailed
from fleeting._protocols import Connection, Sink, Source
from fleeting.archives import ArchiveRefused, Kind, Packed, merge, unpack
from fleeting.connectors._collect import Beginning

THERE = "on the instance"
"""What errors call the other side where nobody knows its name."""

SAID_LIMIT = 4096
"""Bytes that are kept of what the other side says about what is wrong."""

_COMMON: Final = """
fail() { printf '%s\\n' "$1" >&2; exit 1; }
case $1 in /*) path=$1 ;; *) path=./$1 ;; esac
"""

# All has come only if the last file has: tar takes an archive that breaks off between two files for a whole one. And it
# does not always say that a disk is full, hence the question whether there is room.
_TAKE: Final = f"""{_COMMON}
name=$2 kind=$3 stage=$4
if [ -d "$path" ]; then
    path=${{path%/}}/$name
else
    case $path in */) fail "there is no directory $1" ;; esac
fi
parent=${{path%/*}}/
[ -d "$parent" ] || fail "there is no directory ${{parent#./}}"
if [ -d "$path" ]; then
    [ "$kind" = directory ] || fail "${{path#./}} is a directory"
elif [ -e "$path" ] && [ "$kind" = directory ]; then
    fail "${{path#./}} is not a directory"
fi
stage=$parent$stage
trap 'trap "" HUP INT TERM; rm -rf "$stage"' EXIT
trap 'exit 1' HUP INT TERM
mkdir -m 700 "$stage" || exit
if ! said=$(tar -xpf - -C "$stage" 2>&1); then
    printf %65536s 2>/dev/null > "$stage/space" || fail "no space is left for ${{path#./}}"
    fail "$said"
fi
[ -e "$stage/last" ] || fail "the connection broke before all had come"
if [ -d "$path" ]; then
    cp -RPp "$stage/data/." "$path/"
else
    mv -f "$stage/data" "$path"
fi
"""

_GIVE: Final = f"""{_COMMON}
if [ -d "$path" ]; then
    cd "$path" && exec tar -cf - .
elif [ -f "$path" ]; then
    cd "${{path%/*}}/" && exec tar -chf - "./${{path##*/}}"
elif [ -e "$path" ]; then
    fail "$1 is neither a file nor a directory"
else
    fail "there is no $1"
fi
"""


# --- up --------------------------------------------------------------------------------------------------


async def put(connection: Connection, here: Path, there: str, *, where: str = THERE) -> None:
    """Copy to an instance, as `Connection.put` says; *where* is what errors call the instance."""
    name, kind, source = _source(here)
    stage = f".fleeting-{secrets.token_hex(8)}"
    archive = _Reading(source, Packed.of({"data": source}, last="last"))
    await _run(connection, where, (_TAKE, there, name, kind, stage), stdin=archive)


def _source(here: Path) -> tuple[str, str, Path]:
    """Its name, what it is, and where, if it is a link."""
    with _here(here):
        source = here.resolve(strict=True)
    if not (source.is_dir() or source.is_file()):
        raise CopyFailed("here", f"{here} is neither a file nor a directory")
    name = here.name if here.name not in ("", "..") else source.name
    if not name:
        raise CopyFailed("here", "a whole file system cannot be copied; name the directories in it")
    return name, "directory" if source.is_dir() else "file", source


@frozen
class _Reading:
    """What is read here; if that fails, it says where."""

    _source: Path
    _chunks: Packed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        with _here(self._source):
            return await anext(self._chunks)


# --- down ------------------------------------------------------------------------------------------------


async def get(connection: Connection, there: str, here: Path, *, into: bool, where: str = THERE) -> None:
    """Copy from an instance, as `Connection.get` says: packed into a file beside its place, then unpacked and moved.

    Args:
        connection: To the instance.
        there: What to copy.
        here: Its place, or a directory to put it into.
        into: Whether *here* has to be a directory.
        where: What errors call the instance.
    """
    target = _target(here, posixpath.basename(posixpath.normpath(there)), into=into)
    with _here(target):
        async with anyio.TemporaryDirectory(dir=str(target.parent), prefix=".fleeting-") as temporary:
            archive, contents = Path(temporary, "archive.tar"), Path(temporary, "contents")
            async with await anyio.open_file(archive, "wb") as file:

                async def store(chunk: bytes) -> None:
                    await file.write(chunk)

                await _run(connection, where, (_GIVE, there), stdout=store)
            await to_thread.run_sync(_put, archive, contents, target)


def _target(here: Path, name: str, *, into: bool) -> Path:
    """What the copy is to be: in a directory it has the name that it has there."""
    if here.is_dir():
        if name in ("", ".", ".."):
            raise CopyFailed("here", f"{here} is a directory, but the copy has no name; write {here / 'NAME'}")
        return here / name
    parent = here if into else here.parent
    if not parent.is_dir():
        raise CopyFailed("here", f"there is no directory {parent}")
    return here


def _put(archive: Path, contents: Path, target: Path) -> None:
    contents.mkdir()
    first = unpack(archive, contents, modes=True)
    if first is not Kind.DIRECTORY:
        _only(contents).replace(target)
    elif target.is_symlink():
        raise CopyFailed("here", f"{target} is a link, but the copy is a directory; name another target")
    elif target.is_dir():
        merge(contents, target)
    else:
        contents.rename(target)


def _only(contents: Path) -> Path:
    """The file, if it is one."""
    match list(contents.iterdir()):
        case [Path() as file] if file.is_file() and not file.is_symlink():
            return file
    raise CopyFailed("here", "the instance sent something other than the requested file")


# --- both ------------------------------------------------------------------------------------------------


async def _run(
    connection: Connection,
    where: str,
    script: Sequence[str],
    *,
    stdin: Source | None = None,
    stdout: Sink | None = None,
) -> None:
    """Run a script with its arguments on the instance."""
    text, *arguments = script
    said = Beginning(SAID_LIMIT)
    command = ("/bin/sh", "-c", text, "sh", *arguments)
    completed = await connection.run(command, stdin=stdin, stdout=stdout or said, stderr=said)
    if not completed.ok:
        lines = said.data.decode(errors="replace").strip().splitlines()  # the first is the cause of the others
        raise CopyFailed(where, lines[0] if lines else f"the command {completed.outcome}")


@contextmanager
def _here(path: Path) -> Iterator[None]:
    """Mark errors of this side as such; *path* is what they are about if they do not say."""
    try:
        yield
    except ArchiveRefused as error:
        raise CopyFailed("here", str(error)) from error
    except OSError as error:
        where = error.filename2 or error.filename or path
        raise CopyFailed("here", f"{where}: {error.strerror or error}") from error
