"""Programs of Windows that there are none of here, for the WinRM server of the tests; each is a process of its own.

``powershell.exe`` knows the scripts of the instance executor by their text, and does what they say; any other it does
not understand. A job's own script has to be one for ``/bin/sh``, whatever it would be on Windows: what is shown is how
it gets there, where it runs, and what becomes of its output and its status. ``call`` runs a cmd script likewise, and
passes over lines that begin with ``@``.
"""

import base64
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

QUOTES = "'\u2018\u2019\u201a\u201b"

Value = str | list[str]


def scripts() -> dict[str, str]:
    """The scripts that are known, by what plays them, and what goes around them."""
    from fleeting.connectors.powershell import PREFACE
    from fleeting.connectors.winrm._command import BOOTSTRAP, SCRIPT_VARIABLE
    from taskscaler.executors import _windows

    around = {"bootstrap": BOOTSTRAP, "variable": SCRIPT_VARIABLE, "preface": PREFACE}
    return around | {play.__name__: getattr(_windows, play.__name__.upper()) for play in PLAYED}


def install(directory: Path) -> Path:
    """Make a directory with the programs; returns it. They know the scripts from a file: importing them takes long."""
    from tests.needs import need  # the fake programs run without the workspace

    need("tar")
    directory.mkdir()
    (directory / "scripts.json").write_text(json.dumps(scripts()))
    for name in ("powershell.exe", "pwsh.exe", "call", "perl.exe"):
        (directory / name).write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} {name} "$@"\n')
        (directory / name).chmod(0o755)
    (directory / "tar.exe").symlink_to(shutil.which("tar") or "/bin/tar")
    return directory


def read_values(text: str) -> tuple[dict[str, Value], str]:
    """Read the assignments that a script begins with, as PowerShell does; returns them, and the rest."""
    values: dict[str, Value] = {}
    while text.startswith("$"):
        name, mark, after = text[1:].partition(" = ")
        if not (mark and name.isidentifier() and after[:1] in ("'", "@")):
            break
        values[name], text = _value(after)
        assert text.startswith("\n")
        text = text[1:]
    return values, text


def _value(text: str) -> tuple[Value, str]:
    if not text.startswith("@("):
        return read_literal(text)
    found, text = [], text[2:]
    while not text.startswith(")"):
        value, text = read_literal(text.removeprefix(", "))
        found.append(value)
    return found, text[1:]


def read_literal(text: str) -> tuple[str, str]:
    """Read a quoted string; PowerShell takes each of several characters for the quote, and two of them for one."""
    assert text[0] in QUOTES
    value, at = "", 1
    while True:
        if text[at] in QUOTES:
            if text[at + 1 : at + 2] not in tuple(QUOTES):
                return value, text[at + 1 :]
            at += 1
        value += text[at]
        at += 1


def decoded(encoded: str) -> str:
    """Read what ``-EncodedCommand`` is given."""
    return base64.b64decode(encoded, validate=True).decode("utf-16-le", "surrogatepass")


def prepare(base: str, name: str, owner: str, suffix: str) -> int:
    """Play `_windows.PREPARE`."""
    slot = Path(base).absolute() / name
    slot.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{slot}.new").touch(exist_ok=False)
    slot.mkdir()
    print(slot, *(path.name for path in slot.parent.glob(f"slot-*-{owner}-*-*") if path.is_dir()), sep="\n", flush=True)
    return receive(f"{slot}{suffix}")


def receive(file: str) -> int:
    """Play `_windows.RECEIVE`."""
    data = sys.stdin.buffer.read()
    Path(file).write_bytes(data)
    print(checksum(data), end="")
    return 0


def run(script: str) -> int:
    """Play `_windows.RUN`: the script has to have the mark by which PowerShell 5 knows UTF-8."""
    text = Path(script).read_bytes().decode()
    assert script.endswith(".ps1")
    assert text.startswith("\ufeff")
    status = subprocess.run(["/bin/sh", "-e", "-c", text[1:]], check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    told = f"c{int((used.ru_utime + used.ru_stime) * 1e6)} m{used.ru_maxrss * 1024}"
    if script.endswith(".script.ps1") and not (path := Path(f"{script}.used".replace("\\", "/"))).exists():
        path.write_text(told)  # it is left if there, as what a job writes there in the end
    return status


def pack(slot: str, file: str, piece: str, patterns: Sequence[str]) -> int:
    """Play `_windows.PACK`."""
    found = sorted({str(path.relative_to(slot)) for pattern in patterns for path in Path(slot).glob(pattern)})
    if not found:
        return 0
    status = subprocess.run(["/bin/tar", "-cf", file, "-C", slot, *found], check=False).returncode
    data = Path(file).read_bytes()
    for start in range(0, len(data), int(piece)):
        print(checksum(data[start : start + int(piece)]))
    return status


def send(file: str, **start: str) -> int:
    """Play `_windows.SEND`; spoils a byte as often as a file beside the programs says."""
    data = bytearray(Path(file).read_bytes()[int(start["from"]) :])
    damage = _beside("damage")
    if damage.exists() and (left := int(damage.read_text())):
        damage.write_text(str(left - 1))
        data[-1] ^= 1
    sys.stdout.buffer.write(data)
    return 0


def remove(base: str, names: Sequence[str]) -> int:
    """Play `_windows.REMOVE`."""
    if (used := Path(base, f"{names[0]}.script.ps1.used")).is_file():
        print(used.read_text()[:64], end="", flush=True)
    for name in names:
        _empty(Path(base, name))
        for path in Path(base).glob(f"{name}.*"):
            path.unlink()
    return 0


PLAYED: Sequence[Callable[..., int]] = (prepare, receive, run, pack, send, remove)


def play(arguments: Sequence[str]) -> int:
    """Do what PowerShell would."""
    assert arguments[-2] == "-EncodedCommand"
    known: Mapping[str, str] = json.loads(_beside("scripts.json").read_text())
    script = decoded(arguments[-1])
    if script == known["bootstrap"]:
        names = sorted((name for name in os.environ if name.startswith(known["variable"])), key=len)
        script = base64.b64decode("".join(os.environ.pop(name) for name in names)).decode()
    assert script.startswith(known["preface"])
    values, body = read_values(script.removeprefix(known["preface"]))
    for play in PLAYED:
        if known[play.__name__] == body:
            return play(**values)
    print("this PowerShell knows only the scripts of the instance executor", file=sys.stderr)
    return 1


def _beside(name: str) -> Path:
    """A file in the directory of the programs, which is the first on the path."""
    return Path(os.environ["PATH"].split(":")[0], name)


def call(path: str) -> int:
    """Run a cmd script."""
    text = Path(path.replace("\\", "/")).read_bytes().decode()
    assert text.endswith("\r\n")
    lines = [line for line in text.split("\r\n") if not line.startswith("@")]
    return subprocess.run(["/bin/sh", "-c", "\n".join(lines)], check=False).returncode


def _empty(path: Path) -> None:
    for below in path.rglob("*"):
        if below.is_dir() and not below.is_symlink():
            below.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)


def checksum(data: bytes) -> str:
    """As SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def main(program: str, arguments: Sequence[str]) -> int:
    """Be the program."""
    match program:
        case "powershell.exe" | "pwsh.exe":
            return play(arguments)
        case "call":
            return call(arguments[0])
    print(program, *arguments[:-1], Path(arguments[-1].replace("\\", "/")).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
