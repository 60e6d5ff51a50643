"""Jobs on POSIX instances: shell scripts, and tar through the connection.

A script that starts with ``#!`` is run by what it names; any other by ``/bin/sh -e``, which stops at the first command
that fails. The instance needs a POSIX shell and ``tar``.

One command makes the directory, takes in what the job needs, runs it and removes what is left: over a slow network each
more would cost a small job more than itself. Everybody on the instance can read the arguments of a command, so the
environment and the script come through its standard input. How far it has come is on its error output, which the job
does not have, in lines that begin with a mark which nobody can guess::

    left NAME          directories of our manager's other tries
    began              the directory is made
    refused STATUS     tar could not unpack what the job needs
    runs               it could, and the job is begun
    ended STATUS NAME  the job is over; with the name of a signal, if its status may mean one
    used WORD          what it has used, as `fleeting.connectors.REPORT_USAGE` says it
"""

import os
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import define, field

from fleeting import Completed, ConnectError, Connection, Unreachable, Usage
from fleeting.archives import BLOCK, Member, Packed, header
from fleeting.connectors import REPORT_USAGE, Sink, read_usage
from taskscaler.executors import directories
from taskscaler.executors._slot import MOST_NAMES, Progress, Wanted
from taskscaler.executors.directories import EMPTY

# The arguments: base, name, owner, lines of environment, what follows them, what runs the script, who cleans up, and
# with what.
_TRY: Final = """
IFS= read -r _taskscaler_mark || exit
_taskscaler_env= _taskscaler_n=$4
while [ "$_taskscaler_n" -gt 0 ]; do
    IFS= read -r _taskscaler_l || exit
    _taskscaler_env="$_taskscaler_env$_taskscaler_l
" _taskscaler_n=$((_taskscaler_n - 1))
done
[ -d "$1" ] || (umask 077; exec mkdir -p -- "$1") || exit
CDPATH= cd -P -- "$1" && mkdir -m 700 -- "$2" || exit
_taskscaler_n=
for _taskscaler_l in slot-*-"$3"-*-*; do
    [ "$_taskscaler_l" = "$2" ] || [ ! -d "$_taskscaler_l" ] || _taskscaler_n="$_taskscaler_n\
$_taskscaler_mark left $_taskscaler_l
"
done
if [ "$5" = files ]; then
    printf '%s\\n' "$_taskscaler_n$_taskscaler_mark began" >&2
    tar -xf - || { echo "$_taskscaler_mark refused $?" >&2; exit; }
    echo "$_taskscaler_mark runs" >&2
else
    (umask 077; exec cat > "$2.script") || exit
    [ "$6" = sh ] || chmod 700 "$2.script" || exit
    printf '%s\\n' "$_taskscaler_n$_taskscaler_mark began" >&2
fi
_taskscaler_l="_taskscaler_export() {
:
$_taskscaler_env}
_taskscaler_mark=$_taskscaler_mark
$8"
trap : TERM
if [ "${BASH_VERSION-}" ]; then
    /bin/sh -s -- "$@" <<END
$_taskscaler_l
END
else
    (eval "$_taskscaler_l")
fi
_taskscaler_n=$?
[ $_taskscaler_n -le 128 ] || { trap - TERM; kill -s "$(kill -l $_taskscaler_n)" $$; }
[ "$7" = keep ] && exit
eval "$9"
empty "$2"
exit
"""
"""A shell of its own becomes `_RUN`: all that this one has waited for in the end is the job, so that what it has used
is what the job has. If the job has ended that one as well, this one ends likewise.

For bash it is one that reads commands, as only that one says which signal ended a job. It reads the mark and the job's
environment: its own environment, which other jobs of the same user can read, has neither, and is not too large for the
system.
"""

# The job has its time to end after SIGTERM, so the shell waits for it. A status above 128 is that of a script which
# exits with it, or a signal's: shells then write a line of their own, but for SIGINT and SIGPIPE.
_RUN: Final = f"""{REPORT_USAGE}
trap : TERM
(
    cd "./$2" && set -- "$PWD.script" "$6" || exit
    _taskscaler_export
    [ "$2" = sh ] || exec "$1"
    exec /bin/sh -e "$1"
) 2>&1 </dev/null
_taskscaler_n=$?
if [ $_taskscaler_n -gt 128 ]; then
    case $(kill -l $_taskscaler_n 2>/dev/null) in
        [A-Z]*) _taskscaler_n="$_taskscaler_n $(kill -l $_taskscaler_n)" ;;
    esac
fi
echo "$_taskscaler_mark ended $_taskscaler_n" >&2
exec >&2 2>/dev/null
report_usage "$_taskscaler_mark used "
exit
"""

_CLEAN_UP: Final = """
CDPATH= cd -- "$1" && exec /bin/sh -e -c "$2" 2>&1
"""

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENDED: Final = re.compile(rb"ended ([0-9]{1,3})(?: ([A-Z][A-Z0-9+-]{0,15})?.*)?")
_LONGEST_LINE: Final = 1 << 14  # bytes
_LINES_OF_TIMES: Final = 2  # as a shell's `times` writes them
_MOST_WORDS: Final = 16
LAST_WORDS: Final = 1 << 12
"""Bytes that are kept of what is said before something fails."""

_SECOND: Final = 10**9  # nanoseconds: tar complains of a file that is older


@define
class PosixSlot:
    """See `Slot`."""

    connection: Connection
    wanted: Wanted
    is_there: bool = field(default=False, init=False)
    usage: Usage = field(default=Usage(), init=False)
    _left: Sequence[str] = field(default=(), init=False)
    """Names of directories of our manager's other tries."""

    @property
    def directory(self) -> str:
        """See `Slot.directory`."""
        return f"{self.wanted.base}/{self.wanted.name}"

    async def run(self, files: Mapping[str, Path], output: Sink, progress: Progress) -> None:
        """See `Slot.run`."""
        wanted, mark = self.wanted, secrets.token_hex(8)
        exports = exports_of(wanted.env)
        head = os.fsencode(f"{mark}\n{exports}")
        script = wanted.script.encode()
        how = (
            str(exports.count("\n")),
            "files" if files else "script",
            "" if wanted.script.startswith("#!") else "sh",
            "keep" if wanted.is_kept else "remove",
        )
        command = ("/bin/sh", "-c", _TRY, "sh", wanted.base, wanted.name, wanted.owner, *how, _RUN, EMPTY)
        stdin = together(head, f"{wanted.name}.script", script, wanted.name, files) if files else head + script
        report = _Report(mark.encode(), self, progress)
        try:
            completed = await self.connection.run(command, stdin=stdin, stdout=output, stderr=report)
        except Unreachable:
            if not report.has_ended or report.was_killed:  # whatever ended the connection may have ended the job before
                raise
            return  # what is left to do there is for those to try who come later
        finally:
            self._left, self.usage = report.left, read_usage(report.used)
        if not self.is_there:
            account = report.account(completed)
            raise ConnectError(f"cannot prepare {self.directory} on {wanted.instance}: {account}")
        if report.refused is not None:
            raise ConnectError(f"cannot upload the job's files: {report.refused}")
        if not report.has_ended:
            if completed.signal is None:
                account = report.account(completed)
                raise ConnectError(f"its shell ended without saying how the job did: {account}")
            progress.ended(completed)  # the job has ended its shell as well
        elif completed.ok and not wanted.is_kept:
            self._note_removal()

    async def run_cleanup(self, script: str, output: Sink) -> Completed:
        """See `Slot.run_cleanup`."""
        command = ("/bin/sh", "-c", _CLEAN_UP, "sh", self.directory, script)
        return await self.connection.run(command, stdout=output, stderr=output, env=self.wanted.env)

    async def download(self, patterns: Sequence[str], store: Sink) -> Completed:
        """See `Slot.download`."""
        return await directories.download(self.connection, self.directory, patterns, store)

    async def remove(self) -> Completed:
        """See `Slot.remove`."""
        removed = await directories.remove(self.connection, [self.directory])
        if removed.ok:
            self._note_removal()
        return removed

    async def remove_leftovers(self) -> None:
        """See `Slot.remove_leftovers`."""
        if leftovers := self.wanted.leftovers(self._left):
            await directories.remove(self.connection, [f"{self.wanted.base}/{name}" for name in leftovers])

    def _note_removal(self) -> None:
        self.is_there = False
        self.wanted.runs.left_nothing(self.wanted.unit)


def exports_of(env: Mapping[str, str]) -> str:
    """Write what a shell reads to have these variables.

    Raises:
        ConnectError: No shell can have one of them.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ConnectError(f"{name!r} cannot be a shell variable, so it cannot be in a job's environment")
        if "\0" in value:
            raise ConnectError(f"the variable {name} of the job's environment cannot contain NUL characters")
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())


async def together(
    head: bytes, name: str, script: bytes, directory: str, files: Mapping[str, Path]
) -> AsyncIterator[bytes]:
    """Yield the head, then an archive of the script and of what goes into the directory."""
    member = Member(name=name.encode(), size=len(script), mode=0o700, mtime=_SECOND)
    yield head + header(member) + script + bytes(-len(script) % BLOCK)
    async for chunk in Packed.of({f"{directory}/{inner}": path for inner, path in files.items()}):
        yield chunk


@define
class _Report:
    """What comes on the error output of the command that runs a job. The job may write there, if it does its worst."""

    _mark: bytes
    _slot: PosixSlot
    _progress: Progress
    has_ended: bool = field(default=False, init=False)
    was_killed: bool = field(default=False, init=False)
    """Whether it was a signal that ended it."""

    left: list[str] = field(factory=list, init=False)
    """Names of directories."""

    refused: str | None = field(default=None, init=False)
    """Why the job's files were."""

    used: list[str] = field(factory=list, init=False)
    """Words about what the job has used."""

    _times: int = field(default=0, init=False)
    """Lines about that which come without a mark."""

    _said: bytes = field(default=b"", init=False)
    """The end of what was said since the last line with a mark."""

    _rest: bytes = field(default=b"", init=False)
    """The beginning of a line."""

    async def __call__(self, chunk: bytes) -> None:
        """Take it in."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[:_LONGEST_LINE]
        for line in lines:
            mark, _, words = line.partition(b" ")
            if mark == self._mark:
                self._take(words)
                self._said = b""
            elif self._times:
                self._times -= 1
                self._use(line)
            else:
                self._said = (self._said + line + b"\n")[-LAST_WORDS:]

    def account(self, completed: Completed) -> str:
        """Say how a command ended, and what was said last."""
        return Completed(
            exit_status=completed.exit_status, signal=completed.signal, stderr=self._said + self._rest
        ).account

    def _take(self, words: bytes) -> None:
        kind, _, rest = words.partition(b" ")
        if kind == b"left" and len(self.left) < MOST_NAMES:
            self.left.append(rest.decode(errors="replace"))
        elif kind == b"began" and not self._slot.is_there:
            self._slot.is_there = True
            self._progress.began()
        elif kind == b"refused":
            self.refused = self.account(Completed(exit_status=int(rest) if rest.isdigit() else None))
        elif kind == b"used":
            self._times = _LINES_OF_TIMES if rest == b"times" else 0
            self._use(rest)
        elif (ended := _ENDED.fullmatch(words)) and not self.has_ended:
            self.has_ended = True
            completed = self._completed(int(ended[1]), ended[2])
            self.was_killed = completed.signal is not None
            self._progress.ended(completed)

    def _use(self, words: bytes) -> None:
        self.used = [*self.used, *words.decode(errors="replace").split()][:_MOST_WORDS]

    def _completed(self, status: int, signal: bytes | None) -> Completed:
        """How the job ended: by a signal if its status may mean one, and the shell says that it does."""
        if signal and self._said:
            return Completed(exit_status=None, signal=f"SIG{signal.decode()}")
        return Completed(exit_status=status)
