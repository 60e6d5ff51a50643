"""What earlier runs of jobs needed, kept by what the jobs are known as from run to run; several processes may share it.

Each job has one small file, named after a hash: names are others' to choose. What cannot be read is taken for unknown.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread
from attrs import asdict, define

from executor_docker._sizes import LARGEST_SIZE
from executor_docker._tailored import Run, remembering
from fleeting.plugins import make_private, open_private, write_whole

MOST_JOBS: Final = 4096
"""That are remembered; beyond that, a tenth is forgotten: those that ran least recently."""

LARGEST: Final = 1 << 16
"""Bytes of a file that are read: twenty runs take a twentieth of it."""

PATIENCE: Final = 20.0
"""Seconds for which a job waits for another process that is noting something: that may have been stopped."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
"""Seconds between two tries."""

_ENDING: Final = ".json"


@define(eq=False)
class Memory:
    """Runs of jobs, in a directory that is made when the first is noted. All methods but `keep` block shortly."""

    directory: Path

    def runs(self, series: str) -> Sequence[Run]:
        """Look up the runs of a job, the latest last; none: nothing is known."""
        try:
            with self._file(series).open("rb") as file:
                found = json.loads(file.read(LARGEST))
            return [*map(_read, found["runs"])] if found["series"] == series else []
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return []

    def note(self, series: str, run: Run) -> None:
        """Remember a run; noting it again changes nothing.

        Raises:
            BlockingIOError: Another process, or another thread, is noting something; try again.
            OSError: It cannot be written.
        """
        make_private(self.directory)
        with self._locked():
            known = self.runs(series)
            path = self._file(series)
            if not path.exists():
                self._make_room()
            runs = [asdict(each) for each in remembering(known, run)]
            write_whole(path, json.dumps({"series": series, "runs": runs}).encode())

    async def keep(self, series: str, run: Run) -> str:
        """Note a run, as soon as nobody else is noting one; returns why that could not be, empty if it could."""
        pause = _FIRST_PAUSE
        with anyio.move_on_after(PATIENCE):
            while True:
                try:
                    await to_thread.run_sync(self.note, series, run)
                except BlockingIOError:
                    await anyio.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                except OSError as error:
                    return str(error)
                else:
                    return ""
        return f"another process has had {self.directory} locked for {PATIENCE:g} s; it may hang"

    def _file(self, series: str) -> Path:
        return self.directory / f"{sha256(series.encode(errors='surrogatepass')).hexdigest()[:32]}{_ENDING}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = open_private(self.directory / "lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(lock)

    def _make_room(self) -> None:
        names = [name for name in os.listdir(self.directory) if name.endswith(_ENDING)]  # noqa: PTH208  (of thousands)
        if len(names) < MOST_JOBS:
            return
        paths = sorted((self.directory / name for name in names), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[: len(names) - MOST_JOBS * 9 // 10]:
            with suppress(FileNotFoundError):
                path.unlink()


def _read(found: Mapping[str, Any]) -> Run:
    """Read a run; raises `ValueError`, `KeyError` or `TypeError` if that is none."""
    sizes = found["peak"], found["limit"]
    if not (isinstance(found["unit"], str) and isinstance(found["killed"], bool)):
        raise TypeError("no run")
    if not all(isinstance(size, int) and 0 <= size <= LARGEST_SIZE for size in sizes):
        raise ValueError("no size")
    return Run(unit=found["unit"], peak=found["peak"], limit=found["limit"], killed=found["killed"])
