"""Commands that outlive the connection, on hosts that have a POSIX shell and the usual tools, and nothing of ours.

Each has a directory, ``~/.fleeting/detached/NAME``, that only its user can enter, and a supervisor, which is a shell in
a session of its own::

    process      the host's boot, the supervisor's process id and when that began, the process group of both
    output       what the command wrote, standard and error output together, up to a limit
    ending       becomes ``kept.CUT`` once the output has ended, and ``ended.STATUS.SIGNAL.CUT`` once all has

That is one file, which is renamed: so the end is noted at once or not at all, even on a full disk, and by whoever makes
the directory the name is taken. A process id alone says little, since it is given to others later, after a reboot
above all; with the time when its process began, and the boot, it belongs to that process only. No clock is asked for.

`tee` keeps the output, under a limit that the system puts on its file; what exceeds that, or a full disk, is counted
by `wc`, and the command goes on. Everybody on the host can read the arguments of a process, so the environment comes
through the standard input of the command that starts it, and so does its input, which ends in a mark: a connection
that breaks must not make a shorter input of it.
"""

import os
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import evolve

from fleeting._errors import CommandLost, ConnectError, NameTaken
from fleeting._protocols import KEPT_OUTPUT, Detached, Sink, Source
from fleeting._types import Completed
from fleeting.connectors._base import BaseConnection, Invocation
from fleeting.connectors._collect import Collector, Ending
from fleeting.connectors._detached_report import checked_name, ended, listed
from fleeting.connectors._stdin import arriving, reading

LONGEST_ENVIRONMENT: Final = 120_000
"""Bytes: the command gets it as one variable, and Linux takes none above 128 KiB."""

GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL for a command that is killed."""

_BLOCK: Final = 512
"""Bytes in which a shell counts the size of a file that it limits."""

_IDENTITY: Final = """
booted() {
    { IFS= read -r _boot < /proc/sys/kernel/random/boot_id; } 2>/dev/null ||
        _boot=$(sysctl -n kern.bootsessionuuid 2>/dev/null || sysctl -n kern.boot_id 2>/dev/null)
}
born() {
    if [ -r /proc/self/stat ]; then
        { IFS= read -r _born < "/proc/$1/stat"; } 2>/dev/null || { _born=; return; }
        set -- ${_born##*)}
        [ "$1" = Z ] && _born= || _born=${20}
    else
        _born=$(ps -o lstart= -p "$1" 2>/dev/null)
    fi
}
pause() { sleep "$1" 2>/dev/null || sleep 1; }
"""
"""Which boot this is, and when a process began; zombies have ended: in a container there may be nobody to reap them."""

# The arguments: name, mark of the input, lines of environment, blocks of output, directory, what supervises, where all
# commands have theirs, and the command.
_START: Final = """
_fleeting_n=$3 _fleeting_env= _fleeting_here=${5:-$PWD} _fleeting_session=setsid
while [ "$_fleeting_n" -gt 0 ]; do
    IFS= read -r _fleeting_l || exit
    _fleeting_env="$_fleeting_env$_fleeting_l
" _fleeting_n=$((_fleeting_n - 1))
done
export _fleeting_env
command -v setsid >/dev/null || {
    _fleeting_session=
    kill -s 0 -- -$$ 2>/dev/null || { echo "the instance has no setsid" >&2; exit 1; }
}
umask 077
_fleeting_base=${7:-${HOME:?is not set, so commands cannot be detached}/.fleeting/detached}
[ -d "$_fleeting_base" ] || mkdir -p -- "$_fleeting_base" || exit
CDPATH= cd -P -- "$_fleeting_base" || exit
[ ! -e "$1" ] || { echo taken; exit; }
if [ "$2" ]; then
    trap 'rm -f -- ".$2"; exit 1' HUP INT TERM
    cat > ".$2" && [ "$(tail -c ${#2} -- ".$2")" = "$2" ] &&
        dd if=/dev/null of=".$2" bs=1 seek=$(($(wc -c < ".$2") - ${#2})) 2>/dev/null ||
        { rm -f -- ".$2"; echo "its input could not be kept on the instance" >&2; exit 1; }
fi
{ $_fleeting_session /bin/sh -s -- $$ "$_fleeting_here" "$_fleeting_session" "$@" 2>/dev/null <<END &
$6
END
} | { IFS= read -r said && printf '%s\\n' "$said"; }
[ ! "$2" ] || [ ! -e ".$2" ] || rm -f -- ".$2"
"""

# The arguments: a process group, a directory, whether there is a new session, and those of what starts it. A command
# has no variable of ours. The shell says on its error output which signal ended it, below an empty line, which made
# room for that before the disk was full. What left the process group and still writes is not waited for.
_SUPERVISE: Final = f"""
{_IDENTITY}
trap : HUP INT TERM
mkdir -- "$4" || {{ [ -e "$4" ] && echo taken || echo refused; exit; }}
cd -- "$4" || exit
booted
born $$
[ -z "$3" ] || {{ shift; set -- $$ "$@"; }}
: > ending && : > output && echo > said && {{ [ -z "$5" ] || mv -- "../.$5" input; }} &&
    printf '%s\\n' "$_boot" $$ "$_born" "$1" > process ||
    {{ cd .. && rm -rf -- "$4"; echo refused; exit; }}
exec 4>&1 2>> said
[ "$5" ] && _input=input || _input=/dev/null
{{
    trap : HUP INT TERM
    (
        echo started >&4
        exec 4>&-
        [ -z "$5" ] || rm -f input
        cd -- "$2" || exit 127
        shift 10
        eval "$_fleeting_env"
        unset _fleeting_env OLDPWD
        exec "$@"
    ) 2>&1 < "$_input"
    status=$?
    exec >/dev/null
    {{ read -r signal; read -r signal; }} < said
    [ "$signal" ] && [ $status -gt 128 ] && signal=$(kill -l $status) || signal=
    exec 2>/dev/null
    kept() {{
        n=$1
        while set -- kept.*; [ ! -e "$1" ]; do
            [ -e ending ] && [ "$n" -gt 0 ] || return
            n=$((n - 1))
            pause 0.05
        done
    }}
    kept 10 || {{ kill -s TERM -- "-$1"; kept 40; }}
    set -- "$1" kept.*
    [ -e "$2" ] && exec mv -- "$2" "ended.$status.$signal.${{2#kept.}}"
    mv ending "ended.$status.$signal.0"
    kill -s KILL -- "-$1"
}} | {{
    trap '' HUP INT TERM XFSZ
    exec >/dev/null 2>&1 4>&-
    unset _fleeting_env
    ulimit -f "$7"
    size=$(tee output | wc -c)
    mv ending "kept.$((size - $(wc -c < output)))"
}}
"""

_LOOK: Final = f"""{_IDENTITY}
is_over() {{
    set -- "$1"/ended.*
    [ -e "$1" ] && state="ended ${{1##*/ended.}}"
}}
look() {{
    is_over "$1" && return
    [ -d "$1" ] || {{ state=absent; return; }}
    {{
        {{ IFS= read -r was && read -r watcher && IFS= read -r since && read -r group; }} < "$1/process"
    }} 2>/dev/null || {{ state=unborn; return; }}
    state=running
    [ "$was" = "$_boot" ] || state=rebooted
    born "$watcher"
    [ $state != running ] || [ "$_born" = "$since" ] || state=killed
    is_over "$1" || :
}}
booted
"""
"""How the command in a directory is; whether it has ended is looked at twice, since it may end in between."""

_THERE: Final = f"""
CDPATH= cd -P -- "${{1:-$HOME/.fleeting/detached}}" 2>/dev/null || {{ [ $# -eq 1 ] || echo absent >&2; exit; }}
shift
{_LOOK}
"""

# A line now and then on an output that nobody reads any more ends this, when the connection broke.
_ATTACH: Final = f"""
{_THERE}
look "$1"
n=0
while [ $state = unborn ] && [ $n -lt 20 ]; do n=$((n + 1)); pause 0.05; look "$1"; done
[ "$state" = absent ] || {{
    exec 3< "$1/output"
    tail -c "+$2" <&3 || exit
    n=0
    while [ "$state" = running ]; do
        if [ $n -lt 40 ]; then pause 0.05; elif [ $n -lt 100 ]; then pause 0.2; else pause 0.5; fi
        [ $(((n = n + 1) % 16)) -ne 0 ] || echo >&2
        look "$1"
        cat <&3 || exit
    done
    [ "$state" != absent ] || state=removed
}}
echo "$state" >&2
"""

_KILL: Final = f"""
{_THERE}
look "$1"
[ "$state" != running ] || kill -s TERM -- "-$group"
n=GRACE
while [ "$state" = running ] && [ $n -gt 0 ]; do pause 0.05; n=$((n - 1)); look "$1"; done
[ "$state" != running ] || {{ kill -s KILL -- "-$group"; state=killed; }}
[ "$state" != killed ] || {{
    set -- "$1" "$1"/kept.*
    [ -e "$2" ] || set -- "$1" "$1/ending"
    mv -- "$2" "$1/ended.137.KILL.0"
    look "$1"
}}
echo "$state" >&2
""".replace("GRACE", str(round(GRACE / 0.05)))

_FORGET: Final = f"""
{_THERE}
look "$1"
[ "$state" = running ] || [ "$state" = absent ] || mv -- "$1" ".gone-$$" && rm -rf -- ".gone-$$"
echo "$state" >&2
"""

_LIST: Final = f"""
{_THERE}
for name in *; do
    [ ! -d "$name" ] || {{ look "$name"; printf '%s\\n' "$name $state"; }}
done
"""

_NO_FILES: Final = "its files could not be made on the instance; check the disk, and the permissions of the home"
_LAST_WORDS: Final = 1 << 12  # bytes
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class PosixConnection(BaseConnection):
    """A connection to a POSIX host, where commands can outlive it: a `RunsDetached`."""

    __slots__ = ()

    @property
    def detached_directory(self) -> str:
        """Where detached commands are kept on the host; empty: in ``~/.fleeting/detached``."""
        return ""

    async def launch(self, invocation: Invocation) -> Completed:
        """Run what starts a detached command, as `perform` does, but let go on what leaves its session.

        A subclass whose `perform` ends that as well has to do otherwise here.
        """
        return await self.perform(invocation)

    async def start(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        stdin: Source | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        keep: int = KEPT_OUTPUT,
    ) -> None:
        """Start a command, as `RunsDetached.start` says."""
        exports, count = _exports(env or {})
        mark = secrets.token_hex(16) if stdin else ""
        arguments = (checked_name(name), mark, count, str(max(1, keep // _BLOCK)), cwd or "")
        argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
        said, complaint = Collector("stdout"), Ending(_LAST_WORDS)
        begun = await self.launch(
            Invocation(
                command=("/bin/sh", "-c", _START, "sh", *arguments, _SUPERVISE, self.detached_directory, *argv),
                stdin=_marked(exports, stdin, mark.encode()) if mark else exports,
                stdout=said,
                stderr=complaint,
                env={},
                cwd=None,
            )
        )
        if said.data == b"started\n":
            return
        if said.data == b"taken\n":
            raise NameTaken(name)
        is_refused = said.data == b"refused\n"
        why = _NO_FILES if is_refused else evolve(begun, stderr=bytes(complaint.data)).account
        raise ConnectError(f"the command {name!r} could not be started: {why}")

    async def attach(self, name: str, *, offset: int = 0, output: Sink) -> Completed:
        """Join a command, as `RunsDetached.attach` says."""
        if offset < 0:
            raise ConnectError(f"output cannot be read from byte {offset}; the first one is 0")
        return ended(name, await self._state(_ATTACH, checked_name(name), str(offset + 1), output=output))

    async def list_detached(self) -> Sequence[Detached]:
        """Look at all, as `RunsDetached.list_detached` says."""
        completed = await self.run(("/bin/sh", "-c", _LIST, "sh", self.detached_directory), check=True)
        return list(listed(completed.stdout.decode(errors="replace")))

    async def kill(self, name: str) -> None:
        """End a command, as `RunsDetached.kill` says."""
        with suppress(CommandLost):
            ended(name, await self._state(_KILL, checked_name(name)))

    async def forget(self, name: str) -> None:
        """Remove what is kept of a command, as `RunsDetached.forget` says."""
        if await self._state(_FORGET, checked_name(name)) == "running":
            raise ConnectError(f"the command {name!r} still runs, so it cannot be forgotten; kill it first")

    async def _state(self, script: str, *arguments: str, output: Sink | None = None) -> str:
        """Have the host do something with a command, and return the word for how it is now."""
        said = Ending(_LAST_WORDS)
        command = ("/bin/sh", "-c", script, "sh", self.detached_directory, *arguments)
        completed = await self.run(command, stdout=output, stderr=said)
        *_, last = [line for line in said.data.decode(errors="replace").splitlines() if line] or [completed.outcome]
        return last


def _exports(env: Mapping[str, str]) -> tuple[bytes, str]:
    """Write what a shell reads to have these variables, and how many lines that is.

    Raises:
        ConnectError: No shell can have them.
    """
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise ConnectError(f"{name!r} cannot be a shell variable, so it cannot be in a command's environment")
        if "\0" in value:
            raise ConnectError(f"the variable {name} of a command's environment cannot contain NUL characters")
    exports = os.fsencode("".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items()))
    if (size := len(exports)) > LONGEST_ENVIRONMENT:
        raise ConnectError(
            f"the command's environment has {size} bytes, more than the limit of {LONGEST_ENVIRONMENT};"
            " pass data on stdin"
        )
    return exports, str(exports.count(b"\n"))


async def _marked(first: bytes, stdin: Source | None, mark: bytes) -> AsyncIterator[bytes]:
    """Yield what is read first, the input, and the mark that says that this was all."""
    yield first
    async with reading(arriving(stdin)) as chunks:
        async for chunk in chunks:
            yield chunk
    yield mark
