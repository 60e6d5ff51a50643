"""Jobs on POSIX instances that outlive the manager: detached commands, in directories that are found again.

A command of the connection's `RunsDetached` makes the job's directory, takes in what the job needs, and becomes the
job. Its output begins with a line that says so, or says what went wrong before; the rest is the job's own. Directory
and command have one name, of which a later manager knows every part::

    kept-SLOT-MANAGER-INSTANCE-TRY

So it also knows what nobody needs any more: in a slot that was given to somebody else, the job of an earlier lease;
and what runs on this machine under the name of an instance that it no longer is, as fixed hosts get others.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
from attrs import define, evolve, field

from fleeting import Completed, ConnectError, Connection, Unreachable
from fleeting.connectors import RunsDetached, Sink, Source, StartsAttached
from fleeting.errors import NameTaken
from taskscaler.executors._posix import LAST_WORDS, PosixSlot, exports_of, together
from taskscaler.executors._slot import MOST_LEFTOVERS, MOST_NAMES, Wanted
from taskscaler.executors.runs import Place

_BEGAN: Final = b"began\n"
_REFUSED: Final = b"refused "

# The arguments: base, name, lines of environment, what follows them, and what runs the script.
_BEGIN: Final = f"""
_taskscaler_env= _taskscaler_n=$3
while [ "$_taskscaler_n" -gt 0 ]; do
    IFS= read -r _taskscaler_l || exit
    _taskscaler_env="$_taskscaler_env$_taskscaler_l
" _taskscaler_n=$((_taskscaler_n - 1))
done
[ -d "$1" ] || (umask 077; exec mkdir -p -- "$1") || exit
CDPATH= cd -P -- "$1" && mkdir -m 700 -- "$2" || exit
if [ "$4" = files ]; then
    _taskscaler_l=$(tar -xf - 2>&1) || {{ printf '%s%s: %s\\n' '{_REFUSED.decode()}' $? "$_taskscaler_l"; exit 1; }}
else
    (umask 077; exec cat > "$2.script") || exit
    [ "$5" = sh ] || chmod 700 "$2.script" || exit
fi
cd "./$2" && set -- "$PWD.script" "$5" && echo {_BEGAN.decode().strip()} || exit
eval "$_taskscaler_env"
unset OLDPWD
[ "$2" = sh ] || exec "$1" </dev/null
exec /bin/sh -e "$1" </dev/null
"""


@define
class KeptSlot:
    """What there is on an instance of a try that outlives the manager."""

    connection: Connection
    detached: RunsDetached
    """The connection, which is that as well."""

    wanted: Wanted

    @property
    def rest(self) -> PosixSlot:
        """What is done with the directory of a job that has ended."""
        slot = PosixSlot(self.connection, self.wanted)
        slot.is_there = True
        return slot

    async def start(self, files: Mapping[str, Path]) -> None:
        """Start the job, unless it was started before."""
        command, stdin = self._beginning(files)
        with suppress(NameTaken):
            await self.detached.start(self.wanted.name, command, stdin=stdin)

    async def start_attached(self, files: Mapping[str, Path], started: Callable[[], object], output: Sink) -> Completed:
        """Start the job, unless it was started before, and pass on what it prints until it has ended.

        Raises:
            ConnectError: As `follow`.
        """
        if isinstance(self.detached, StartsAttached):
            command, stdin = self._beginning(files)
            beginning = _Beginning(output, is_over=False)
            with suppress(NameTaken):
                return self._ended(
                    await self.detached.start_attached(
                        self.wanted.name, command, stdin=stdin, started=started, output=beginning
                    ),
                    beginning,
                )
        else:
            await self.start(files)
        started()
        return await self.follow(0, output)

    def _beginning(self, files: Mapping[str, Path]) -> tuple[Sequence[str], Source]:
        """Write the command that becomes the job, and what it reads."""
        wanted = self.wanted
        exports, script = exports_of(wanted.env), wanted.script.encode()
        command = (
            *("/bin/sh", "-c", _BEGIN, "sh", wanted.base, wanted.name, str(exports.count("\n"))),
            "files" if files else "script",
            "" if wanted.script.startswith("#!") else "sh",
        )
        head = os.fsencode(exports)
        stdin = together(head, f"{wanted.name}.script", script, wanted.name, files) if files else head + script
        return command, stdin

    async def follow(self, offset: int, output: Sink) -> Completed:
        """Pass on what the job prints from a byte on, until it has ended.

        Raises:
            ConnectError: The instance could not do what comes before the job.
        """
        return self._ended(*await self._attach(offset, output))

    async def kill(self, offset: int, output: Sink) -> Completed:
        """End the job, and pass on what it has printed from a byte on; it may not even have begun."""
        await self.detached.kill(self.wanted.name)
        completed, _ = await self._attach(offset, output)
        return completed

    async def _attach(self, offset: int, output: Sink) -> tuple[Completed, "_Beginning"]:
        beginning = _Beginning(output, is_over=offset > 0)
        known = offset + len(_BEGAN) if offset else 0
        return await self.detached.attach(self.wanted.name, offset=known, output=beginning), beginning

    def _ended(self, completed: Completed, beginning: "_Beginning") -> Completed:
        """How the job ended, or raise why it did not begin."""
        if beginning.is_over:
            return completed
        said = beginning.said
        if said.startswith(_REFUSED):
            text = said.removeprefix(_REFUSED).decode(errors="replace").strip()
            raise ConnectError(f"cannot upload the job's files: exited with {text}")
        account = Completed(exit_status=completed.exit_status, signal=completed.signal, stderr=said).account
        raise ConnectError(f"cannot prepare {self.rest.directory} on {self.wanted.instance}: {account}")

    async def is_running(self) -> bool:
        """Whether the job has not ended."""
        found = islice(await self.detached.list_detached(), MOST_NAMES)
        return any(each.name == self.wanted.name and each.is_running for each in found)

    async def end(self, cleanup_script: str = "") -> Completed:
        """End the job, and clean up after it if it ran; and remove all that there is of it.

        Nearly always it has ended, so both are done at once: each costs a round trip.
        """
        removed = list[Completed]()
        refused = list[ConnectError]()

        async def remove() -> None:
            try:
                removed.append(await self.rest.remove())
            except ConnectError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            if not cleanup_script:  # which would find its directory gone
                tasks.start_soon(remove)
            has_ended = await self._forget(refused)
        if refused:
            raise refused[0]
        if not has_ended:
            await self.detached.kill(self.wanted.name)
            if cleanup_script:
                await self.rest.run_cleanup(cleanup_script, _drop)
            await self.detached.forget(self.wanted.name)
        return removed[0] if removed and has_ended else await self.rest.remove()

    async def _forget(self, refused: list[ConnectError]) -> bool:
        """Forget the command; returns whether it had ended."""
        try:
            await self.detached.forget(self.wanted.name)
        except Unreachable as error:
            refused.append(error)
        except ConnectError:
            return False
        return True

    async def end_leftovers(self, place: Place) -> None:
        """End what is not needed any more in the slot, and on the machine."""
        found = islice(await self.detached.list_detached(), MOST_NAMES)
        is_held = self.wanted.runs.is_held
        over = (each.name for each in found if place.is_over(each.name, runs=each.is_running, is_held=is_held))
        for name in islice((name for name in over if name != self.wanted.name), MOST_LEFTOVERS):
            await evolve(self, wanted=evolve(self.wanted, name=name)).end()


async def _drop(_: bytes) -> None:
    """Take output for which there is no log."""


@define
class _Beginning:
    """Takes the first line off the output, which is none of the job's."""

    _output: Sink
    is_over: bool
    """Whether the job's own output has begun."""

    said: bytes = field(default=b"", init=False)

    async def __call__(self, chunk: bytes) -> None:
        """Take it in."""
        if not self.is_over:
            self.said = (self.said + chunk)[: LAST_WORDS + len(chunk)]
            if not self.said.startswith(_BEGAN):
                self.said = self.said[:LAST_WORDS]
                return
            chunk, self.is_over = self.said[len(_BEGAN) :], True
        if chunk:
            await self._output(chunk)
