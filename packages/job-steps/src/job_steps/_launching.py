"""Commands that are not started directly, but by a process that first puts itself where they are to be.

A program in C could do with less, but an agent brings none; a hook between fork and exec must not run Python where
there are threads. So Python is started once more, without anything that it need not have: 20 ms. The command gets the
environment, the signals and the descriptors that it would have had, and an error of its start is the same error. (A
thread that starts it may have signals blocked, as trio's have, and Python ignores some.)
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, Popen
from typing import Final

from attrs import frozen

_LAUNCHER: Final = """
import json, os, signal, sys
told = json.loads(sys.argv[1])
os.set_inheritable(told["report"], False)
try:
    if told["group"]:
        with open(told["group"], "w") as file:
            file.write(str(os.getpid()))
    if told["network"] == "none":
        uid, gid = os.geteuid(), os.getegid()
        def unshare(flags):
            if hasattr(os, "unshare"):
                return os.unshare(flags)
            import ctypes
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(flags):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            unshare(0x40000000)
        except PermissionError:
            unshare(0x10000000 | 0x40000000)
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        import fcntl, socket, struct
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lo:
            fcntl.ioctl(lo, 0x8914, struct.pack("16sh14x", b"lo", 1 | 64))
    env = dict(os.environb)
    if told["locale"]:
        env.pop(b"LC_CTYPE", None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)):
        if number is not None:
            signal.signal(number, signal.SIG_DFL)
except OSError as error:
    os.write(told["report"], b"%d where" % (error.errno or 0))
    os._exit(127)
try:
    os.execvpe(sys.argv[2], sys.argv[2:], env)
except OSError as error:
    os.write(told["report"], b"%d program" % (error.errno or 0))
    os._exit(127)
"""

_LONGEST: Final = 100
"""Bytes of a report."""


@frozen
class Launched:
    """What came of it."""

    process: "Popen[bytes] | None"
    """The command, with the id that its launcher had; None if it was not started."""
    error: OSError | None = None
    """Why it was not started; without a filename if where it was to be could not be made."""


def launched(
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    output: int | None,
    group: str | None = None,
    network: str | None = None,
) -> Launched:
    """Start a command in a session of its own; blocks until it runs.

    Args:
        command: What to run; looked for in the ``PATH`` of *env*.
        cwd: Where.
        env: Its whole environment.
        output: A descriptor for its output and errors; None: nowhere.
        group: The path of the file that takes the ids of the processes of a control group.
        network: ``none``, or None for that of this process.

    Raises:
        OSError: The launcher itself cannot be started; of *cwd*, if that is the file's name in it.
    """
    reading, writing = os.pipe()
    try:
        try:
            python = sys.executable or "python3"
            # Python sets this variable where the locale says nothing of characters.
            told = {"report": writing, "group": group, "network": network, "locale": "LC_CTYPE" not in env}
            sink = DEVNULL if output is None else output
            process = Popen(  # noqa: S603  (to run what a file says is what this is for; what may, `admit` decides)
                [python, "-I", "-S", "-c", _LAUNCHER, json.dumps(told), *command],
                stdin=DEVNULL, stdout=sink, stderr=sink, cwd=cwd, env=dict(env), start_new_session=True,
                pass_fds=[writing],
            )  # fmt: skip
        finally:
            os.close(writing)
        report = _all_of(reading).decode(errors="replace").split()
    finally:
        os.close(reading)
    if not report:
        return Launched(process)
    process.wait()
    number = int(report[0])
    error = OSError(number, os.strerror(number))
    if report[1:] == ["program"]:
        error = OSError(number, os.strerror(number), command[0])
    return Launched(None, error)


def _all_of(descriptor: int) -> bytes:
    said = b""
    while len(said) < _LONGEST and (piece := os.read(descriptor, _LONGEST)):
        said += piece
    return said
