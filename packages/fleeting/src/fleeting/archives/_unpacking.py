"""Unpacks archives that are not trusted, by directory handles, so that no link is followed.

Each directory is opened by the handle of the one above it, as a directory and no link, and each file is created new
in such a directory. Modes and times are set on the handles of what was created here. Symbolic links are created last,
when nothing is written any more. Where they may lead is decided in `_paths`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from errno import ELOOP, ENOENT, ENOTDIR
from math import inf
from pathlib import Path
from stat import S_ISREG

from anyio import from_thread
from attrs import define, field

from fleeting.archives import _paths
from fleeting.archives._members import CHUNK, ArchiveRefused, ArchiveTooLarge, Kind, Member, Piece, shown
from fleeting.archives._paths import directories_left_by, parts_of, place_of
from fleeting.archives._reader import Reader

MOST_REMEMBERED = 1 << 25
"""Bytes of memory that directories and links may take, whose times, and which themselves, come at the end."""

_OF_EACH = 250
"""Bytes that one takes beside its text, roughly."""

_STEPS, _STEPS_OF_EACH = 1 << 20, 20
"""Directories that may be opened on the way: in all, and in addition for each member. An archive that goes through
directories one after the other needs few; one that jumps between deep ones would cost minutes."""


def unpack(archive: Path, target: Path, *, size: float = inf, members: float = inf, modes: bool = False) -> Kind | None:
    """Unpack into the empty directory *target*; nothing outside it changes, and no link in it leads out.

    Files, directories, symbolic links and hard links to files that came before are taken; anything else is refused.
    So are links and paths that lead outside; a slash at their beginning means nothing. Nobody else's ids are taken,
    nor setuid, setgid and sticky bits. If a path comes twice, the first one counts. Times are those of the archive,
    except for symbolic links.

    Blocks, with a checkpoint in each turn: in a worker thread, a cancelled caller's unpacking ends within moments.

    Args:
        archive: The archive.
        target: The directory.
        size: Bytes that files may have at most, gaps included.
        members: Files, directories and links that there may be at most.
        modes: Whether permissions are kept; if not, others may not write, and directories are as new ones are.

    Returns:
        What the first member is, None if there is none.

    Raises:
        ArchiveRefused: The target may hold a part by then; remove it.
    """
    with _refusals(lambda: ""), opened(target) as root:
        with os.scandir(root) as entries:
            if next(entries, None) is not None:
                raise ArchiveRefused(f"{target} is not empty; unpack into a new directory")
        longest = os.fpathconf(root, "PC_PATH_MAX") - len(os.fsencode(target.absolute())) - 2
        unpacking = _Unpacking(root, size=size, members=members, modes=modes, longest=longest)
        with unpacking.under_way(), archive.open("rb") as file:
            return unpacking.take(iter(lambda: file.read(CHUNK), b""))


@contextmanager
def opened(directory: Path | bytes, parent: int | None = None) -> Iterator[int]:
    """Open a directory that is no link, and close it in the end; gives the handle.

    Args:
        directory: A path, or with *parent* a name.
        parent: Handle of the directory that it is in.
    """
    handle = os.open(directory, _directory_flags(), dir_fd=parent)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _refusals(where: Callable[[], str]) -> Iterator[None]:
    """Turn what the file system says into a refusal, with the member that it is about."""
    try:
        yield
    except OSError as error:
        about = where() or error.filename
        raise ArchiveRefused(
            f"it cannot be unpacked: {f'{about}: ' if about else ''}{error.strerror or error}"
        ) from error


def _directory_flags() -> int:
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW  # in a function: Windows has none of them


@define
class _Walk:
    """Opens directories below one, each by the handle of the one above, through no links; keeps the last one open."""

    _root: int
    path: _paths.Path = field(default=(), init=False)
    """Of the directory that is open."""

    _handle: int | None = field(default=None, init=False)
    """Its handle; None: it is the root."""

    steps: int = field(default=0, init=False)
    """Directories opened so far."""

    def open(self, path: _paths.Path, make: Callable[[int, bytes], None] | None = None) -> int:
        """Open a directory; the handle is good until the next call.

        Args:
            path: From the root down.
            make: Makes one that is missing, by the handle of the directory that it is to be in; if None, that fails.
        """
        if path[: len(self.path)] != self.path:
            self.close()
        way, self.path = path[len(self.path) :], ()
        try:
            for part in way:
                handle = self._step(part, make)
                self._close_handle()
                self._handle = handle
                self.steps += 1
        except BaseException:
            self.close()
            raise
        self.path = path
        return self._here

    def close(self) -> None:
        """Go back to the root."""
        self._close_handle()
        self.path, self._handle = (), None

    @property
    def _here(self) -> int:
        return self._root if self._handle is None else self._handle

    def _step(self, part: bytes, make: Callable[[int, bytes], None] | None) -> int:
        try:
            return os.open(part, _directory_flags(), dir_fd=self._here)
        except FileNotFoundError:
            if make is None:
                raise
            make(self._here, part)
            return os.open(part, _directory_flags(), dir_fd=self._here)

    def _close_handle(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


@define
class _Unpacking:
    """One archive on its way into a directory."""

    _root: int
    _size: float
    _members: float
    _modes: bool
    _longest: int
    """Bytes that a path may have from the root down."""

    _here: _Walk = field(init=False)
    _there: _Walk = field(init=False)
    """For what hard links point to."""

    _file: int | None = field(default=None, init=False)
    """Of the file whose content comes; None if it is not wanted."""

    _member: Member | None = field(default=None, init=False)
    """What came last."""

    _about: bytes = field(default=b"", init=False)
    """The path of what is being made, for messages."""

    _links: dict[bytes, bytes] = field(factory=dict, init=False)
    """What symbolic links point to, by their paths."""

    _directories: list[tuple[bytes, int, int]] = field(factory=list, init=False)
    """Paths, modes and times: these come once nothing more is made there."""

    _remembered: int = field(default=0, init=False)
    """Bytes of memory that links and directories take."""

    _seen: int = field(default=0, init=False)
    """Members so far, those that came twice included."""

    _total: int = field(default=0, init=False)
    """Bytes of the files so far, those that came twice included."""

    _made: int = field(default=0, init=False)
    """Files, directories and links so far; the parents of what comes are among them."""

    def __attrs_post_init__(self) -> None:
        self._here, self._there = _Walk(self._root), _Walk(self._root)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Close all handles in the end."""
        try:
            with _refusals(lambda: shown(self._about) if self._about else ""):
                yield
        finally:
            if self._file is not None:
                os.close(self._file)
            self._here.close()
            self._there.close()

    def take(self, chunks: Iterator[bytes]) -> Kind | None:
        """Take the whole archive, and return what is first in it."""
        reader, first = Reader(), None
        for chunk in chunks:
            checkpoint()  # whole chunks may be headers of no member, or content that means nothing
            for event in reader.feed(chunk):
                checkpoint()
                if isinstance(event, Piece):
                    self._write(event)
                else:
                    first = first or event.kind
                    self._begin(event)
            if reader.is_over:
                break
        reader.finish()
        self._finish()
        return first

    # --- members ---------------------------------------------------------------------------------------------

    def _begin(self, member: Member) -> None:
        self._end_file()
        self._member, self._about = member, member.name
        self._seen += 1
        self._refuse_wandering()
        self._total += member.size
        if self._total > self._size:
            raise ArchiveTooLarge(f"they have more than {self._size} bytes")
        path = place_of(member.name, self._longest)
        if not path and member.kind is not Kind.DIRECTORY:
            raise ArchiveRefused(f"the path {shown(member.name)} names the directory itself")
        match member.kind:
            case Kind.FILE:
                self._make_file(path)
            case Kind.DIRECTORY:
                self._make_directory(path, member)
            case Kind.SYMLINK:
                self._remember_link(path, member.link)
            case Kind.HARD_LINK:
                self._make_hard_link(path, member)
            case Kind.OTHER:
                raise ArchiveRefused(f"{shown(member.name)} is {member.kind.value}; leave it out")

    def _make_file(self, path: _paths.Path) -> None:
        parent = self._parent(path)
        if self._came_before(path, parent, Kind.FILE):
            return
        self._count()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._file = os.open(path[-1], flags, 0o600, dir_fd=parent)

    def _write(self, piece: Piece) -> None:
        if self._file is None:
            return
        if self._member and self._member.has_gaps:
            os.lseek(self._file, piece.offset, os.SEEK_SET)
        data = piece.data
        while data:
            data = data[os.write(self._file, data) :]

    def _end_file(self) -> None:
        if self._file is None or self._member is None:
            return
        if self._member.has_gaps:
            os.ftruncate(self._file, self._member.size)
        os.fchmod(self._file, self._member.mode & 0o777 if self._modes else _tame(self._member.mode))
        os.utime(self._file, ns=(self._member.mtime, self._member.mtime))
        file, self._file = self._file, None
        os.close(file)

    def _make_directory(self, path: _paths.Path, member: Member) -> None:
        self._open(path)
        self._remember(b"/".join(path))
        self._directories.append((b"/".join(path), member.mode, member.mtime))

    def _make_hard_link(self, path: _paths.Path, member: Member) -> None:
        source = place_of(member.link, self._longest)
        parent = self._parent(path)
        expected = (Kind.FILE, Kind.SYMLINK) if source == path else (Kind.FILE,)
        if self._came_before(path, parent, *expected):  # named twice, anything but a directory is a link to itself
            return
        directory = self._directory_of_file(source)
        if directory is None:
            raise ArchiveRefused(f"the hard link {shown(member.name)} points to no earlier file")
        self._count()
        os.link(source[-1], path[-1], src_dir_fd=directory, dst_dir_fd=parent, follow_symlinks=False)

    def _directory_of_file(self, path: _paths.Path) -> int | None:
        """Open the directory that a file is in; None if there is no such file."""
        with suppress(FileNotFoundError, NotADirectoryError):
            directory = self._there.open(path[:-1])
            if path and S_ISREG(os.stat(path[-1], dir_fd=directory, follow_symlinks=False).st_mode):
                return directory
        return None

    def _remember_link(self, path: _paths.Path, text: bytes) -> None:
        parent = self._parent(path)
        if self._came_before(path, parent, Kind.SYMLINK):
            return
        for _ in directories_left_by(path, text):
            pass  # what would be refused in any case is so before more comes
        self._count()
        name = b"/".join(path)
        self._remember(name, text)
        self._links[name] = text

    # --- the end ---------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._end_file()
        for name, text in self._links.items():
            checkpoint()
            self._refuse_wandering()
            self._about = name
            self._make_link(parts_of(name), text)
        for name, mode, mtime in self._directories:
            checkpoint()
            self._refuse_wandering()
            self._about = name
            handle = self._here.open(parts_of(name))
            if self._modes:
                os.fchmod(handle, mode & 0o777 | 0o700)  # what is in it shall be within reach
            os.utime(handle, ns=(mtime, mtime))

    def _make_link(self, path: _paths.Path, text: bytes) -> None:
        for directory in directories_left_by(path, text):
            try:
                self._there.open(directory)
            except OSError as error:
                if error.errno not in (ENOENT, ENOTDIR, ELOOP):
                    raise
                about = shown(b"/".join(path))
                raise ArchiveRefused(f"the link {about} goes up from outside the archive's directories") from None
        os.symlink(text, path[-1], dir_fd=self._here.open(path[:-1]))

    # --- what there is ---------------------------------------------------------------------------------------

    def _parent(self, path: _paths.Path) -> int:
        return self._open(path[:-1])

    def _open(self, path: _paths.Path) -> int:
        """Open a directory, and make it if need be."""
        if self._links and path != self._here.path:
            self._refuse_below_link(path)
        return self._here.open(path, self._make_missing)

    def _make_missing(self, parent: int, name: bytes) -> None:
        self._count()
        os.mkdir(name, dir_fd=parent)

    def _refuse_below_link(self, path: _paths.Path) -> None:
        for end in range(1, len(path) + 1):
            if b"/".join(path[:end]) in self._links:
                raise ArchiveRefused(f"{shown(b'/'.join(path))} is both a link and a directory")

    def _came_before(self, path: _paths.Path, parent: int, *expected: Kind) -> bool:
        """Whether a path is there already; what is not of an expected kind is refused."""
        if b"/".join(path) in self._links:
            kind = Kind.SYMLINK
        else:
            try:
                mode = os.stat(path[-1], dir_fd=parent, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return False
            kind = Kind.FILE if S_ISREG(mode) else Kind.DIRECTORY
        if kind not in expected:
            raise ArchiveRefused(f"the path {shown(b'/'.join(path))} occurs twice, with different types")
        return True

    # --- limits ----------------------------------------------------------------------------------------------

    def _refuse_wandering(self) -> None:
        if self._here.steps + self._there.steps > _STEPS + _STEPS_OF_EACH * self._seen:
            raise ArchiveRefused("the archive jumps between deep directories; pack them one after another")

    def _count(self) -> None:
        self._made += 1
        if self._made > self._members:
            raise ArchiveRefused(f"they are more than {self._members} files; pack them into one")

    def _remember(self, *texts: bytes) -> None:
        self._remembered += _OF_EACH + sum(map(len, texts))
        if self._remembered > MOST_REMEMBERED:
            raise ArchiveRefused("the directories and links take too much memory; pack them into a file")


def _tame(mode: int) -> int:
    """Permissions of which nobody else gets more than to read and run; what the owner may not run, nobody may."""
    runnable = 0o755 if mode & 0o100 else 0o644
    return mode & runnable | 0o600


def checkpoint() -> None:
    """End here if this is a worker thread of a caller that was cancelled."""
    with suppress(RuntimeError):  # it is not a worker thread
        from_thread.check_cancelled()
