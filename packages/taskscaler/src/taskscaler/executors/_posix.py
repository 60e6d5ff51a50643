"""Jobs on POSIX instances: shell scripts, and tar through the connection.

A script that starts with ``#!`` is run by what it names; any other by ``/bin/sh -e``, which stops at the first command
that fails. The instance needs a POSIX shell and ``tar``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from fleeting import Completed, Connection
from fleeting.archives import Packed
from fleeting.connectors import Sink
from taskscaler.executors._slot import Wanted, raise_unless_ok, text_of

# A job may leave directories that it took its own permissions from, hence the second try.
_EMPTY: Final = """
empty() { rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1" && rm -rf -- "$1"; }; }
"""

_PREPARE: Final = """set -eu
umask 077
mkdir -p -- "$1"
cd -- "$1"
mkdir -- "$2"
cat > "$2.script"
chmod 700 "$2.script"
for left in slot-*-"$3"-*-*; do
    if [ -d "$left" ]; then printf '%s\\n' "$left"; fi
done
echo
pwd -P
"""

_REMOVE: Final = f"""{_EMPTY}
status=0
for directory do
    {{ empty "$directory" && rm -f -- "$directory.script"; }} || status=$?
done
exit $status
"""

# An empty IFS keeps names with spaces whole while their globs are still expanded.
_COLLECT: Final = """
cd -- "$1" || exit
shift
IFS=
asked=$#
for pattern do
    for path in $pattern; do
        if [ -e "$path" ] || [ -L "$path" ]; then set -- "$@" "./$path"; fi
    done
done
shift "$asked"
[ $# -eq 0 ] || exec tar -cf - "$@"
"""

_IN_ONE_STREAM: Final = 'exec "$@" 2>&1'
"""What a job prints on its two outputs is in order only if they are one."""


@frozen(kw_only=True)
class PosixSlot:
    """See `Slot`."""

    connection: Connection
    directory: str
    wanted: Wanted
    leftovers: Sequence[str] = ()
    """Directories of tries that are over."""

    @classmethod
    async def prepared(cls, connection: Connection, wanted: Wanted) -> "PosixSlot":
        """Make it ready."""
        command = ("/bin/sh", "-c", _PREPARE, "sh", wanted.base, wanted.name, wanted.owner)
        completed = await connection.run(command, stdin=wanted.script.encode())
        raise_unless_ok(completed, f"cannot prepare {wanted.base}/{wanted.name} on {wanted.instance}")
        names, _, base = f"\n{text_of(wanted.instance, completed.stdout)}".rpartition("\n\n")
        base = base.removesuffix("\n")
        leftovers = [f"{base}/{name}" for name in wanted.leftovers(names.split("\n"))]
        return cls(connection=connection, directory=f"{base}/{wanted.name}", wanted=wanted, leftovers=leftovers)

    async def upload(self, files: Mapping[str, Path]) -> None:
        """See `Slot.upload`."""
        completed = await self.connection.run(("tar", "-xf", "-"), stdin=Packed.of(files), cwd=self.directory)
        raise_unless_ok(completed, "cannot upload the job's files")

    async def run_script(self, output: Sink) -> Completed:
        """See `Slot.run_script`."""
        interpreter = () if self.wanted.script.startswith("#!") else ("/bin/sh", "-e")
        return await self._run((*interpreter, f"{self.directory}.script"), output)

    async def run_cleanup(self, script: str, output: Sink) -> Completed:
        """See `Slot.run_cleanup`."""
        return await self._run(("/bin/sh", "-e", "-c", script), output)

    async def download(self, patterns: Sequence[str], store: Sink) -> Completed:
        """See `Slot.download`."""
        return await self.connection.run(("/bin/sh", "-c", _COLLECT, "sh", self.directory, *patterns), stdout=store)

    async def remove(self) -> Completed:
        """See `Slot.remove`."""
        return await self._remove([self.directory])

    async def remove_leftovers(self) -> None:
        """See `Slot.remove_leftovers`."""
        if self.leftovers:
            await self._remove(self.leftovers)

    async def _remove(self, directories: Sequence[str]) -> Completed:
        return await self.connection.run(("/bin/sh", "-c", _REMOVE, "sh", *directories))

    async def _run(self, command: Sequence[str], output: Sink) -> Completed:
        in_one = ("/bin/sh", "-c", _IN_ONE_STREAM, "sh", *command)
        env, cwd = self.wanted.env, self.directory
        return await self.connection.run(in_one, stdout=output, stderr=output, env=env, cwd=cwd)
