"""The log of a job as a coordinator keeps it: pieces in the order of their offsets, and the checksum of the whole."""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO

from gitlab_jobs._trace import Spool, write_all

_READ = 1 << 20


class StoredLog:
    """What has come of a log; in memory unless there is a *spool*, which is emptied first."""

    def __init__(self, spool: Spool | None = None) -> None:
        """Keep nothing yet."""
        self._spool: Spool = BytesIO() if spool is None else spool
        self._size = self._crc = 0
        self._spool.truncate(0)

    def __len__(self) -> int:
        """How many bytes there are."""
        return self._size

    def __bytes__(self) -> bytes:
        """All of them."""
        return b"".join(self._pieces())

    @property
    def checksum(self) -> str:
        """Of all that is kept, as ``PUT jobs/:id`` has it."""
        return f"crc32:{self._crc:08x}"

    def append(self, body: bytes) -> None:
        """Keep a piece that follows.

        Raises:
            OSError: There is no room; nothing of it is kept.
        """
        try:
            write_all(self._spool, self._size, body)
        except OSError:
            with suppress(OSError):
                self._spool.truncate(self._size)
            raise
        self._crc = zlib.crc32(body, self._crc)
        self._size += len(body)

    def cut(self, size: int) -> None:
        """Keep only so many bytes of it."""
        self._size, self._crc = min(size, self._size), 0
        self._spool.truncate(self._size)
        for piece in self._pieces():
            self._crc = zlib.crc32(piece, self._crc)

    def _pieces(self) -> Iterator[bytes]:
        for at in range(0, self._size, _READ):
            self._spool.seek(at)
            yield self._spool.read(min(_READ, self._size - at)) or b""
