"""Clouds for tests, each a script in a directory: one that behaves, and one that does whatever it is told."""

import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from attrs import frozen

from fleeting import LoopClock, Settings
from fleeting_exec import ExecConfig, ExecGroup
from tests.needs import need

PROCESSES = """\
#!/bin/sh
set -eu
cd "$CLOUD"
case $1 in
create)
    [ ! -d "$2" ] || exit 0
    mkdir "$2"
    setsid sleep 1000 </dev/null >/dev/null 2>&1 &
    echo $! >"$2/pid" ;;
list)
    printf '{"instances": ['
    comma=
    for directory in ./*/; do
        name=${directory#./} state=creating
        [ "$name" != '*/' ] || continue
        if read -r pid 2>/dev/null <"$name/pid"; then
            state=failed
            ! kill -0 "$pid" 2>/dev/null || state=running
        fi
        printf '%s{"name": "%s", "state": "%s", "internal_addr": "%s.test"}' "$comma" "${name%/}" "$state" "${name%/}"
        comma=,
    done
    echo ']}' ;;
destroy)
    ! read -r pid 2>/dev/null <"$2/pid" || kill -9 "$pid" 2>/dev/null || :
    rm -rf "$2" ;;
mark) echo "$2" >"mark-$FLEETING_OWNER" ;;
unmark) rm -f "mark-$2" ;;
marks)
    printf '{"marks": ['
    comma=
    for file in ./mark-*; do
        read -r until 2>/dev/null <"$file" || continue
        printf '%s{"owner": "%s", "until": %s}' "$comma" "${file#./mark-}" "$until"
        comma=,
    done
    echo ']}' ;;
*) exit 64 ;;
esac
"""
"""Instances are directories with a process each; nothing but the shell's own words, so that it is fast."""

OBEDIENT = """\
#!/bin/sh
echo "$*" >>"$CLOUD/log"
[ -f "$CLOUD/on-$1" ] || exit 64
. "$CLOUD/on-$1"
"""

EMPTY = """echo '{"instances": []}'"""


@frozen
class Cloud:
    """A directory with a script, and with what the script makes."""

    directory: Path

    @classmethod
    def of_processes(cls, directory: Path) -> "Cloud":
        """Make one that behaves."""
        need("setsid")
        return cls.of(directory, PROCESSES)

    @classmethod
    def of(cls, directory: Path, script: str) -> "Cloud":
        """Make one of the script's temper; it finds its directory in ``$CLOUD``."""
        (directory / "cloud").mkdir(parents=True)
        cloud = cls(directory)
        cloud.program.write_text(script)
        cloud.program.chmod(0o755)
        return cloud

    @classmethod
    def that(cls, directory: Path, **does: str) -> "Cloud":
        """Make one that does as it is told, in shell text for each sub-command; destroying succeeds without a word."""
        cloud = cls.of(directory, OBEDIENT)
        cloud.now(**{"list": EMPTY, "destroy": ":", **does})
        return cloud

    def now(self, **does: str) -> None:
        """Have it do something else from now on."""
        for command, text in does.items():
            (self.instances / f"on-{command}").write_text(text)

    @property
    def program(self) -> Path:
        """The script."""
        return self.directory / "provision"

    @property
    def instances(self) -> Path:
        """Where the script finds itself at home."""
        return self.directory / "cloud"

    def config(self, **settings: object) -> ExecConfig:
        """Settings for a group over it."""
        env = {"CLOUD": str(self.instances), **_strings(settings.pop("env", {}))}
        base = {"command": (str(self.program),), "state_dir": str(self.directory / "state"), "env": env}
        return ExecConfig(**{**base, **settings})  # type: ignore[arg-type]  # whatever a test is about

    def group(self, **settings: object) -> ExecGroup:
        """Make a group over it."""
        return ExecGroup(self.config(**settings))

    @asynccontextmanager
    async def opened(self, *, observe_only: bool = False, **settings: object) -> AsyncIterator[ExecGroup]:
        """Open a group over it, and close it in the end."""
        group = self.group(**settings)
        await group.init(Settings(owner="test", clock=LoopClock(), observe_only=observe_only))
        try:
            yield group
        finally:
            await group.shutdown()

    def pids(self) -> dict[str, int]:
        """Process ids of those that live, by name."""
        found = {path.parent.name: int(path.read_text()) for path in self.instances.glob("*/pid") if path.read_text()}
        return {name: pid for name, pid in found.items() if is_alive(pid)}

    def kill(self, name: str) -> None:
        """End an instance behind everybody's back."""
        os.kill(self.pids()[name], signal.SIGKILL)

    def clear_away(self) -> None:
        """Leave nothing behind."""
        for pid in self.pids().values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def hanging(self) -> list[int]:
        """Process ids that the script has written into ``$CLOUD/hanging``, once they are whole."""
        path = self.instances / "hanging"
        text = path.read_text() if path.exists() else ""
        return [int(pid) for pid in text.split()] if text.endswith("\n") else []

    def log(self) -> list[str]:
        """What the script has written into ``$CLOUD/log``, line by line."""
        path = self.instances / "log"
        return path.read_text().splitlines() if path.exists() else []


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _strings(table: object) -> Mapping[str, str]:
    assert isinstance(table, dict)
    return table
