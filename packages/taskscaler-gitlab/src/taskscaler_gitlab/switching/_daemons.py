"""A colour as it is: a daemon on this machine, which is asked over its socket, and what it leaves when it is away."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import anyio
from anyio import to_thread
from attrs import define, field

from fleeting import FleetingError
from fleeting.plugins import make_private, one_line, open_private, span
from taskscaler.serve import Canary, NoDaemon, ask
from taskscaler_gitlab._paused import is_paused, pause, unpause
from taskscaler_gitlab._record import found
from taskscaler_gitlab.relay._deliveries import found as found_relayed
from taskscaler_gitlab.switching._file import ColourFile
from taskscaler_gitlab.switching._fleet import look_at
from taskscaler_gitlab.switching._switch import Life, Refused, Service, Stuck

POLL = 0.3
"""Seconds between two looks at a service that starts."""

LOOK = 10.0
"""Seconds between two looks at a fleet that is being deleted."""

GRACE = 60.0
"""Seconds within which a service has its socket after the command that starts it has ended."""

_SHOWN = 10
"""Lines of what a service has printed before it ended."""

_MOST_SHOWN = 1 << 14
"""Bytes in which they are looked for."""


@define(eq=False)
class DaemonColour:
    """One of the two; a `Colour`."""

    file: ColourFile
    log: Path
    """Where what it prints is appended to, if we start it."""

    patience: float
    """Seconds that it may take to start."""

    say: Callable[[str], object]
    """Prints a line."""

    may_be_unseen: bool = False
    """Whether its fleet counts as empty if it cannot be looked at: it has never run, for the same reason."""

    _child: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _seen: tuple[float, tuple[int, int]] | None = field(default=None, init=False)
    """When its fleet was looked at last while it was away, and what was left."""

    @property
    def name(self) -> str:
        """Which of the two."""
        return self.file.name

    # --- how it is -----------------------------------------------------------------------------------------

    async def look(self, *, thoroughly: bool) -> Service:
        """See `Colour.look`."""
        try:
            status = await self._ask("GET", "/status")
            self._seen = None
            return await self._running(status, thoroughly=thoroughly)
        except NoDaemon:
            if await to_thread.run_sync(self._is_held):
                return Service(life=Life.BUSY)
        paused = await to_thread.run_sync(is_paused, self.file.directory)
        left, going = await self._left() if thoroughly else (0, 0)
        return Service(life=Life.AWAY, paused=paused, left=left, going=going)

    async def _running(self, status: Mapping[str, Any], *, thoroughly: bool) -> Service:
        intake: Mapping[str, Any] = self._checked(status)
        jobs = intake["jobs"] + status["batches"]
        is_done = intake["paused"] and not jobs and not intake["requests"]
        return Service(
            life=Life.THERE,
            paused=intake["paused"],
            answered=intake["answered"],
            requests=intake["requests"],
            jobs=jobs,
            leases=status["leases"] + status["kept"],
            ending=status["state"] != "serving",
            deletes=status["deletes"],
            retained=await self._retained() if thoroughly and is_done else (),
        )

    async def status(self) -> str:
        """How it is, for people; one sentence without its end."""
        try:
            status = await self._ask("GET", "/status")
        except NoDaemon:
            if await to_thread.run_sync(self._is_held):
                return f"{self.name} starts or ends: it has {self.file.socket}, and does not answer"
            return f"{self.name} does not run"
        self._checked(status)
        return f"{self.name} runs (process {status['pid']}, {self.file.socket}): {'; '.join(status['owners'])}"

    def _checked(self, status: Mapping[str, Any]) -> Mapping[str, Any]:
        """See that it is our service that has answered: another one is not to be deleted.

        Raises:
            Refused: It is another one, or one that cannot be paused.
        """
        fleet, path = Path(str(status.get("fleet", ""))), self.file.path
        is_ours = fleet.resolve() == path.resolve() if fleet.is_absolute() else fleet.name == path.name
        if not is_ours:
            what = f"{self.file.socket} is that of a daemon for {fleet}, not of {self.name} with {path}"
            raise Refused(f"{what}; correct `socket` in [colours.{self.name}], or end that daemon")
        intake = status.get("intake")
        if not isinstance(intake, dict):
            what = f"{self.name} runs a release that cannot be paused, or is no `taskscaler-gitlab run`"
            raise Refused(f"{what}; start it again with this release, which resumes its jobs")
        return intake

    async def _retained(self) -> tuple[str, ...]:
        answer = await self._ask("GET", "/instances")
        return tuple(each["id"] for each in answer["instances"] if each["retained"] is not None)

    async def _left(self) -> tuple[int, int]:
        """What it has left: jobs and instances, and how many more instances are being deleted.

        While it stays away, its clouds are asked once in `LOOK`.

        Raises:
            FleetingError, OSError: Its fleet cannot be seen.
        """
        if self._seen is not None and anyio.current_time() < self._seen[0] + LOOK:
            return self._seen[1]
        jobs = await to_thread.run_sync(self._unfinished)
        try:
            fleet = await look_at(self.file.config.fleet)
        except (FleetingError, OSError) as error:
            if jobs or not self.may_be_unseen:
                raise
            self.say(f"warning: nobody can see whether {self.name} has instances ({one_line(str(error))}); look there")
            return 0, 0
        left = (jobs + fleet.instances, fleet.going)
        self._seen = (anyio.current_time(), left)
        return left

    def _unfinished(self) -> int:
        if not self.file.directory.exists():
            return 0
        jobs, _ = found(self.file.directory / "jobs")
        return len(jobs) + len([*found_relayed(self.file.directory / "deliveries")])

    async def identities(self) -> frozenset[str]:
        """Whose its groups are: what names them at their clouds.

        Raises:
            FleetingError: They cannot be opened.
        """
        try:
            groups = (await self._ask("GET", "/groups"))["groups"]
            return frozenset(each["identity"] for each in groups.values())
        except NoDaemon:
            return (await look_at(self.file.config.fleet)).identities

    def _is_held(self) -> bool:
        """Whether a process has the socket, or will have it in a moment; blocks.

        The lock is tried only if the process that is written into it lives: who starts now must not find it taken.
        """
        try:
            descriptor = open_private(f"{self.file.socket}.lock", os.O_RDONLY)
        except OSError:
            return False
        try:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace")
            if not holder.isdecimal() or not _lives(int(holder)):
                return False
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    # --- what is done to it ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """See `Colour.start`."""
        await to_thread.run_sync(pause, self.file.directory)
        began = anyio.current_time()
        with anyio.move_on_after(self.patience):
            ended_at = await self._launch()
            while True:
                if await self._answers():
                    return
                is_held = await to_thread.run_sync(self._is_held)
                if self._child is not None and self._child.poll() is not None and not is_held:
                    raise Stuck(self._failure(f"it has ended with status {self._child.returncode}"))
                if ended_at is not None and not is_held and anyio.current_time() > ended_at + GRACE:
                    raise Stuck(f"{self._why(f'nobody has {self.file.socket} after {span(GRACE)}')}; see its log")
                await anyio.sleep(POLL)
        waited = span(anyio.current_time() - began)
        raise Stuck(f"{self._why(f'it has not answered within {waited}')}; see its log, and run this again")

    async def _launch(self) -> float | None:
        """Have it run; returns when the command that has it run has ended, if there is one."""
        if self.file.start:
            status, began = await self._run_command()
            if status:
                why = f"{' '.join(self.file.start)} has ended with status {status}"
                raise Stuck(f"{self._why(why)}; it says: {self._said_since(began)}")
            return anyio.current_time()
        if self._child is None or self._child.poll() is not None:
            self._child = await to_thread.run_sync(self._spawned)
        return None

    async def _run_command(self) -> tuple[int, int]:
        """Run the command; returns its exit status, and where in the log begins what it has printed.

        To the log and not to us: what the command leaves in the background may keep its output open, or print without
        end.
        """
        with await to_thread.run_sync(self._opened) as output:
            began = output.tell()
            try:
                async with await anyio.open_process(
                    self.file.start, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
                ) as process:
                    return await process.wait(), began
            except OSError as error:
                why = f"{self.file.start[0]} cannot be run ({error.strerror})"
                raise Stuck(f"{self._why(why)}; correct `start` in [colours.{self.name}]") from error

    def _spawned(self) -> "subprocess.Popen[bytes]":
        """Start it in a session of its own, so that it outlives us and our terminal. Blocks."""
        runner = [] if self.file.runner is None else ["--runner", self.file.runner]
        command = [sys.executable, "-m", "taskscaler_gitlab", "run", str(self.file.path), *runner]
        with self._opened() as output:
            return subprocess.Popen(  # noqa: S603  (this program, with the operator's own files)
                [*command, "--socket", str(self.file.socket)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.file.path.parent,
            )

    def _opened(self) -> BinaryIO:
        """The log, for more at its end. Blocks."""
        make_private(self.log.parent, hide=True)
        return open(self.log, "ab", opener=open_private)

    def _failure(self, what: str) -> str:
        return f"{self._why(what)}; {self.log} ends with: {self._said_since(0)}"

    def _said_since(self, began: int) -> str:
        """The last lines of the log from there on."""
        said: list[str] = []
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(began, self.log.stat().st_size - _MOST_SHOWN))
            said = _tail(file.read(_MOST_SHOWN))
        return " / ".join(said) or "nothing"

    def _why(self, what: str) -> str:
        return f"{self.name} does not start: {what}"

    async def _answers(self) -> bool:
        try:
            self._checked(await self._ask("GET", "/status"))
        except NoDaemon:
            return False
        return True

    async def fly_canary(self) -> Canary:
        """See `Colour.fly_canary`."""
        said = await self._ask("POST", "/canary", json={}, timeout=None)
        return Canary(passed=said["passed"] is True, says=one_line(str(said["says"])), log=tuple(map(str, said["log"])))

    async def pause(self) -> None:
        """See `Colour.pause`."""
        await self._ask("POST", "/pause", json={})

    async def unpause(self) -> None:
        """See `Colour.unpause`."""
        await self._ask("POST", "/unpause", json={})

    async def delete(self) -> None:
        """See `Colour.delete`."""
        await self._ask("POST", "/drain", json={"delete": True, "timeout": 1.0}, timeout=60.0)

    async def tidy(self) -> None:
        """See `Colour.tidy`."""
        await to_thread.run_sync(unpause, self.file.directory)

    async def _ask(self, method: str, path: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401  (of `ask`)
        self._bury()
        return await to_thread.run_sync(partial(ask, self.file.socket, method, path, **more), abandon_on_cancel=True)

    def _bury(self) -> None:
        """Leave no zombie of a service that we have started and that has ended."""
        if self._child is not None:
            self._child.poll()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _tail(output: bytes) -> list[str]:
    lines = (one_line(line) for line in output.decode(errors="replace").splitlines())
    return [line for line in lines if line.strip()][-_SHOWN:]
