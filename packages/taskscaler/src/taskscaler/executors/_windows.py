"""Jobs on Windows instances: PowerShell and cmd scripts, and archives with checksums.

A script is PowerShell's, unless its first line begins with ``@`` or ``#!cmd``: then it is cmd's. Another ``#!`` names
what runs it, such as ``#!pwsh`` or ``#!python``. The instance needs Windows Server 2019 or Windows 10, for ``tar.exe``.

What is done on the instance is a script for PowerShell, which begins with its parameters as literals. Files go to the
instance through standard input and come from it through standard output, and each piece is compared with its SHA-256.

What a script of PowerShell's has used is told by the job object that WinRM has its shell in, when the script is over.
Microsoft documents, among the functions and structures of Win32:

    whose it is   `QueryInformationJobObject` without a handle tells of the job object of the calling process
    CPU time      `JOBOBJECT_BASIC_ACCOUNTING_INFORMATION`: ``TotalUserTime`` and ``TotalKernelTime``, in units of 100
                  ns, of its processes that run and of those that are over
    peak memory   `JOBOBJECT_EXTENDED_LIMIT_INFORMATION`: ``PeakJobMemoryUsed``, in bytes, of its processes together

`IO_COUNTERS` counts what is written to pipes and networks along with files, so nothing is said of disks. It is a guess,
by the limits that WinRM documents for each shell, that each has a job object of its own; a try's shell runs nothing but
its scripts.
"""

import hashlib
import re
import subprocess
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Final

from attrs import define, field, frozen

from fleeting import Completed, ConnectError, Connection, Usage
from fleeting.archives import ArchiveRefused, Packed
from fleeting.connectors import Sink, read_usage
from fleeting.connectors.powershell import powershell, quote
from taskscaler.executors._slot import Progress, Wanted, raise_unless_ok, text_of

PIECE = 16 << 20
"""Bytes of an archive that have a checksum; those that come wrong are fetched again."""

ATTEMPTS = 3
"""So often the same piece may come wrong."""

_STOP: Final = """#
$ErrorActionPreference = 'Stop'
"""
"""Begins what is the same each time; the parameters stand before it."""

# Read-only files cannot be deleted, hence the second try. Links are deleted, and not what they lead to.
_EMPTY: Final = """function Empty($path) {
    if (-not [IO.Directory]::Exists($path)) { return }
    try { [IO.Directory]::Delete($path, $true) } catch {
        & attrib.exe -r "$path\\*" /s /d
        [IO.Directory]::Delete($path, $true)
    }
}
"""

_RECEIVE: Final = """$sha = [Security.Cryptography.SHA256]::Create()
$in = [Console]::OpenStandardInput()
$out = [IO.File]::Create($file)
$buffer = New-Object byte[] 65536
while (($n = $in.Read($buffer, 0, $buffer.Length)) -gt 0) {
    $out.Write($buffer, 0, $n)
    [void]$sha.TransformBlock($buffer, 0, $n, $null, 0)
}
[void]$sha.TransformFinalBlock($buffer, 0, 0)
$out.Close()
[Console]::Out.Write([BitConverter]::ToString($sha.Hash).Replace('-', '').ToLower())
"""

# Making a directory does not fail if it is there; making a new file does, so that of two only one goes on.
PREPARE: Final = f"""{_STOP}$base = [IO.Path]::GetFullPath($base)
$slot = Join-Path $base $name
[void][IO.Directory]::CreateDirectory($base)
[IO.File]::Open("$slot.new", 'CreateNew').Close()
if ([IO.Directory]::Exists($slot)) {{ throw "$slot is there already" }}
[void][IO.Directory]::CreateDirectory($slot)
[Console]::Out.Write($slot + "`n")
Get-ChildItem -LiteralPath $base -Directory -Filter "slot-*-$owner-*-*" |
    ForEach-Object {{ [Console]::Out.Write($_.Name + "`n") }}
$file = $slot + $suffix
{_RECEIVE}"""

RECEIVE: Final = f"{_STOP}{_RECEIVE}"

LONGEST_ASKING: Final = 5
"""Seconds that a job's end waits for what it has used; its compiler may be slow."""

# 8 and 9 are JobObjectBasicAndIoAccountingInformation and JobObjectExtendedLimitInformation, with their sizes where a
# pointer has 64 bits; elsewhere the latter is refused.
_ASK: Final = """param($file)
$api = Add-Type -PassThru -Namespace Taskscaler -Name Job -MemberDefinition '
[DllImport("kernel32.dll")] public static extern bool QueryInformationJobObject(
    IntPtr job, int kind, [Out] byte[] told, int size, IntPtr length);'
$told = New-Object byte[] 144
$none = [IntPtr]::Zero
$words = @()
if ($api::QueryInformationJobObject($none, 8, $told, 96, $none)) {
    $time = [BitConverter]::ToInt64($told, 0) + [BitConverter]::ToInt64($told, 8)
    $words += "c$([long]($time / 10))"
}
if ($api::QueryInformationJobObject($none, 9, $told, 144, $none)) {
    $most = [BitConverter]::ToInt64($told, 136)
    if ($most -gt 0) { $words += "m$most" }
}
[IO.File]::WriteAllText($file, "$words")
"""

# What PowerShell prints when a script fails goes where the script's own errors go. A program that fails ends the
# script from PowerShell 7.4 on; before, its exit status counts if no other program was run after it. What is asked then
# is asked in a runspace of its own, which has none of the script's definitions, shows nothing, and is not waited for
# if it hangs; where the language is constrained, it is not asked.
RUN: Final = f"""{_STOP}$PSNativeCommandUseErrorActionPreference = $true
$global:LASTEXITCODE = 0
try {{ & $script }} catch {{
    [Console]::Error.WriteLine(($_ | Out-String).TrimEnd())
    if (-not $LASTEXITCODE) {{ $global:LASTEXITCODE = 1 }}
}}
try {{
    if ($script.EndsWith('.script.ps1')) {{
        $asking = [PowerShell]::Create().AddScript({quote(_ASK)}).AddArgument("$script.used")
        [void]$asking.BeginInvoke().AsyncWaitHandle.WaitOne({LONGEST_ASKING}000)
    }}
}} catch {{ }}
exit $LASTEXITCODE
"""

PACK: Final = f"""{_STOP}Set-Location -LiteralPath $slot
$found = @($patterns | ForEach-Object {{ Get-Item -Path $_ -Force -ErrorAction SilentlyContinue }} |
    ForEach-Object {{ (Resolve-Path -LiteralPath $_.FullName -Relative).Replace('\\', '/') }} | Select-Object -Unique)
if ($found.Count -eq 0) {{ exit 0 }}
[IO.File]::WriteAllLines("$file.list", [string[]]$found)
& tar.exe -cf $file -T "$file.list"
if ($LASTEXITCODE) {{ exit $LASTEXITCODE }}
$sha = [Security.Cryptography.SHA256]::Create()
$in = [IO.File]::OpenRead($file)
$buffer = New-Object byte[] ([int]$piece)
do {{
    $size = 0
    while (($n = $in.Read($buffer, $size, $buffer.Length - $size)) -gt 0) {{ $size += $n }}
    if ($size) {{
        $sum = [BitConverter]::ToString($sha.ComputeHash($buffer, 0, $size)).Replace('-', '').ToLower()
        [Console]::Out.Write("$sum`n")
    }}
}} while ($size -eq $buffer.Length)
"""

SEND: Final = f"""{_STOP}$in = [IO.File]::OpenRead($file)
[void]$in.Seek([long]$from, 'Begin')
$in.CopyTo([Console]::OpenStandardOutput())
"""

_LONGEST_USED: Final = 64

# What the first has used is told before it goes; a job may have put anything there.
REMOVE: Final = f"""{_STOP}{_EMPTY}try {{
    $used = [IO.File]::OpenText((Join-Path $base "$($names[0]).script.ps1.used"))
    try {{
        $line = New-Object char[] {_LONGEST_USED}
        [Console]::Out.Write($line, 0, $used.Read($line, 0, $line.Length))
    }} finally {{ $used.Close() }}
}} catch {{ }}
$failed = $null
foreach ($name in $names) {{
    try {{
        Empty (Join-Path $base $name)
        Get-ChildItem -LiteralPath $base -File -Force |
            Where-Object {{ $_.Name.StartsWith("$name.") }} | Remove-Item -Force
    }} catch {{ $failed = $_ }}
}}
if ($failed) {{ throw $failed }}
"""

_BOM: Final = "\ufeff"
"""Without it PowerShell 5 takes a script for one in the machine's own code page."""


@define
class WindowsSlot:
    """See `Slot`."""

    connection: Connection
    wanted: Wanted
    directory: str = field(init=False)
    is_there: bool = field(default=False, init=False)
    usage: Usage = field(default=Usage(), init=False)
    _left: Sequence[str] = field(default=(), init=False)
    """Names of directories of our manager's other tries."""

    @directory.default
    def _as_wanted(self) -> str:
        return f"{self.wanted.base}\\{self.wanted.name}"

    async def run(self, files: Mapping[str, Path], output: Sink, progress: Progress) -> None:
        """See `Slot.run`."""
        await self._prepare()
        progress.began()
        if files:
            await self._upload(files)
        progress.ended(await self._run(".script", Kind.of(self.wanted.script), output))

    async def _prepare(self) -> None:
        """Make the directory, and put the script beside it."""
        wanted = self.wanted
        kind = Kind.of(wanted.script)
        content = _Hashed(kind.content)
        prepare = with_values(
            PREPARE, base=wanted.base, name=wanted.name, owner=wanted.owner, suffix=f".script{kind.suffix}"
        )
        completed = await self.connection.run(powershell(prepare), stdin=content)
        raise_unless_ok(completed, f"cannot prepare {self.directory} on {wanted.instance}")
        self.directory, *names = text_of(wanted.instance, completed.stdout).split("\n")
        self.is_there = True
        content.compare(names.pop() if names else "", "the job's script")
        self._left = names

    async def _upload(self, files: Mapping[str, Path]) -> None:
        archive = f"{self.directory}.files.tar"
        await self._put(archive, Packed.of(files), "the job's files")
        completed = await self.connection.run(("tar.exe", "-xf", archive), cwd=self.directory)
        raise_unless_ok(completed, "cannot upload the job's files")

    async def run_cleanup(self, script: str, output: Sink) -> Completed:
        """See `Slot.run_cleanup`."""
        kind = Kind.of(script)
        await self._put(f"{self.directory}.cleanup{kind.suffix}", kind.content, "the clean-up script")
        return await self._run(".cleanup", kind, output)

    async def download(self, patterns: Sequence[str], store: Sink) -> Completed:
        """See `Slot.download`."""
        archive = f"{self.directory}.artifacts.tar"
        pack = with_values(PACK, slot=self.directory, file=archive, piece=str(PIECE), patterns=patterns)
        packed = await self.connection.run(powershell(pack))
        if packed.ok and packed.stdout:
            await self._fetch(archive, _Pieces(packed.stdout.decode(errors="replace").split(), store))
        return packed

    async def remove(self) -> Completed:
        """See `Slot.remove`."""
        removed = await self._remove([self.wanted.name])
        self.usage = read_used(removed.stdout)
        if removed.ok:
            self.is_there = False
            self.wanted.runs.left_nothing(self.wanted.unit)
        return removed

    async def remove_leftovers(self) -> None:
        """See `Slot.remove_leftovers`."""
        if leftovers := self.wanted.leftovers(self._left):
            await self._remove(leftovers)

    async def _remove(self, names: Sequence[str]) -> Completed:
        base = self.directory.removesuffix(self.wanted.name)
        return await self.connection.run(powershell(with_values(REMOVE, base=base, names=names)))

    async def _run(self, what: str, kind: "Kind", output: Sink) -> Completed:
        """Run a script's file by a line of cmd's, which makes one stream of the two that a job writes."""
        line = kind.line(f"{self.directory}{what}{kind.suffix}", f'"..\\{self.wanted.name}{what}{kind.suffix}"')
        env, cwd = self.wanted.env, self.directory
        return await self.connection.run(f"{line} 2>&1", stdout=output, stderr=output, env=env, cwd=cwd)

    async def _put(self, file: str, source: bytes | AsyncIterable[bytes], what: str) -> None:
        hashed = _Hashed(source)
        completed = await self.connection.run(powershell(with_values(RECEIVE, file=file)), stdin=hashed)
        raise_unless_ok(completed, f"cannot upload {what}")
        hashed.compare(completed.stdout.decode(errors="replace"), what)

    async def _fetch(self, archive: str, pieces: "_Pieces") -> None:
        """Have an archive sent, again from where it comes wrong if it does.

        Raises:
            ArchiveRefused: It does each time.
        """
        failures, done = 0, 0
        while failures < ATTEMPTS:
            send = with_values(SEND, file=archive, **{"from": str(pieces.begin())})
            try:
                completed = await self.connection.run(powershell(send), stdout=pieces.take)
                raise_unless_ok(completed, "cannot download the artifacts")
                await pieces.end()
            except _Corrupt:
                failures, done = (failures + 1 if pieces.done == done else 1), pieces.done
            else:
                return
        raise ArchiveRefused(f"their archive came damaged {ATTEMPTS} times: the checksums differ")


_USED: Final = re.compile(rb"(?:c[0-9]{1,18})?(?: ?m[0-9]{1,18})?")


def read_used(told: bytes) -> Usage:
    """Read what `REMOVE` has written: CPU time in microseconds and peak memory in bytes, or nothing of what it is not.

    The job can have written it instead, so whatever is no such line says nothing.
    """
    return read_usage(told.decode().split()) if _USED.fullmatch(told) else Usage()


def with_values(script: str, /, **values: str | Sequence[str]) -> str:
    """Let a script begin with its parameters; no text in them can be taken for anything else."""
    literals = {
        name: quote(value) if isinstance(value, str) else f"@({', '.join(map(quote, value))})"
        for name, value in values.items()
    }
    return "".join(f"${name} = {literal}\n" for name, literal in literals.items()) + script


@frozen
class Kind:
    """How a script is kept in a file, and run."""

    content: bytes
    suffix: str
    program: str
    """With its options; empty for what cmd runs by itself."""

    @classmethod
    def of(cls, script: str) -> "Kind":
        """Decide by the first line."""
        first, _, rest = script.partition("\n")
        names = first.removeprefix("#!").strip() if first.startswith("#!") else ""
        if first.startswith("@") or _stem(names) == "cmd":
            lines = (rest if names else script).splitlines()
            return cls("".join(f"{line}\r\n" for line in lines).encode(), ".cmd", "")
        if _stem(names) in ("", "powershell", "pwsh"):
            return cls(f"{_BOM}{script}".encode(), ".ps1", f"{_stem(names) or 'powershell'}.exe")
        return cls(script.encode(), "", names)

    def line(self, path: str, near: str) -> str:
        """Write the line for cmd that runs it: by its path, or by what leads to it from the slot's directory.

        The latter has nothing in it that cmd could take for a variable.
        """
        match self.suffix:
            case ".cmd":
                return f"call {near}"
            case ".ps1":
                return subprocess.list2cmdline(powershell(with_values(RUN, script=path), program=self.program))
        return f"{self.program} {near}"


def _stem(names: str) -> str:
    """Name the program of a ``#!`` line: ``pwsh`` for ``C:/Tools/pwsh.exe -v``, and for ``/usr/bin/env pwsh``."""
    words = [word for word in names.split() if PureWindowsPath(word).name != "env"]
    return PureWindowsPath(words[0]).stem.lower() if words else ""


# --- files -----------------------------------------------------------------------------------------------


@define
class _Hashed:
    """What is sent, and the checksum of what was."""

    _source: bytes | AsyncIterable[bytes]
    _sha: "hashlib._Hash" = field(factory=hashlib.sha256, init=False)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Read it; once."""
        if isinstance(self._source, bytes):
            self._sha.update(self._source)
            yield self._source
            return
        async for chunk in self._source:
            self._sha.update(chunk)
            yield chunk

    def compare(self, arrived: str, what: str) -> None:
        """Compare with the checksum of what has arrived.

        Raises:
            ConnectError: It is another.
        """
        if arrived != self._sha.hexdigest():
            raise ConnectError(f"{what} arrived damaged: the checksums differ; try again")


class _Corrupt(Exception):
    """A piece came wrong."""


@define
class _Pieces:
    """An archive on its way, piece by piece; only what has come right is stored."""

    _sums: Sequence[str]
    _store: Sink
    done: int = field(default=0, init=False)
    """How many have come right."""

    _held: bytearray = field(factory=bytearray, init=False)

    @property
    def is_complete(self) -> bool:
        return self.done == len(self._sums)

    def begin(self) -> int:
        """Start or go on; returns from which byte."""
        self._held.clear()
        return self.done * PIECE

    async def take(self, data: bytes) -> None:
        """Take what comes; raises `_Corrupt`."""
        self._held += data
        while len(self._held) >= PIECE:
            await self._finish(bytes(self._held[:PIECE]))
            del self._held[:PIECE]

    async def end(self) -> None:
        """Take what is left for the last; raises `_Corrupt`."""
        if self._held:
            await self._finish(bytes(self._held))
        if not self.is_complete:
            raise _Corrupt

    async def _finish(self, piece: bytes) -> None:
        if self.is_complete or hashlib.sha256(piece).hexdigest() != self._sums[self.done]:
            raise _Corrupt
        await self._store(piece)
        self.done += 1
