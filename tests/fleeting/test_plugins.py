"""Plugins are found by their entry points, and every way they can be wrong has its own words."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleeting._errors import ConfigError, InterfaceMismatch, PluginBroken, PluginNotFound
from fleeting._plugins import available_groups, check_interface, load_connector, load_group

GROUP = """
import attrs
from fleeting._durations import Duration
from fleeting._hooks import hookimpl
from fleeting._protocols import GroupPlugin

@attrs.frozen(kw_only=True)
class Config:
    name: str
    boot_delay: Duration = 0.0
    profile: str = attrs.field(default="", metadata={{"aliases": ("credentials_profile",)}})
    token: str = ""

@attrs.frozen
class Group:
    config: Config

@hookimpl
def fleeting_group():
    return GroupPlugin(config=Config, group=Group, interface_version={version}, secrets=frozenset({{"token"}}))
"""

CONNECTOR = """
from fleeting._hooks import hookimpl

@hookimpl
def fleeting_connector():
    return "somebody who speaks it"
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that installs a distribution with one plugin, as pip would."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, source: str, *, kind: str = "fleeting.groups", entry: str | None = None) -> None:
        module = f"plugin_of_a_test_{name}"
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dist-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{kind}]\n{entry or name} = {module}\n")
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


def test_a_group_is_made_from_its_settings(install: Install) -> None:
    """The plugin's schema reads the table, and its factory gets the result."""
    install("cloudy", GROUP.format(version=1))
    group = load_group("cloudy", {"name": "fleet", "boot_delay": "1m30s"})
    assert repr(group) == "Group(config=Config(name='fleet', boot_delay=90.0, profile='', token=''))"


@pytest.mark.parametrize(
    "name", ["aws", "aws:latest", "fleeting-plugin-aws", "registry.example/group/fleeting-plugin-aws:latest"]
)
def test_names_that_existing_files_have_are_understood(install: Install, name: str) -> None:
    """Whatever GitLab's plugin key may hold resolves to the Python plugin, without a note."""
    install("aws", GROUP.format(version=1))
    notes: list[str] = []
    assert "fleet" in repr(load_group(name, {"name": "fleet"}, notes=notes))
    assert notes == []


@pytest.mark.parametrize("name", ["googlecloud", "googlecompute", "fleeting-plugin-googlecompute"])
def test_both_names_of_the_google_plugin_are_understood(install: Install, name: str) -> None:
    """The older name of GitLab's plugin is one of them."""
    install("googlecloud", GROUP.format(version=1))
    assert "fleet" in repr(load_group(name, {"name": "fleet"}))


def test_a_version_constraint_is_reported_and_not_obeyed(install: Install) -> None:
    """It names a release of the Go plugin."""
    install("aws", GROUP.format(version=1))
    notes: list[str] = []
    load_group("aws:1.2.0", {"name": "fleet", "credentials_profile": "ci"}, notes=notes)
    assert notes == [
        "plugin 'aws:1.2.0': 1.2.0 is a release of the Go plugin; used is dist-aws 1.0",
        "plugin_config.credentials_profile is an older name; use profile",
    ]


def test_settings_are_checked_where_they_stand(install: Install) -> None:
    """Messages have the file, the key path and no secret."""
    install("cloudy", GROUP.format(version=1))
    with pytest.raises(ConfigError) as caught:
        load_group("cloudy", {"token": 1234, "zone": "a"}, path="autoscaler.plugin_config", source="config.toml")
    assert str(caught.value).splitlines() == [
        "config.toml: autoscaler.plugin_config.token: expected a string, found an integer",
        (
            "config.toml: unknown key `zone` in [autoscaler.plugin_config]"
            " (known keys: name, boot_delay, profile, token)"
        ),
        "config.toml: missing key `name` in [autoscaler.plugin_config], expected a string",
    ]


def test_durations_of_a_go_file_reach_the_plugin(install: Install) -> None:
    """A bare number is passed on as nanoseconds where the file is GitLab's."""
    install("cloudy", GROUP.format(version=1))
    group = load_group("cloudy", {"name": "fleet", "boot_delay": 2_000_000_000}, bare_numbers="nanoseconds")
    assert "boot_delay=2.0" in repr(group)


def test_an_unknown_plugin_is_told_the_nearest_name(install: Install) -> None:
    """The installed names are listed."""
    install("cloudy", GROUP.format(version=1))
    with pytest.raises(PluginNotFound) as caught:
        load_group("clowdy", {})
    installed = ", ".join(available_groups())
    assert str(caught.value) == (
        f"no plugin 'clowdy' for fleeting.groups is installed (installed: {installed}); did you mean `cloudy`?"
    )


@pytest.mark.parametrize(
    ("name", "distribution"),
    [("aws", "fleeting-aws"), ("azure", "fleeting-azure"), ("googlecompute", "fleeting-gcp")],
)
def test_a_plugin_of_ours_that_is_not_installed_names_its_distribution(
    monkeypatch: pytest.MonkeyPatch, name: str, distribution: str
) -> None:
    """What to type is in the message, whatever is installed here."""
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(PluginNotFound) as caught:
        load_group(name, {})
    known = {"googlecompute": "googlecloud"}.get(name, name)
    assert str(caught.value) == (
        f"no plugin {known!r} for fleeting.groups is installed (installed: none); pip install {distribution}"
    )


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(2, "install a newer fleeting"), (0, "install a newer release of the cloudy plugin")],
)
def test_a_plugin_of_another_interface_is_refused(install: Install, version: int, remedy: str) -> None:
    """The message says which side is to be upgraded."""
    install("cloudy", GROUP.format(version=version))
    with pytest.raises(InterfaceMismatch) as caught:
        load_group("cloudy", {"name": "fleet"})
    assert str(caught.value) == (
        f"plugin 'cloudy' was written for interface version {version}, this fleeting supports 1; {remedy}"
    )


def test_the_supported_interface_passes() -> None:
    """Groups that come as objects are held to the same versions."""
    check_interface("cloudy", 1)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "import no_such_sdk",
            "plugin_of_a_test_broken fails while it is loaded (ModuleNotFoundError: No module named 'no_such_sdk')",
        ),
        ("1 / 0", "plugin_of_a_test_broken fails while it is loaded (ZeroDivisionError: division by zero)"),
        (
            "from fleeting._hooks import hookimpl\n@hookimpl\ndef fleeting_group(): raise KeyError('region')",
            "plugin_of_a_test_broken fails while it is loaded (KeyError: 'region')",
        ),
        (
            "def fleeting_group(): ...",
            "plugin_of_a_test_broken has no fleeting_group function marked with fleeting.hookimpl",
        ),
        (
            "from fleeting._hooks import hookimpl\n@hookimpl\ndef fleeting_group(): return 'aws'",
            "its fleeting_group hook gives 'aws', not a GroupPlugin",
        ),
    ],
    ids=["missing import", "error at import", "error in the hook", "no hook", "wrong answer"],
)
def test_a_broken_plugin_gets_one_clear_error(install: Install, source: str, reason: str) -> None:
    """The name of the plugin and what is wrong with it, whatever it was."""
    install("broken", source)
    with pytest.raises(PluginBroken) as caught:
        load_group("broken", {})
    assert str(caught.value) == f"plugin 'broken' is installed but cannot be used: {reason}"


@pytest.mark.parametrize(
    ("hook", "reason"),
    [("fleeting_gruop()", "unknown hook"), ("fleeting_group(size)", r"Argument\(s\) {'size'} are declared")],
    ids=["misspelt", "extra argument"],
)
def test_a_hook_of_another_shape_is_refused(install: Install, hook: str, reason: str) -> None:
    """A misspelt hook is not silently ignored."""
    install("broken", f"from fleeting._hooks import hookimpl\n@hookimpl\ndef {hook}: ...")
    with pytest.raises(PluginBroken, match=rf"(?s)^plugin 'broken' is installed but cannot be used: .*{reason}"):
        load_group("broken", {})


def test_only_the_named_plugin_is_imported(install: Install) -> None:
    """A second plugin, whose import would fail, is none of our business."""
    install("cloudy", GROUP.format(version=1))
    install("sunny", "1 / 0")
    load_group("cloudy", {"name": "fleet"})
    assert {"cloudy", "sunny"} <= set(available_groups())
    assert "plugin_of_a_test_sunny" not in sys.modules


@pytest.mark.parametrize("protocol", ["carrier", "carrier+https"])
def test_a_connector_speaks_its_variants(install: Install, protocol: str) -> None:
    """What follows a plus is a variant of the protocol before it."""
    install("carrier", CONNECTOR, kind="fleeting.connectors")
    load_connector.cache_clear()
    assert str(load_connector(protocol)) == "somebody who speaks it"


def test_an_unknown_protocol_is_told_the_nearest_name(install: Install) -> None:
    """Connectors are looked up among connectors only."""
    install("carrier", CONNECTOR, kind="fleeting.connectors")
    install("carriet", GROUP.format(version=1))
    with pytest.raises(PluginNotFound, match=r"'carriet' for fleeting\.connectors .*did you mean `carrier`\?"):
        load_connector("carriet")
