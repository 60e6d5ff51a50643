"""What is sent to have a command run, and how its process group is known, so that it can be ended.

Closing a channel leaves the command running, and sshd passes no signals on for root. So the command reports its process
id first, in a line on stderr that no caller sees: sshd starts each command in a session of its own, so that is the id
of the process group as well.

Everybody on the host can read the arguments of every process, and the login shell has the whole command among them. So
the environment, where people put their secrets, is no part of it: the shell reads it from its standard input, which the
command has after that.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence

from attrs import define, field

from fleeting._errors import ConnectError

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL for what is left of a command."""

LONGEST = 120_000
"""Bytes that a command may have: Linux takes no argument above 128 KiB, and the shell gets it as one."""

_PREAMBLE_LIMIT = 1 << 16
"""Bytes of stderr in which the process id is looked for: what a login shell's start-up files may say before it."""

_DIGITS = 10
"""Of a process id at most; Linux has seven."""

_ENDING = f"""
lives() {{
  kill -0 -PID && {{ ps -A -o pgid= -o stat= || ps -o pgid,stat; }} | grep -q '^ *PID  *[^Z ]'
}}
expire() {{
  n={round(GRACE / 0.05)}
  while [ $n -gt 0 ] && lives; do sleep 0.05 || sleep 1; n=$((n - 1)); done
}}
exec 2>/dev/null
kill -TERM -PID || kill -TERM PID || exit 0
expire
kill -KILL -PID && expire
:
"""
"""Zombies do not count as alive: in a container there may be nobody to reap them."""

_READ_ENV = """_fleeting_n=COUNT _fleeting_e=
while [ $_fleeting_n -gt 0 ]; do
IFS= read -r _fleeting_l || exit 127
_fleeting_e="$_fleeting_e$_fleeting_l
" _fleeting_n=$((_fleeting_n - 1))
done
eval "$_fleeting_e"
unset _fleeting_n _fleeting_e _fleeting_l"""
"""Only what is built into every shell, so that no process has it as an argument; `read` takes no byte too many."""

_HIDING = re.compile(r"\\[\\']")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def compose(command: str | Sequence[str], *, env: Mapping[str, str], cwd: str | None, mark: str) -> tuple[bytes, bytes]:
    """Write the line that the login shell gets: it prints its process id after *mark*, then becomes the command.

    Without a *mark*, it prints nothing.

    Returns:
        The line, and what it reads from its standard input before the command does.

    Raises:
        ConnectError: No shell can run it.
    """
    lines = [f'echo "{mark} $$" >&2'] if mark else []
    exports = "".join(f"export {_variable(name)}={shlex.quote(value)}\n" for name, value in env.items())
    if exports:
        lines.append(_READ_ENV.replace("COUNT", str(exports.count("\n"))))
    if cwd is not None:
        lines.append(f"cd {shlex.quote(cwd if cwd.startswith('/') else f'./{cwd}')} || exit 127")
    lines.append(command if isinstance(command, str) else 'exec "$@"')
    arguments = [] if isinstance(command, str) else ["sh", *command]
    line = os.fsencode(_plain("exec " + shlex.join(["/bin/sh", "-c", "\n".join(lines), *arguments])))
    first = os.fsencode(exports)
    if b"\0" in line + first:
        raise ConnectError("a command cannot contain NUL characters")
    for what, size in (("command", len(line)), ("command's environment", len(first))):
        if size > LONGEST:
            raise ConnectError(f"the {what} has {size} bytes, more than the limit of {LONGEST}; pass data on stdin")
    return line, first


def _plain(line: str) -> str:
    """Write a line for sh such that fish can read it, to which a backslash hides another one, or a quote, in quotes."""
    if not _HIDING.search(line):
        return line
    escaped = line.replace("\\", r"\0134").replace("'", r"\0047")
    return f"exec /bin/sh -c 'eval \"$(printf %b \"$0\")\"' '{escaped}'"


def ending(pid: int) -> str:
    """Write the command that ends a process group, and returns once nothing of it is left."""
    return _ENDING.replace("PID", str(pid))


@define
class PidReader:
    """Takes the line with the process id out of stderr."""

    mark: str
    pid: int | None = field(default=None, init=False)
    _held: bytes = field(default=b"", init=False)
    _done: bool = field(default=False, init=False)

    @property
    def is_looking(self) -> bool:
        """Whether the process id may still come."""
        return not self._done

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes, and return what the caller may see of all that was held."""
        if self._done:
            return data
        line = rb"%s ([0-9]{1,%d})\n" % (re.escape(self.mark.encode()), _DIGITS)
        new = len(self._held) - len(self.mark) - _DIGITS - 1  # what is before that was looked at
        self._held += data
        found = re.compile(line).search(self._held, max(0, new))
        if found:
            self.pid = int(found[1])
            self._held = self._held[: found.start()] + self._held[found.end() :]
        return self.rest() if found or len(self._held) > _PREAMBLE_LIMIT else b""

    def rest(self) -> bytes:
        """Return what is held, and stop looking."""
        held, self._held, self._done = self._held, b"", True
        return held


def _variable(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConnectError(f"{name!r} cannot be a shell variable, so it cannot be in a command's environment")
    return name
