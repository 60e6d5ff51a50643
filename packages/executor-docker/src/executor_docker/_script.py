"""What runs in a job's container, and what it reports of itself in the end. Pure.

Both outputs of a job are one stream, in the order of writing: the container's standard output. Its standard error is
left for a small shell around the job, which reads from the container's own control group what the job has used, and
from the kernel's account of its children what they have written (a control group counts only what has reached a disk
by then): once the container is gone, nobody knows any more. The image needs no more for it than a POSIX shell.
"""

import shlex
from collections.abc import Sequence
from typing import Final

from attrs import frozen

DIRECTORY = "/.taskscaler"
PATH = f"{DIRECTORY}/script"

_MARK: Final = "taskscaler"

_RUN: Final = """
(exec "$@" 2>&1)
code=$?
"""

END: Final = b"\x1etaskscaler\x1e\n"
"""The end of an output that is read from the daemon's log. That is made of lines, and shows the last one with an end
that it may not have had; with this behind it, nobody has to know."""

_REPORT: Final = f"""
v1=/sys/fs/cgroup/memory v2=/sys/fs/cgroup
report() {{ [ -r "$1" ] && while read -r key value; do echo "{_MARK} ${{2:-$key}} ${{value:-$key}}"; done <"$1"; }}
{{
    echo; echo "{_MARK} ended $code"
    report $v2/cpu.stat || report /sys/fs/cgroup/cpuacct/cpuacct.usage usage_nsec
    report $v2/memory.peak memory || report $v1/memory.max_usage_in_bytes memory
    report /proc/self/io
    report $v2/memory.events || report $v1/memory.oom_control
    echo "{_MARK} whole 1"
}} >&2 2>/dev/null
exit $code
"""

NOT_EXECUTABLE = 126
NOT_FOUND = 127
BY_SIGNAL = 128
"""A shell's exit codes: what they are for, and what is added to a signal's number."""

LARGEST = 1 << 16
"""Bytes of a report that are kept: more can only be a job that writes there on purpose."""


def around(entrypoint: Sequence[str], script: str, *, is_kept: bool = False, notice: str = "") -> list[str]:
    """Make the container's command: ours around the entrypoint, and that around the script.

    Args:
        entrypoint: Of the job.
        script: Its script.
        is_kept: Whether the output is read from the daemon's log.
        notice: A line that the job's output begins with, of ours; empty: none.
    """
    interpreter = () if script.startswith("#!") else ("/bin/sh", "-e")
    shell = (
        (f"echo {shlex.quote(notice)}" if notice else "")
        + _RUN
        + (f"echo '{END.decode()[:-1]}'\n" if is_kept else "")
        + _REPORT
    )
    return ["/bin/sh", "-c", shell, "sh", *entrypoint, *interpreter, PATH]


@frozen(kw_only=True)
class Report:
    """What a container has reported about itself; nothing if it was killed before it could."""

    cpu_time: float | None = None
    """Seconds."""

    peak_memory: int | None = None
    """Bytes."""

    disk_written: int | None = None
    """Bytes."""

    is_complete: bool = False
    """Whether the shell around the job was there to report, and saw the job's end."""

    is_whole: bool = False
    """Whether nothing of it is missing."""

    killed_for_memory: int = 0
    """So many of its processes, for whatever lack of memory."""

    hits_of_limit: int | None = None
    """How often it has run into its own limit so that something had to be killed; None: nobody knows."""


def read_report(data: bytes) -> Report:
    """Read what came on the container's standard error; a shell's own remarks there, as *Terminated*, are dropped."""
    found = dict(filter(None, map(_read, data.splitlines())))
    micro, nano = found.get("usage_usec"), found.get("usage_nsec")
    return Report(
        cpu_time=micro / 1e6 if micro is not None else nano / 1e9 if nano is not None else None,
        peak_memory=found.get("memory"),
        disk_written=found.get("write_bytes:"),
        is_complete="ended" in found,
        is_whole="whole" in found,
        killed_for_memory=found.get("oom_kill", 0),
        hits_of_limit=found.get("oom"),
    )


def _read(line: bytes) -> tuple[str, int] | None:
    match line.decode(errors="replace").split():
        case [mark, key, value] if mark == _MARK and value.isascii() and value.isdigit() and len(value) < 20:  # noqa: PLR2004  (64 bits)
            return key, int(value)
    return None
