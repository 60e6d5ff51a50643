"""What is sent to have a command run.

A string is a line for cmd.exe. A list is a program with its arguments: it is started without cmd.exe, and the
arguments are quoted as Microsoft's C runtime takes them apart. A script for PowerShell that is too long for a command
line goes through the shell's environment.

The environment and the directory belong to the shell, which sets them without any quoting.
"""

import base64
import re
import subprocess
from collections.abc import Mapping, Sequence

from attrs import evolve, field, frozen

from fleeting._errors import ConnectError
from fleeting.connectors.powershell import encode

LONGEST_LINE = 8000
"""Characters for cmd.exe, which takes 8191 with what WinRM puts before them."""

LONGEST_PROGRAM = 32_000
"""Characters for a program and its arguments: Windows takes 32,767."""

LONGEST_VARIABLE = 32_000
"""Characters of one environment variable; Windows takes 32,767 with its name."""

LONGEST_SCRIPT = 360_000
"""Characters of a script's base64 form: an envelope may have 500 KiB (``MaxEnvelopeSizekb``)."""

SCRIPT_VARIABLE = "FLEETING_SCRIPT_"
"""Begins the names of the variables that a long script is in; a number follows."""

_ENCODED = "-EncodedCommand"

BOOTSTRAP = f"""$e = ''
for ($i = 0; Test-Path "Env:{SCRIPT_VARIABLE}$i"; $i++) {{
    $e += (Get-Item "Env:{SCRIPT_VARIABLE}$i").Value
    Remove-Item "Env:{SCRIPT_VARIABLE}$i"
}}
. ([ScriptBlock]::Create([Text.Encoding]::UTF8.GetString([Convert]::FromBase64String($e))))
"""
"""Runs the script that is in the environment."""

_UNSENDABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML has no way to write."""


@frozen(kw_only=True)
class Place:
    """What a shell is made with: commands that differ in it cannot share one."""

    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    cwd: str | None = None


@frozen(kw_only=True)
class Line:
    """What the host is asked to run."""

    command: str = field(repr=False)
    arguments: str = field(default="", repr=False)
    by_shell: bool
    """Whether cmd.exe runs it."""

    place: Place


def compose(command: str | Sequence[str], *, env: Mapping[str, str], cwd: str | None) -> Line:
    """Decide what to send.

    Raises:
        ConnectError: It cannot be run there; says why.
    """
    place = Place(env=tuple(env.items()), cwd=cwd)
    line = _by_shell(command, place) if isinstance(command, str) else _program(list(command), place)
    for text in (line.command, line.arguments, cwd or "", *env, *env.values()):
        _check_sendable(text)
    for name in env:
        _check_name(name)
    return line


def display(command: str | Sequence[str]) -> str:
    """Show a command as one line; an encoded script would be unreadable."""
    if isinstance(command, str):
        return command
    shown = [*command[:-1], "…"] if command[-2:-1] == [_ENCODED] else command
    return subprocess.list2cmdline(shown)


def _by_shell(command: str, place: Place) -> Line:
    if len(command) > LONGEST_LINE:
        raise ConnectError(
            f"the command has {len(command)} characters, more than the {LONGEST_LINE} of cmd.exe; "
            "use fleeting.connectors.powershell, or pass data on stdin"
        )
    if "\n" in command or "\r" in command:
        raise ConnectError("cmd.exe accepts one line, but the command has several; use fleeting.connectors.powershell")
    return Line(command=command, by_shell=True, place=place)


def _program(command: list[str], place: Place) -> Line:
    if not command or not command[0]:
        raise ConnectError("a command needs a program")
    program, arguments = subprocess.list2cmdline(command[:1]), subprocess.list2cmdline(command[1:])
    if len(program) + len(arguments) < LONGEST_PROGRAM:
        return Line(command=program, arguments=arguments, by_shell=False, place=place)
    if command[-2:-1] != [_ENCODED]:
        raise ConnectError(
            f"the command has {len(program) + len(arguments)} characters, more than the {LONGEST_PROGRAM} of Windows; "
            "pass data on stdin"
        )
    through = evolve(place, env=(*place.env, *_in_variables(command[-1])))
    arguments = subprocess.list2cmdline([*command[1:-1], encode(BOOTSTRAP)])
    return Line(command=program, arguments=arguments, by_shell=False, place=through)


def _in_variables(encoded: str) -> list[tuple[str, str]]:
    """Spread a script over variables."""
    script = base64.b64decode(encoded).decode("utf-16-le", "surrogatepass")
    text = base64.b64encode(script.encode("utf-8", "replace")).decode()
    if len(text) > LONGEST_SCRIPT:
        raise ConnectError(f"the script has {len(script)} characters, too many to send; put it into a file")
    starts = range(0, len(text), LONGEST_VARIABLE)
    return [(f"{SCRIPT_VARIABLE}{n}", text[start : start + LONGEST_VARIABLE]) for n, start in enumerate(starts)]


def _check_sendable(text: str) -> None:
    if found := _UNSENDABLE.search(text):
        raise ConnectError(f"WinRM cannot send the character U+{ord(found[0]):04X}; pass data on stdin")


def _check_name(name: str) -> None:
    if not name or "=" in name:
        raise ConnectError(f"{name!r} cannot be a variable of Windows, so it cannot be in a command's environment")
