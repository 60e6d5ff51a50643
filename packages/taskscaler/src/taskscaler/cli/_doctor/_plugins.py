"""Whether plugins can be loaded: all that are installed, or those that a file needs."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import attrs
from attrs import frozen

from fleeting import ConfigError
from fleeting.config import find_group
from fleeting.errors import PluginBroken
from fleeting.plugins import load_connector
from taskscaler.cli._doctor._checks import Report
from taskscaler.cli._doctor._finding import Finding, Grade
from taskscaler.config import PoolTable
from taskscaler.executors import find_executor
from taskscaler.observers import load_observer

_EXTRA = re.compile(r"(?P<what>.*?)[;:] (?P<install>pip install [^;:]+)")
"""How our own modules say that an optional package is missing."""


def _load_observer(name: str) -> object:
    with suppress(ConfigError):  # it has been loaded, and would have settings
        load_observer(name, {})
    return None


KINDS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "fleeting.groups": ("group", find_group),
    "fleeting.connectors": ("connector", load_connector),
    "taskscaler.executors": ("executor", find_executor),
    "taskscaler.observers": ("observer", _load_observer),
}
"""The suite's entry-point groups: what they hold, and how one of them is loaded."""


@frozen
class PluginLook:
    """A look at one plugin."""

    kind: str
    name: str
    release: str
    load: Callable[[str], object]
    is_needed: bool = False
    """Whether the file needs it; else it may lack an optional package."""

    @property
    def what(self) -> str:
        """Which one it is."""
        return f"{self.kind} {self.name}"

    def run(self, report: Report) -> None:
        """Load it, and report what it is."""
        try:
            self.load(self.name)
        except PluginBroken as error:
            extra = _EXTRA.fullmatch(str(error.__cause__))
            if extra is None or not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            grade = Grade.PROBLEM if self.is_needed else Grade.OK
            do = extra["install"] if self.is_needed else f"{extra['install']}, if you want to use it"
            code = error.entry.code if self.is_needed else ""
            report(Finding(check="plugin", grade=grade, found=f"{self.what}: {extra['what']}", do=do, code=code))
        else:
            report(Finding(check="plugin", grade=Grade.OK, found=f"{self.what}: {self.release}"))


def installed_plugins() -> Iterator[PluginLook]:
    """Every plugin that is installed; none is imported yet."""
    for group, (kind, load_one) in KINDS.items():
        for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
            yield PluginLook(kind, entry.name, _release(entry), load_one)


def needed_connectors(pools: Sequence[PoolTable]) -> Iterator[PluginLook]:
    """The connectors that a fleet needs, as far as the file shows it; one that is not installed is left out."""
    kind, load_one = KINDS["fleeting.connectors"]
    names = {likely_protocol(pool) for pool in pools}
    for entry in entry_points(group="fleeting.connectors"):
        if entry.name in names:
            yield PluginLook(kind, entry.name, _release(entry), load_one, is_needed=True)


def secret_keys(pools: Sequence[PoolTable]) -> Iterator[str]:
    """Name the settings of the pools' plugins that those declare as secret."""
    for pool in pools:
        _, plugin = find_group(pool.plugin)
        yield from plugin.secrets
        yield from (each.alias for each in attrs.fields(plugin.config) if not each.repr)


def likely_protocol(pool: PoolTable) -> str:
    """Name the protocol by which the instances of a pool will be reached, unless the plugin reports another."""
    config = pool.connector_config
    if config.protocol:
        return config.protocol.partition("+")[0]
    if pool.plugin == "local":
        return "local"
    return "winrm" if config.os == "windows" else "ssh"


def _release(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
