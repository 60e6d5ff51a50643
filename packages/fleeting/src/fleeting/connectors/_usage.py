"""What a command has used on a POSIX host, as far as the host says without anything of ours: pure.

A shell that has waited for one command, and for nothing else, asks the system what its children have used:

    CPU time     of the command and all its processes that were waited for; in hundredths of a second from
                 ``/proc/self/stat``, or from the shell's ``times`` where there is no such file, and exactly where the
                 next line is known
    peak memory  of the largest of these processes, which is less than all had at once if several were large: the
                 kernel keeps it, but for programs only, so the shell becomes ``perl`` or ``python3`` if there is one
                 on Linux, which is killed if it does not answer
    written      bytes that they have sent towards a disk, from ``/proc/self/io``: neither to a file system in memory
                 nor over a network

A process that the command leaves behind, or that was not waited for, is counted nowhere. What a host says is believed
within bounds: it is right as far as the user is honest whom the command runs as.
"""

import re
from collections.abc import Iterable
from typing import Final

from fleeting._types import Usage

LONGEST_USAGE: Final = 100
"""Characters of a report in the name of a file."""

_MOST_WORDS: Final = 16
_LARGEST: Final = 1 << 53
"""Above any number here, and what a float can count."""

_LONGEST: Final = _LARGEST / 1e6
"""Seconds, more than any CPU time: three centuries."""

LONGEST_ASKING: Final = 2
"""Seconds for a program to answer; on a host whose `sleep` takes whole seconds only it has four."""

PLACES: Final = "/usr/bin /bin /usr/local/bin /run/current-system/sw/bin"
"""Where the programs are looked for, in this order: a job may own a directory of its user's PATH, or that may hang."""

# The kernel's number of the call, by what the program was made for, as perl has no name for it. Where there is none, as
# on a system of 32 bits, perl becomes the command that it is given.
_PERL: Final = (
    "$m=shift;$b=qq(\\0)x512;open F,q(<),q(/proc/self/exe);read F,$h,20;"
    "substr($h,4,1) eq qq(\\2) and $n={62,98,183,165,243,165,258,165,21,77,22,77}->{unpack q(x18S),$h} "
    "and syscall($n,-1,$b)==0 or do{exec @ARGV if @ARGV;exit};@r=unpack q(l!5),$b;"
    "printf qq(%sc%d m%d\\n),$m,($r[0]+$r[2])*1e6+$r[1]+$r[3],$r[4]*1024"
)

_PYTHON: Final = (
    "import resource as r,sys;u=r.getrusage(r.RUSAGE_CHILDREN);"
    'print("%sc%d m%d"%(sys.argv[1],(u.ru_utime+u.ru_stime)*1e6,u.ru_maxrss*1024))'
)

# Whose parent is no more has another one, so nobody is killed who has the process id by now.
REPORT_USAGE: Final = f"""
watch_usage() {{
    for _f_pause in .1 .4 .5 1; do
        sleep $_f_pause || sleep 1 || return
        IFS= read -r _f_line < /proc/self/stat || return
        set -- ${{_f_line##*)}}
        [ "$2" = "$_f_pid" ] || return
    done
    kill -KILL "$_f_pid"
}}
report_usage() {{
    _f_mark=$1
    if {{ IFS= read -r _f_line < /proc/self/stat; }} 2>/dev/null; then
        _f_pid=${{_f_line%% *}}
        set -- ${{_f_line##*)}}
        echo "${{_f_mark}}t$((${{14}} + ${{15}}))"
        while read -r _f_line _f_value; do
            [ "$_f_line" != write_bytes: ] || echo "${{_f_mark}}w$_f_value"
        done < /proc/self/io
        _f_perl= _f_python=
        for _f_place in {PLACES}; do
            [ "$_f_perl" ] || [ ! -x "$_f_place/perl" ] || _f_perl=$_f_place/perl
            [ "$_f_python" ] || [ ! -x "$_f_place/python3" ] || _f_python=$_f_place/python3
        done
        [ "$_f_perl$_f_python" ] || return 0
        watch_usage < /dev/null > /dev/null 2>&1 &
        unset PERL5OPT PERL5LIB
        set --
        [ ! "$_f_python" ] || set -- "$_f_python" -I -S -c '{_PYTHON}' "$_f_mark"
        [ ! "$_f_perl" ] || set -- "$_f_perl" -e '{_PERL}' "$_f_mark" "$@"
        exec "$@" < /dev/null
    else
        [ ! "$_f_mark" ] || echo "${{_f_mark}}times"
        times
    fi
}}
"""
"""For a shell that ends then: write on standard output what its children have used, for `read_usage`.

It takes what each line is to begin with; the two lines of ``times`` come as they are, behind a line that says so, or
without that if lines need not begin with anything. Standard error may get complaints.
"""

_NUMBER: Final = re.compile(r"([ctmw])([0-9]{1,18})")
_MINUTES: Final = re.compile(r"([0-9]{1,12})m([0-9]{1,12}(?:[.,][0-9]{1,9})?)s")


def read_usage(words: Iterable[str]) -> Usage:
    """Read what `REPORT_USAGE` has written, word by word, without what its lines begin with.

    A word that it does not write is passed over, and so is a number that no host can mean.
    """
    numbers = dict[str, int]()
    times = list[float]()
    for word, _ in zip(words, range(_MOST_WORDS), strict=False):
        if (found := _NUMBER.fullmatch(word)) and int(found[2]) < _LARGEST:
            numbers.setdefault(found[1], int(found[2]))
        elif found := _MINUTES.fullmatch(word):
            times.append(60.0 * int(found[1]) + float(found[2].replace(",", ".")))
    return Usage(
        cpu_time=_cpu_time(numbers, times),
        peak_memory=numbers.get("m"),
        disk_written=numbers.get("w"),
    )


def _cpu_time(numbers: dict[str, int], times: list[float]) -> float | None:
    """Seconds: exactly, or in the kernel's ticks, or of the children's two times behind the shell's own."""
    if "c" in numbers:
        seconds = numbers["c"] / 1e6
    elif "t" in numbers:
        seconds = numbers["t"] / 100
    elif len(times) == 4:  # noqa: PLR2004  (two lines of two)
        seconds = sum(times[2:])
    else:
        return None
    return seconds if seconds <= _LONGEST else None
