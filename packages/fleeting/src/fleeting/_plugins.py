"""Finds plugins by the names of their entry points, and imports only the one that is asked for."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from fleeting._errors import InterfaceMismatch, PluginBroken, PluginNotFound
from fleeting._protocols import Connector, GroupPlugin, InstanceGroup
from fleeting._structure import BareNumbers, structure
from fleeting._types import SUPPORTED_INTERFACE_VERSIONS
from fleeting._wording import did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUPS: Final = "fleeting.groups"
CONNECTORS: Final = "fleeting.connectors"

_OTHER_NAMES = {"googlecompute": "googlecloud"}
"""Names that GitLab's files may have for a plugin of ours."""

_DISTRIBUTIONS = {
    "aws": "fleeting-aws",
    "azure": "fleeting-azure",
    "docker": "fleeting-docker",
    "exec": "fleeting-exec",
    "googlecloud": "fleeting-gcp",
}
"""What to install for the plugins that we publish ourselves."""


def load_group(
    name: str,
    config: Mapping[str, object] | None = None,
    *,
    path: str = "plugin_config",
    source: str = "",
    bare_numbers: BareNumbers = "refuse",
    notes: list[str] | None = None,
) -> InstanceGroup:
    """Make an instance group from its plugin's name and settings; nothing is connected yet.

    Args:
        name: ``"aws"``, or as GitLab's files have it: ``"aws:latest"``, ``"fleeting-plugin-aws"``.
        config: The plugin's own settings, the table ``plugin_config``. None: its defaults.
        path: Key path of that table, for messages.
        source: Name of the file, for messages.
        bare_numbers: What a number is where a duration belongs.
        notes: Gets one sentence for each thing that is accepted but not as written.

    Raises:
        PluginNotFound: Install it, or correct the name.
        PluginBroken: Reinstall it, or report it to its author.
        InterfaceMismatch: Install a release that matches this fleeting.
        ConfigError: Correct the settings.
    """
    entry, plugin = find_group(name)
    version = name.rpartition("/")[2].partition(":")[2]
    if notes is not None and version not in ("", "latest"):
        notes.append(f"plugin {name!r}: {version} is a release of the Go plugin; used is {_release(entry)}")
    settings = structure(
        config or {},
        plugin.config,
        path=path,
        source=source,
        bare_numbers=bare_numbers,
        secrets=plugin.secrets,
        notes=notes,
    )
    return plugin.group(settings)


def find_group(name: str) -> "tuple[EntryPoint, GroupPlugin]":
    """Find a group's plugin, by any name that `load_group` takes, and what it says of itself.

    Raises:
        PluginNotFound, PluginBroken, InterfaceMismatch: As `load_group`.
    """
    plain = name.rpartition("/")[2].partition(":")[0].removeprefix("fleeting-plugin-")
    entry = find_plugin(GROUPS, _OTHER_NAMES.get(plain, plain))
    plugin = ask_plugin(entry, "fleeting_group")
    if not isinstance(plugin, GroupPlugin):
        raise PluginBroken(entry.name, reason=f"its fleeting_group hook gives {plugin!r}, not a GroupPlugin")
    check_interface(entry.name, plugin.interface_version)
    return entry, plugin


@cache
def load_connector(protocol: str) -> Connector:
    """Find who speaks *protocol*; what follows a ``+`` is a variant that the same connector speaks.

    Raises:
        PluginNotFound: Install it, or correct the name.
        PluginBroken: Reinstall it, or report it to its author.
    """
    entry = find_plugin(CONNECTORS, protocol.partition("+")[0])
    connector: Connector = ask_plugin(entry, "fleeting_connector")
    return connector


def available_groups() -> list[str]:
    """Name the instance groups that are installed, in alphabetical order; imports none of them."""
    return available_plugins(GROUPS)


def available_plugins(kind: str) -> list[str]:
    """Name what is installed under an entry-point group, in alphabetical order; imports none of it."""
    return sorted(_installed(kind).names)


def check_interface(plugin: str, version: int) -> None:
    """Refuse a plugin that was written for a version of the interface that we do not support.

    Raises:
        InterfaceMismatch: Says what to install.
    """
    if version not in SUPPORTED_INTERFACE_VERSIONS:
        raise InterfaceMismatch(plugin, found=version, supported=SUPPORTED_INTERFACE_VERSIONS)


def find_plugin(kind: str, name: str) -> "EntryPoint":
    """Look a plugin up without importing it.

    Args:
        kind: The entry-point group, such as ``"fleeting.groups"``.
        name: The entry point's own name.

    Raises:
        PluginNotFound: Install it, or correct the name.
    """
    installed = _installed(kind)
    if name in installed.names:
        return installed[name]
    published = _DISTRIBUTIONS if kind == GROUPS else {}
    raise PluginNotFound(
        name,
        kind=kind,
        available=sorted(installed.names),
        distribution=published.get(name, ""),
        hint=did_you_mean(name, {*published, *installed.names}),
    )


def ask_plugin(entry: "EntryPoint", hook: str, *, project: str = "fleeting", specs: type | None = None) -> Any:  # noqa: ANN401  (the caller knows what its hook gives)
    """Import a plugin's module and call its hook.

    Args:
        entry: What `find_plugin` found.
        hook: The function that the module must have, marked with the project's ``hookimpl``.
        project: What the project's pluggy markers were made for.
        specs: The hooks that the project knows; each has ``firstresult``. None: fleeting's own.

    Raises:
        PluginBroken: Reinstall it, or report it to its author.
    """
    from pluggy import PluginManager, PluginValidationError  # 10 ms that a bare ``import fleeting`` need not pay

    from fleeting._hooks import Specs

    manager = PluginManager(project)
    manager.add_hookspecs(specs or Specs)
    try:
        manager.register(entry.load(), entry.name)
        manager.check_pending()
        result = getattr(manager.hook, hook)()
    except PluginValidationError as error:
        raise PluginBroken(entry.name, reason=str(error)) from error
    except Exception as error:  # whatever a foreign module raises
        reason = f"{entry.value} fails while it is loaded ({type(error).__name__}: {error})"
        raise PluginBroken(entry.name, reason=reason) from error
    if result is None:
        raise PluginBroken(entry.name, reason=f"{entry.value} has no {hook} function marked with {project}.hookimpl")
    return result


def _installed(kind: str) -> "EntryPoints":
    from importlib.metadata import entry_points  # 20 ms that a bare ``import fleeting`` need not pay

    return entry_points(group=kind)


def _release(entry: "EntryPoint") -> str:
    """Name what provides an entry point, as pip does."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
