r"""The script that runs stages on an instance, one after the other: pure text for a POSIX shell.

One script does for a whole job what would cost a round trip per stage otherwise, and goes on while nobody looks. Each
stage is a file of its own that a shell of its own runs, in a process group of its own where there is ``setsid``: so one
can be stopped without the others. What becomes of stages is written between the job's output, in lines that nobody
else can write by accident (`_marks`)::

    \x1e<nonce> open <stage> at <seconds since the epoch, with a fraction where ``date`` knows it>
    \x1e<nonce> begin <stage>
    \x1e<nonce> end <stage> <exit code> <yes, if it was stopped for its time>
    \x1e<nonce> close <stage> at <likewise>

A section is open between the first and the last of them.
"""

import shlex
from collections.abc import Iterable

from attrs import frozen

from taskscaler_gitlab.runner._stages import Phase, Stage

HOME = ".stages"
"""Where the stages' scripts are, below the directory in which the script begins."""

OUT = "out"
"""Where stages leave what is to be brought back, beside it."""

GRACE = 10
"""Seconds that a stage has to end itself once it is to stop."""

PAUSE = 5
"""Seconds before a stage is tried again."""


@frozen(kw_only=True)
class Before:
    """What has become of the job before a leg of it begins."""

    has_failed: bool = False
    """Whether a step of its script has failed, or was stopped."""

    is_canceled: bool = False
    """Whether that was because somebody has canceled the job."""

    is_broken: bool = False
    """Whether something before its script has failed: the script does not run, nor what comes after it."""


def write_script(
    stages: Iterable[Stage],
    before: Before,
    *,
    nonce: str,
    shell: str = "",
    sections: bool = True,
    script_timeout: float | None = None,
    is_shared: bool = False,
) -> str:
    """Write the script that runs these stages, in their order.

    Args:
        stages: The stages of the leg.
        before: What has become of the job before.
        nonce: Marks our lines in the output; letters and digits, nobody else's.
        shell: What runs the job's own scripts; nothing: ``bash`` where there is one.
        sections: Whether GitLab wants marks where sections begin and end.
        script_timeout: Seconds that all steps may take together.
        is_shared: Whether other users of the machine, as those in other containers, are to write to what is made.
    """
    stages = tuple(stages)
    steps = [stage.number for stage in stages if stage.phase is Phase.SCRIPT]
    lines = [
        _HEAD.replace("@NONCE@", nonce),
        "_t_umask=000" if is_shared else "",
        f"_t_sections={'yes' if sections else ''} _t_shell={shell}",
        f"_t_status={'canceled' if before.is_canceled else 'failed' if before.has_failed else 'success'}",
        f"_t_broken={'yes' if before.is_broken else ''}",
    ]
    lines += [_file(stage.number, stage.script) for stage in stages]
    lines += [_file(stage.number, stage.retry, ".retry") for stage in stages if stage.retry]
    lines.append("_t_begin")
    for stage in stages:
        if steps and stage.number == steps[0] and script_timeout is not None:
            lines.append(f"_t_alarm_in {_seconds(script_timeout)}; _t_script_alarm=$_t_alarm")
        lines.append(_call(stage))
        if steps and stage.number == steps[-1] and script_timeout is not None:
            lines.append('_t_no_alarm "$_t_script_alarm"')
    return "\n".join([*lines, _TAIL])


def _file(number: int, script: str, suffix: str = "") -> str:
    return f"printf '%s' {shlex.quote(script)} > {HOME}/{number}{suffix} || _t_no_room"


def _call(stage: Stage) -> str:
    words = {
        Phase.BEFORE: ("_t_before", stage.attempts),
        Phase.SCRIPT: ("_t_step", stage.when.value, "yes" if stage.allow_failure else "no"),
        Phase.AFTER: ("_t_after", _seconds(stage.timeout or 0), "yes" if stage.is_counted else "no"),
        Phase.LATE: ("_t_late", stage.when.value),
    }
    function, *more = words[stage.phase]
    return " ".join(map(str, (function, stage.number, stage.section or "-", shlex.quote(stage.title), *more)))


def _seconds(timeout: float) -> int:
    """Whole ones, of which every ``sleep`` knows."""
    return max(1, round(timeout))


# Who ends a detached command signals its process group, and a second or two later kills it: of the stages, which have
# groups of their own, nothing would be left to know, so this shell takes them along when it is asked to end.
# A process has no group of its own before `setsid` has begun, so that one that has just started is signalled by itself.
# Clocks may outlive a script that is killed, and its process number may be another's then: they look whether its
# directory is still there.
_HEAD = rf"""
set +e
exec 2>&1 </dev/null
(umask 077; exec mkdir {HOME} {OUT}) || exit
_t_umask=$(umask) _t_home=$PWD/{HOME}; umask 077
_t_pid= _t_woke= _t_stopped= _t_groups= _t_exit=0 _t_skip=
_t_setsid=; command -v setsid >/dev/null 2>&1 && _t_setsid=setsid
_t_no_room() {{
    printf '\033[31;1mERROR: the job cannot be written to this disk; is it full?\033[0;m\n'
    exit 1
}}
_t_mark() {{ printf '\036@NONCE@ %s\n' "$*"; }}
_t_group() {{ [ "$_t_setsid" ] && kill -s "$1" -- "-$2" 2>/dev/null; }}
_t_signal() {{ _t_group "$1" "$2" || kill -s "$1" "$2" 2>/dev/null; }}
_t_alarm_in() {{
    $_t_setsid /bin/sh -c 'sleep "$1"; [ ! -d "$2" ] || kill -s USR1 "$3"' sh "$1" "$_t_home" $$ >/dev/null 2>&1 &
    _t_alarm=$!
}}
_t_no_alarm() {{ _t_signal KILL "$1"; wait "$1" 2>/dev/null; _t_woke=; }}
_t_stop() {{
    _t_woke=yes
    [ "$_t_pid" ] || return
    _t_stopped=yes
    _t_signal TERM "$_t_pid"
    $_t_setsid /bin/sh -c 'sleep {GRACE}; [ ! -d "$1" ] || kill -s KILL -- "$2"' sh "$_t_home" \
        "${{_t_setsid:+-}}$_t_pid" >/dev/null 2>&1 &
    _t_groups="$_t_groups $!"
}}
_t_quit() {{
    exec >/dev/null 2>&1  # bash says which of its processes were killed, if it comes to that
    trap '' TERM USR1
    for _t_each in $_t_pid $_t_groups; do _t_signal TERM "$_t_each"; done
    [ ! "$_t_pid" ] || {{
        $_t_setsid /bin/sh -c 'sleep 1; kill -s KILL -- "$1"' sh "${{_t_setsid:+-}}$_t_pid" &
        _t_alarm=$!
        wait "$_t_pid"
        _t_no_alarm "$_t_alarm"
    }}
    for _t_each in $_t_pid $_t_groups; do _t_group KILL "$_t_each"; done
    exit 143
}}
trap _t_stop USR1
trap _t_quit TERM
_t_run() {{
    _t_number=$1 _t_stopped= _t_woke=
    shift
    _t_mark begin "$_t_number"
    $_t_setsid "$@" &
    _t_pid=$!
    wait "$_t_pid"; _t_code=$?
    while [ "$_t_woke" ]; do _t_woke=; wait "$_t_pid"; _t_code=$?; done
    _t_ended=$_t_pid _t_pid=
    _t_group TERM "$_t_ended" && _t_groups="$_t_groups $_t_ended"
    _t_mark end "$_t_number" "$_t_code" "$_t_stopped"
}}
_t_fine=; case $(date +%N 2>/dev/null) in [0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]) _t_fine=.%N ;; esac
_t_look() {{ _t_at=$(date "+%s$_t_fine") _t_now=${{_t_at%.*}}; }}
_t_open() {{
    [ "$1" != - ] || return
    _t_look
    _t_mark open "$3" at "$_t_at"
    [ ! "$_t_sections" ] || printf 'section_start:%s:%s\r\033[0K' "$_t_now" "$1"
    printf '\033[0K\033[36;1m%s\033[0;m\n' "$2"
}}
_t_close() {{
    [ "$1" != - ] || return
    _t_look
    [ ! "$_t_sections" ] || printf 'section_end:%s:%s\r\033[0K' "$_t_now" "$1"
    _t_mark close "$2" at "$_t_at"
}}
_t_warn() {{ printf '\033[0;33mWARNING: %s\033[0;m\n' "$1"; }}
_t_before() {{
    [ ! "$_t_broken" ] || return
    _t_open "$2" "$3" "$1"
    _t_tries=1
    while _t_run "$1" /bin/sh "{HOME}/$1" "$PWD" "$2"; [ "$_t_code" -ne 0 ] && [ "$_t_tries" -lt "$4" ]; do
        _t_warn "it failed; another try in {PAUSE} seconds"
        sleep {PAUSE}
        [ ! -f "{HOME}/$1.retry" ] || _t_run "$1" /bin/sh "{HOME}/$1.retry" "$PWD"
        _t_tries=$((_t_tries + 1))
    done
    _t_close "$2" "$1"
    [ "$_t_code" -eq 0 ] || _t_broken=yes _t_status=failed _t_exit=$_t_code
}}
_t_fits() {{
    case $1:$_t_status in
        always:* | on_success:success | on_failure:failed | on_failure:canceled) ;;
        *) false ;;
    esac
}}
_t_step() {{
    [ ! "$_t_broken$_t_skip" ] && _t_fits "$4" || return
    _t_open "$2" "$3" "$1"
    _t_run "$1" "$_t_shell" "{HOME}/$1"
    _t_close "$2" "$1"
    [ "$_t_code" -ne 0 ] || [ "$_t_stopped" ] || return
    if [ "$_t_stopped" ]; then
        _t_skip=yes
    elif [ "$5" = yes ]; then
        _t_warn "it failed with exit code $_t_code, which it may"
        return
    fi
    [ "$_t_status" != success ] || _t_status=failed _t_exit=$_t_code
}}
_t_after() {{
    [ ! "$_t_broken" ] || return
    _t_open "$2" "$3" "$1"
    _t_alarm_in "$4"; _t_after_alarm=$_t_alarm
    _t_run "$1" "$_t_shell" "{HOME}/$1"
    _t_no_alarm "$_t_after_alarm"
    if [ "$_t_stopped" ]; then
        _t_warn "after_script took longer than $4 seconds, and was stopped"
    elif [ "$_t_code" -ne 0 ] && [ "$5" = no ]; then
        _t_warn "after_script failed with exit code $_t_code, which does not change how the job ends"
    fi
    _t_close "$2" "$1"
}}
_t_late() {{
    _t_fits "$4" || return
    _t_open "$2" "$3" "$1"
    _t_run "$1" /bin/sh "{HOME}/$1" "$PWD"
    _t_close "$2" "$1"
    [ "$_t_code" -eq 0 ] || [ "$_t_status" != success ] || _t_exit=$_t_code
}}
_t_begin() {{
    umask "$_t_umask"
    [ "$_t_shell" ] || _t_shell=$(command -v bash 2>/dev/null || echo /bin/sh)
    export _t_status
}}
"""

_TAIL = """
for _t_ended in $_t_groups; do _t_group KILL "$_t_ended"; done
exit "$_t_exit"
"""
