"""How a POSIX host keeps commands that outlive their connection: all in its own shell.

A command named NAME has three files in ``~/.fleeting/detached``, which only its user can read::

    NAME:process    the process group of the command, the host's boot, and on a line each who watches over the command
                    and the command itself, as a process id and when that process began
    NAME:output     what the command wrote, standard and error output together, up to a limit
    NAME:ending     what the shell says of the command's end, and how many bytes it has written; is renamed to
                    ``NAME:ended:STATUS:SIGNAL:CUT:`` once that is known

Making the first one takes the name, for it is made only where there is none. Renaming the last one notes the end: at
once or not at all, even on a full disk, where the two that are written to later have their place from the start. A
process id alone says little, since it is given to others later, after a reboot above all; with the time when the
process began, and the boot, it belongs to that one only. No clock is asked for.

What the command has used is asked once its end is noted, since who is asked may hang: see `_usage`. It is appended to
that last file, where there is room even on a full disk, behind a line that says so. Whoever is attached waits for it
while the process lives that asks, but not for long. An earlier release said it at the end of the name.

The shell that starts a command forks three times, and waits for no program::

    who waits for the command and begins it  |  tee, which keeps the output  |  wc, which counts it

Then it is in the way: it would wait for the end of these. In the background they would ignore SIGINT, which no shell
can undo, so the last of them, when all are there, kills it, and that is how it says that they are. What has an end of
the connection open keeps that open, so it has let go of all before the first fork. `tee` writes under a limit that the
system puts on its file; what exceeds that, or a full disk, goes no further than `wc`, and the command goes on.

A signal for the command is one for its whole process group, and so for who notes its end. From when the command has
ended, that one ignores signals, and so do the programs that it runs: each of them is needed for the note.

All that the first of them has waited for in the end is the command, so that what it has used is what the command has.
What notes the end is no child of it, then, but of a child that has ended; that all is noted is known by the end of its
output.

Whether a status above 128 is a signal's is known by what the shell says about that, in place of the command, on its own
error output; `bash` does not say it here, so there each is.

`kill` is given signals as `-KILL`: with `-s KILL --`, busybox takes the dashes for a process.

Everybody on the host can read the arguments of a process, so the environment comes through the standard input of the
shell, and so does the command's. Of that the size is known, or it ends in a mark, which is cut off: a connection that
breaks must not make a shorter input of it.
Variables of ours have a prefix, as one that the host exports would reach the command with our value.
"""

import shlex
from typing import Final

from fleeting.connectors._usage import LONGEST_ASKING, LONGEST_USAGE, REPORT_USAGE

GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL for a command that is killed."""

_SHORT_POLL: Final = 0.01
"""Seconds, where the wait is for what has just begun."""

_POLL: Final = 0.05
_SLOW_POLL: Final = 0.2
_POLLS: Final = round(GRACE / _SLOW_POLL)

_BEGINNING: Final = 30.0
"""Seconds for which a shell that lives is waited for to begin its command: on a busy host it takes long, and to be
taken for dead meanwhile would have the command run twice."""

_BEGINNING_POLLS: Final = round(_BEGINNING / _POLL)

_TAKING_POLLS: Final = 45
"""The same for one that has only taken the name so far, of which nobody knows whether it lives."""

_ASKING_POLLS: Final = round(1.5 * LONGEST_ASKING / _SLOW_POLL)
"""For which what a command has used is waited for."""

_IDENTITY: Final = """
booted() {
    { IFS= read -r _f_boot < /proc/sys/kernel/random/boot_id; } 2>/dev/null ||
        _f_boot=$(sysctl -n kern.bootsessionuuid 2>/dev/null || sysctl -n kern.boot_id 2>/dev/null)
}
born() {
    _f_pid=$1
    if [ -r /proc/self/stat ]; then
        { IFS= read -r _f_born < "/proc/$1/stat"; } 2>/dev/null || { _f_born=; return; }
        _f_pid=${_f_born%% *}
        set -- ${_f_born##*)}
        _f_group=$3
        [ "$1" = Z ] && _f_born= || _f_born=${20}
    else
        [ "$1" != self ] || _f_pid=$(exec /bin/sh -c 'echo $PPID')
        set -- $(ps -o pgid= -o lstart= -p "$_f_pid" 2>/dev/null)
        _f_group=$1
        [ ! "$1" ] || shift
        _f_born=$*
    fi
}
pause() { sleep "$1" 2>/dev/null || sleep 1; }
"""
"""Which boot this is, and when a process began, with its group; zombies have ended: in a container there may be nobody
to reap them."""

START: Final = f"""{_IDENTITY}{REPORT_USAGE}
register() {{
    born self
    [ "$_f_born" ] && echo "$_f_pid $_f_born" >> "$_f_at:process"
}}
counted() {{
    _f_pause={_SHORT_POLL}
    while :; do
        _f_total=
        _f_signal=
        while read -r _f_line; do
            case $_f_line in '') ;; *[!0-9]*) _f_signal=1 ;; *) _f_total=$_f_line ;; esac
        done < "$_f_at:ending"
        [ ! "$_f_total" ] || return 0
        [ -e "$_f_at:ending" ] && [ "$1" -gt 0 ] || return 1
        set -- $(($1 - 1))
        pause $_f_pause
        _f_pause={_POLL}
    done
}}
note_end() {{
    _f_left=
    counted 11 || {{ kill -TERM "-$$"; counted 40; }} || _f_left=left
    [ "$_f_signal$BASH_VERSION" ] && [ $_f_status -gt 128 ] && _f_signal=$(kill -l $_f_status) || _f_signal=
    _f_size=$(wc -c < "$_f_at:output")
    _f_cut=$((${{_f_total:-0}} - ${{_f_size:-0}}))
    [ $_f_cut -gt 0 ] || _f_cut=0
    mv -- "$_f_at:ending" "$_f_at:ended:$_f_status:$_f_signal:$_f_cut:"
    echo $_f_left
}}
end_what_is_left() {{
    sleep {LONGEST_ASKING}
    kill -KILL "-$$"
}}
_f_base=${{1:-${{HOME:?is not set, so commands cannot be detached}}/.fleeting/detached}}
_f_at=$_f_base/$2
_f_mark=$3
_f_lines=$4
_f_blocks=$5
_f_cwd=$6
_f_whole=$7
shift 7
_f_env=
while [ "$_f_lines" -gt 0 ]; do
    IFS= read -r _f_line || exit
    _f_env="$_f_env$_f_line
"
    _f_lines=$((_f_lines - 1))
done
[ -d "$_f_base" ] || (umask 077; exec mkdir -p -- "$_f_base") || exit
[ ! -e "$_f_at:process" ] || {{ echo taken; exit; }}
_f_input=/dev/null
[ ! "$_f_mark" ] || {{
    _f_input=$_f_base/.$_f_mark
    trap 'rm -f -- "$_f_input"; exit 1' HUP INT TERM
    cat > "$_f_input" && _f_size=$(wc -c < "$_f_input") &&
        if [ "$_f_whole" ]; then
            [ "$_f_size" -eq "$_f_whole" ]
        else
            [ "$(tail -c ${{#_f_mark}} -- "$_f_input")" = "$_f_mark" ] &&
                dd if=/dev/null of="$_f_input" bs=1 seek=$((_f_size - ${{#_f_mark}})) 2>/dev/null
        fi || {{ rm -f -- "$_f_input"; echo "its input could not be kept on the instance" >&2; exit 1; }}
    trap - HUP INT TERM
}}
set -C
{{ {{ :; }} > "$_f_at:process"; }} 2>/dev/null || {{
    [ -e "$_f_at:process" ] && echo taken || echo refused
    [ ! "$_f_mark" ] || rm -f -- "$_f_input"
    exit
}}
set +C
{{ echo > "$_f_at:ending" && {{ :; }} > "$_f_at:output" && echo $$ >> "$_f_at:process"; }} 2>/dev/null || {{
    echo refused
    [ ! "$_f_mark" ] || rm -f -- "$_f_input"
    rm -f -- "$_f_at:output" "$_f_at:ending" "$_f_at:process"
    exit
}}
echo started
exec < "$_f_input" > /dev/null 2>> "$_f_at:ending"
{{
    trap : HUP INT TERM
    booted
    printf '%s\\n' "$_f_boot" >> "$_f_at:process" && register || exit
    (
        register
        [ ! "$_f_cwd" ] || cd -- "$_f_cwd" || exit 127
        eval "$_f_env"
        exec "$@"
    ) 2>&1
    _f_status=$?
    trap '' HUP INT TERM
    exec > /dev/null
    if [ "$(note_end &)" ]; then end_what_is_left & fi
    exec >&2 2> /dev/null
    echo used
    report_usage ''
}} | {{
    trap '' HUP INT TERM PIPE XFSZ
    ulimit -f "$_f_blocks"
    exec tee "$_f_at:output" 2> /dev/null
}} | (
    trap '' HUP INT TERM
    kill -s KILL $$
    [ ! "$_f_mark" ] || rm -f -- "$_f_input"
    exec wc -c >> "$_f_at:ending"
)
"""
"""Start a command. The arguments: directory of all, name, mark of the input, lines of environment, blocks of output
that are kept, working directory, size of the input if that has no mark at its end, and the command."""

_LOOK: Final = f"""{_IDENTITY}
is_over() {{
    set -- "$1":ended:*
    [ -f "$1" ] || return
    state="ended ${{1##*:ended:}}"
    used=unknown
    {{
        while read -r word more; do
            case $used:$word in
                unknown:used) used= ;;
                unknown:*) ;;
                *) used=${{used}}_$word${{more:+_$more}} ;;
            esac
        done < "$1"
    }} 2>/dev/null
    case $used in unknown | *[!a-z0-9_.,]*) ;; *) [ ${{#used}} -gt {LONGEST_USAGE} ] || state=$state$used ;; esac
}}
asks() {{
    was= since=
    {{ {{ read -r group && read -r was && read -r watcher since; }} < "$1:process"; }} 2>/dev/null
    [ "$was" = "$_f_boot" ] && [ "$since" ] && born "$watcher" && [ "$_f_born" = "$since" ]
}}
alive() {{
    born "$1"
    case " $groups " in *" -$_f_group "*) _f_group= ;; esac
    [ "$_f_born" != "$2" ] || {{ state=running; groups="$groups${{_f_group:+ -$_f_group}}"; }}
}}
look() {{
    groups= group= was= since= begun= leads=
    is_over "$1" && return
    {{
        {{ read -r group && read -r was && read -r watcher since; read -r leader begun; }} < "$1:process"
    }} 2>/dev/null
    state=running
    if [ ! -e "$1:process" ]; then
        state=absent
    elif [ "$was" ] && [ "$was" != "$_f_boot" ]; then
        state=rebooted
    elif [ ! "$since" ]; then
        state=beginning
        [ ! "$group" ] || kill -0 "-$group" 2>/dev/null || state=unborn
    else
        state=killed
        [ ! "$begun" ] || alive "$leader" "$begun"
        leads=$groups
        alive "$watcher" "$since"
    fi
    is_over "$1" || :
}}
look_longer() {{
    look "$1"
    n=0
    while [ "$state" = beginning ] && [ $n -lt {_BEGINNING_POLLS} ]; do
        [ "$group" ] || [ $n -lt {_TAKING_POLLS} ] || break
        n=$((n + 1))
        if [ $n -lt 10 ]; then pause {_SHORT_POLL}; else pause {_POLL}; fi
        look "$1"
    done
    [ "$state" != beginning ] || state=unborn
}}
booted
base=${{1:-$HOME/.fleeting/detached}}
at=$base/$2
shift
"""
"""How a command is, and the process groups of who watches over it and of the command, each for as long as it lives: the
command may have left the first. Whether it has ended is looked at twice, since it may end in between. One that nobody
watches over any more runs for as long as it lives, and is lost then. One that is about to begin is waited for while the
shell lives that begins it."""

# A line now and then on an output that nobody reads any more ends this, when the connection broke.
ATTACH: Final = f"""{_LOOK}
look_longer "$at"
[ "$state" = absent ] || {{
    if [ -e "$at:output" ]; then exec 3< "$at:output"; else exec 3< /dev/null; fi
    tail -c "+$2" <&3 || exit
    n=0
    while [ "$state" = running ]; do
        if [ $n -lt 5 ]; then pause {_SHORT_POLL}; elif [ $n -lt 40 ]; then pause {_POLL}
        elif [ $n -lt 100 ]; then pause {_SLOW_POLL}; else pause 0.5; fi
        [ $(((n = n + 1) % 16)) -ne 0 ] || echo >&2
        look "$at"
        cat <&3 || exit
    done
    [ "$state" != absent ] || state=removed
    n=0
    while [ "${{state#ended}}" != "$state" ] && [ $n -lt {_ASKING_POLLS} ]; do
        asks "$at" || break
        n=$((n + 1))
        if [ $n -lt 5 ]; then pause {_SHORT_POLL}; else pause {_SLOW_POLL}; fi
    done
    is_over "$at"
}}
echo "$state" >&2
"""
"""Write its output from byte $2 on, counted from one, and then the word for how it is."""

START_ATTACHED: Final = f"""
command -v setsid >/dev/null || {{ echo unable >&2; exit 1; }}
_f_word=$1
shift
_f_said=$(setsid /bin/sh -c {shlex.quote(START)} sh "$@")
_f_status=$?
[ "$_f_status $_f_said" = "137 started" ] || {{ [ ! "$_f_said" ] || echo "$_f_said" >&2; exit "$_f_status"; }}
echo "$_f_word"
set -- "$1" "$2" 1
{ATTACH}"""
"""Start a command in a session of its own, say so by a line on standard output, and go on as who attaches to it. The
arguments: the word of that line, and those of `START`. The line is written before any of the command's output is read,
and to the same stream, so nothing that the command writes can come before it, or be taken for it."""

KILL: Final = f"""{_LOOK}
lives() {{
    for member in $all; do
        kill -0 "$member" 2>/dev/null || continue
        command -v ps >/dev/null || return 0
        {{ ps -A -o pgid= -o stat= || ps -o pgid,stat; }} 2>/dev/null | grep -q "^ *${{member#-}}  *[^Z ]" && return 0
    done
    return 1
}}
await() {{
    n=0
    while [ $n -lt {_POLLS} ] && "$1"; do
        n=$((n + 1))
        if [ $n -lt 5 ]; then pause {_POLL}; else pause {_SLOW_POLL}; fi
    done
}}
finishes() {{
    look "$at"
    [ "$state" = running ] && [ ! "$leads" ]
}}
look_longer "$at"
all=$groups
if [ "$state" = running ]; then
    kill -TERM $all
    await lives
    await finishes
    look "$at"
    ! lives || kill -KILL $all
    await lives
    [ "$state" != running ] || state=killed
fi
[ "$state" != killed ] || {{
    mv -- "$at:ending" "$at:ended:137:KILL:0:"
    look "$at"
}}
echo "$state" >&2
"""
"""End it, if it runs, and what is left of it if it is lost. Who watches over a command that has ended needs a moment to
note that, and on a busy host a long one. What does not die of SIGTERM may have outlived the command."""

FORGET: Final = f"""{_LOOK}
look_longer "$at"
[ "$state" = running ] ||
    rm -f -- "$at:output" "$at:ending" "$at":ended:* "$at:process" || exit
echo "$state" >&2
"""
"""Remove its files; the one that takes the name goes last."""

LIST: Final = f"""{_LOOK}
for at in "$base"/*:process; do
    name=${{at##*/}}
    [ ! -e "$at" ] || {{ look "${{at%:process}}"; printf '%s\\n' "${{name%:process}} $state"; }}
done
"""
"""Write a line for each: its name, and the word for how it is."""
