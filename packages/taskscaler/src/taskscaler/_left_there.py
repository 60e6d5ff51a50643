"""What holders of a kept lease leave on its instance: commands, and a directory for their files.

A command that was left running on purpose is a detached one. One whose output is on its way to a shell here is
registered in the directory: should the shell be killed, it would work on, over SSH until it writes something.
"""

from collections.abc import Sequence
from typing import Final

from fleeting import ConnectError, Connection
from fleeting.connectors import ReportsSystem, RunsDetached

_BORN: Final = """
born() {
    if [ -r /proc/self/stat ]; then
        { IFS= read -r _t_born < "/proc/$1/stat"; } 2>/dev/null || { _t_born=; return; }
        set -- ${_t_born##*)}
        [ "$1" = Z ] && _t_born= || _t_born=${20}
    else
        set -- $(ps -o lstart= -p "$1" 2>/dev/null)  # without the blanks around it, which `read` does not keep
        _t_born="$*"
    fi
}
"""
"""When a process began, which it has alone among all that get its number; empty: it has ended."""

_REGISTER: Final = f"""{_BORN}
note() {{
    [ -d "$1" ] || (umask 077; exec mkdir -p -- "$1") || return
    born $$
    echo "$$ $_t_born" > "$1/process"
}}
note "$1" || {{
    [ ! "$2" ] || exit 126
    echo "taskscaler: $1 cannot be written, so the command may work on if its shell is killed" >&2
}}
[ ! "$2" ] || cd -- "$2" || exit 127
shift 2
exec "$@"
"""
"""Become a command, once it is noted which process that is. The arguments: the directory, where to run, the command.

Without a working tree nothing else is needed of the directory: a full disk is warned of, and the command can free it.
"""

_NOTE_NONE: Final = """
[ -d "$1" ] || (umask 077; exec mkdir -p -- "$1") || exit
echo none > "$1/process"
"""

_FIND: Final = f"""{_BORN}
unknown() {{
    echo "$1/process $2, so nobody knows what runs there" >&2
    exit 4
}}
find_noted() {{
    [ -e "$1/process" ] || {{ [ ! "$2" ] || unknown "$1" "is gone"; exit 3; }}
    {{ read -r pid was < "$1/process"; }} 2>/dev/null || unknown "$1" "cannot be read"
    [ "$pid" != none ] || exit 3
    case $pid in 1 | 0* | '' | *[!0-9]*) unknown "$1" "was changed" ;; esac  # -1 would be every process
    [ "$was" ] || unknown "$1" "has no time"
    [ ! -r /proc/self/stat ] || case $was in *[!0-9]*) unknown "$1" "was changed" ;; esac
}}
members() {{
    if [ -r /proc/self/stat ]; then
        for _t_file in /proc/[0-9]*/stat; do
            {{ IFS= read -r _t_line < "$_t_file"; }} 2>/dev/null || continue
            set -- ${{_t_line##*)}}
            [ "$3" = "$pid" ] && [ "$1" != Z ] && [ "${{20}}" -ge "$was" ] && return
        done
        return 1
    fi
    ps -A -o pgid= -o stat= 2>/dev/null | {{
        while read -r _t_group _t_state; do
            case "$_t_group $_t_state" in "$pid Z"*) ;; "$pid "*) exit 0 ;; esac
        done
        exit 1
    }}
}}
lives() {{
    born "$pid"
    case $_t_born in
        "$was") return ;;
        '') members ;;
        *) return 1 ;;  # the number was given again, so the group has gone before
    esac
}}
find_noted "$1" "$2"
"""
"""Find the command that was registered last: `lives` says whether it, or any of its group, is there.

The first of a group often ends before the others; its number is given to nobody until they have ended, too. Those that
began before it are of another group, of before the system was started again. The arguments: the directory, and whether
it must have been noted which command that is. Exits with 3 if there is none, and with 4 if nobody knows.
"""

_END: Final = f"""{_FIND}
await() {{
    n=0
    while [ $n -lt 10 ] && lives; do
        n=$((n + 1))
        sleep 0.2 2>/dev/null || sleep 1
    done
}}
lives || exit 0
kill -TERM "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null
await
lives || exit 0
kill -KILL "-$pid" 2>/dev/null || kill -KILL "$pid"
await
! lives
"""
"""End the command that was registered last, with its process group, as far as any of it still runs: what is deaf to
SIGTERM is killed after two seconds."""

_ASK: Final = f"""{_FIND}
lives || exit 3
kill -TERM "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null || exit 3
"""
"""Ask the command that was registered last to end, with its process group; 3: none runs."""

_NONE: Final = 3
"""The exit status of these if nothing was registered."""

_REMOVE: Final = """
[ ! -d "$1" ] || rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1" && rm -rf -- "$1"; }
"""
"""What was run there may have taken its own permissions from directories, hence the second try."""


def command_name(name: str) -> str:
    """Name the detached command of a kept lease, as `RunsDetached` wants it."""
    return f"lease-{name}"


def directory_of(name: str) -> str:
    """Give the directory of a kept lease, relative to where commands start."""
    return f".taskscaler/lease-{name}"


def registering(name: str, command: str | Sequence[str], cwd: str | None) -> Sequence[str]:
    """Give a command that notes which process it is, so that `end_registered` ends it.

    Args:
        name: Of the kept lease.
        command: A line for a shell, or a program and its arguments.
        cwd: Where it runs. None: where commands start.
    """
    argv = ("/bin/sh", "-c", command) if isinstance(command, str) else command
    return ("/bin/sh", "-c", _REGISTER, "sh", directory_of(name), cwd or "", *argv)


async def note_none(connection: Connection, name: str) -> None:
    """Note that no command was registered yet, so that it is noticed if the note of one is gone later.

    Raises:
        ConnectError: Nothing can be noted there.
    """
    noted = await connection.run(("/bin/sh", "-c", _NOTE_NONE, "sh", directory_of(name)))
    if not noted.ok:
        raise ConnectError(f"{directory_of(name)} cannot be written, so nothing can be run there: {noted.account}")


async def end_registered(connection: Connection, name: str, *, noted: bool = False) -> None:
    """End the command that was registered last, and its process group, as far as any of it still runs.

    Args:
        connection: To the instance.
        name: Of the kept lease.
        noted: Whether `note_none` was called, so that a note that is missing was removed.

    Raises:
        ConnectError: Some of it does, or nobody knows.
    """
    script = ("/bin/sh", "-c", _END, "sh", directory_of(name), "noted" if noted else "")
    ended = await connection.run(script)
    if not ended.ok and ended.exit_status != _NONE:
        raise ConnectError(f"what runs in {directory_of(name)} could not be ended: {ended.account}")


async def ask_to_end(connection: Connection, name: str) -> bool:
    """Ask the command that was registered last to end, and wait for nothing; returns whether it runs."""
    return (await connection.run(("/bin/sh", "-c", _ASK, "sh", directory_of(name), ""))).ok


def is_posix(connection: Connection) -> bool:
    """Whether there is a shell that can do all this."""
    return not (isinstance(connection, ReportsSystem) and connection.os == "windows")


async def is_running(connection: Connection, name: str) -> bool:
    """Whether the detached command of a kept lease has not ended."""
    if not isinstance(connection, RunsDetached):
        return False
    return any(each.name == command_name(name) and each.is_running for each in await connection.list_detached())


async def remove_directory(connection: Connection, name: str) -> None:
    """Remove the directory.

    Raises:
        ConnectError: Some of it is still there.
    """
    removed = await connection.run(("/bin/sh", "-c", _REMOVE, "sh", directory_of(name)))
    if not removed.ok:
        raise ConnectError(f"{directory_of(name)} could not be removed: {removed.account}")


async def remove_all(connection: Connection, name: str, *, noted: bool = False) -> None:
    """End the commands, and remove them and the directory.

    Args:
        connection: To the instance.
        name: Of the kept lease.
        noted: As of `end_registered`.

    Raises:
        ConnectError: Some of it is still there, or nobody knows.
    """
    if isinstance(connection, RunsDetached):
        found = [each for each in await connection.list_detached() if each.name == command_name(name)]
        for each in found:
            if each.is_running:
                await connection.kill(each.name)
            await connection.forget(each.name)
    if is_posix(connection):  # elsewhere nobody brings files
        await end_registered(connection, name, noted=noted)
        await remove_directory(connection, name)
