"""Several pools in a file: what they take over from the fleet, and what is said where that is wrong."""

from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import ConfigError, ConnectorConfig, GroupInfo, ScaleThrottle
from fleeting.plugins import structure
from taskscaler import config
from taskscaler._jobsfile import JobsFile, read_jobs_file
from taskscaler.config import Autoscaler
from taskscaler.config._pools import at_home, with_inheritance

JOB = """
    [[jobs]]
    name = "a"
    script = "true"
"""

TWO = """
    [autoscaler]
    plugin = "local"
    plugin_config = { boot_time = "10s" }
    max_instances = 12
    capacity_per_instance = 2
    intent_timeout = "5m"
    connector_config = { keepalive = "10s", timeout = "1m" }
    scale_throttle = { limit = 5 }

    [[autoscaler.pools]]
    name = "spot"
    max_instances = 10
    connector_config = { timeout = "2m" }

    [[autoscaler.pools]]
    name = "on-demand"
    capacity_per_instance = 4
    plugin_config = { boot_time = "20s" }
    intent_timeout = "15m"
"""

GITLAB = """
    [[runners]]
    name = "ours"
    executor = "instance"
    [runners.autoscaler]
    capacity_per_instance = 2
    update_interval = 30000000000
    [[runners.autoscaler.pools]]
    name = "spot"
    plugin = "local"
    plugin_config = { boot_time = 10000000000 }
    [[runners.autoscaler.pools]]
    name = "on-demand"
    plugin = "local"
"""


def read(directory: Path, *parts: str) -> JobsFile:
    """Write a jobs file of these parts and read it."""
    path = directory / "jobs.toml"
    path.write_text("".join(dedent(part) for part in (*parts, JOB)))
    return read_jobs_file(path)


def problems(directory: Path, *parts: str) -> list[str]:
    """All that is wrong with a file of these parts, one line each, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        read(directory, *parts)
    return [line.removeprefix(f"{directory}/jobs.toml: ") for line in str(caught.value).splitlines()]


def test_a_pool_takes_over_what_it_does_not_say(tmp_path: Path) -> None:
    """All but the name and the ceiling, which is then the one over all pools; of a table, key by key."""
    fleet = read(tmp_path, TWO).autoscaler
    spot, on_demand = fleet.pools
    assert (spot.name, spot.plugin, spot.capacity_per_instance, spot.max_instances) == ("spot", "local", 2, 10)
    assert (on_demand.name, on_demand.plugin, on_demand.capacity_per_instance) == ("on-demand", "local", 4)
    assert (on_demand.max_instances, fleet.max_instances, fleet.ceiling) == (0, 12, 12)
    assert (spot.intent_timeout, on_demand.intent_timeout) == (300.0, 900.0)
    assert spot.connector_config == ConnectorConfig(keepalive=10.0, timeout=120.0)
    assert on_demand.connector_config == ConnectorConfig(keepalive=10.0, timeout=60.0)
    assert (spot.plugin_config, on_demand.plugin_config) == ({"boot_time": "10s"}, {"boot_time": "20s"})
    assert spot.scale_throttle == on_demand.scale_throttle == ScaleThrottle(limit=5.0)


def test_each_pool_has_a_group_of_its_own(tmp_path: Path) -> None:
    """Made by its own plugin, with its own settings, under its own name."""
    file = read(tmp_path, TWO)
    first, second = file.groups
    assert first is not second
    pools = [pool.pool(group) for pool, group in zip(file.autoscaler.all_pools, file.groups, strict=True)]
    assert [pool.name for pool in pools] == ["spot", "on-demand"]


def test_without_pools_the_fleet_is_the_only_one(tmp_path: Path) -> None:
    """And its ceiling is its own."""
    file = read(tmp_path, '[autoscaler]\nplugin = "local"\nmax_instances = 3\n')
    assert file.autoscaler.all_pools == (file.autoscaler,)
    assert len(file.groups) == 1


def test_another_plugin_takes_over_no_settings_of_the_first(tmp_path: Path) -> None:
    """They would mean nothing to it."""
    fleet = read(
        tmp_path,
        """
        [autoscaler]
        plugin = "local"
        plugin_config = { boot_time = "10s" }
        [[autoscaler.pools]]
        name = "here"
        [[autoscaler.pools]]
        name = "there"
        plugin = "static"
        plugin_config = { hosts = [{ address = "10.0.0.1" }] }
        """,
    ).autoscaler
    assert [list(pool.plugin_config) for pool in fleet.pools] == [["boot_time"], ["hosts"]]


def test_a_fleet_whose_pools_all_name_a_plugin_needs_none(tmp_path: Path) -> None:
    """It is the pools that are opened."""
    pools = '[[autoscaler.pools]]\nname = "a"\nplugin = "local"\n[[autoscaler.pools]]\nname = "b"\nplugin = "local"\n'
    assert len(read(tmp_path, pools).groups) == 2


def test_a_config_toml_may_have_pools_too(tmp_path: Path) -> None:
    """With the same keys, and numbers as Go reads them."""
    path = tmp_path / "config.toml"
    path.write_text(dedent(GITLAB))
    runner = config.load(path)
    assert [pool.name for pool in runner.autoscaler.all_pools] == ["spot", "on-demand"]
    assert {pool.update_interval for pool in runner.autoscaler.pools} == {30.0}
    assert {pool.preexisting.value for pool in runner.autoscaler.pools} == {"remove"}
    assert len(runner.groups()) == 2


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        ('plugin = "local"\n[[autoscaler.pools]]\nplugin = "local"', "missing key `name` in autoscaler.pools[0]"),
        (
            'plugin = "local"\n[[autoscaler.pools]]\nname = "a"\n[[autoscaler.pools]]\nname = "a"',
            'expected pools with different names, found "a" twice',
        ),
        (
            'plugin = "local"\n[[autoscaler.pools]]\nname = "a"\nmax_instance = 3',
            "did you mean `max_instances`?",
        ),
        (
            'plugin = "local"\n[[autoscaler.pools]]\nname = "a"\npolicy = []',
            "unknown key `policy` in autoscaler.pools",
        ),
        ('[[autoscaler.pools]]\nname = "a"', "missing key `plugin` in [autoscaler]"),
        ('plugin = "local"\ncapacity_per_instance = 0\n[[autoscaler.pools]]\nname = "a"', "autoscaler.capacity_per_"),
        (
            'plugin = "local"\nconnector_config.timeout = 3\n[[autoscaler.pools]]\nname = "a"',
            "autoscaler.connector_config.timeout: expected",
        ),
        (
            'plugin = "local"\n[[autoscaler.pools]]\nname = "a"\nconnector_config.keepalive = 3',
            'autoscaler.pools[0].connector_config.keepalive (pool "a"): expected',
        ),
        (
            'plugin = "local"\n[[autoscaler.pools]]\nname = "a"\nplugin = "nimbus"',
            'pools[0].plugin (pool "a"): "nimbus" is not an',
        ),
        (
            'plugin = "local"\nplugin_config.boot = 1\n[[autoscaler.pools]]\nname = "a"',
            "unknown key `boot` in [autoscaler.plugin_config]",
        ),
        ('plugin = "local"\npools = 3', "autoscaler.pools: expected an array, found 3"),
        ('plugin = "local"\npools = [3]', "autoscaler.pools[0]: expected a table, found 3"),
    ],
)
def test_what_is_wrong_is_told_once_where_it_stands(tmp_path: Path, fleet: str, said: str) -> None:
    """Not again for each pool that takes it over."""
    (told,) = problems(tmp_path, f"[autoscaler]\n{fleet}\n")
    assert said in told


@pytest.mark.parametrize(
    ("ours", "over_all", "sizes", "ceiling"),
    [
        ((0, 0), 0, {}, 0),
        ((2, 3), 0, {}, 5),
        ((0, 3), 0, {"a": 3, "b": None}, 6),
        ((9, 3), 0, {"a": 3, "b": 4}, 6),
        ((0, 3), 4, {"a": 3}, 4),
        ((0, 3), 0, {"b": 1}, 0),
    ],
)
def test_the_ceiling_is_that_of_all_that_limits(
    ours: tuple[int, int], over_all: int, sizes: dict[str, int | None], ceiling: int
) -> None:
    """Of a fleet of fixed hosts, their number."""
    pools = tuple(config.NamedPool(name=n, plugin="x", max_instances=most) for n, most in zip("ab", ours, strict=True))
    fleet = config.Autoscaler(plugin="x", max_instances=over_all, pools=pools)
    infos = {name: GroupInfo(identity=name, max_size=size) for name, size in sizes.items()}
    assert fleet.ceiling_with(infos) == ceiling


KEYS = st.sampled_from(
    ["capacity_per_instance", "max_use_count", "max_instances", "intent_timeout", "scale_throttle", "nonsense"]
)
VALUES = st.sampled_from([1, 0, -1, "x", "30s", {"limit": 2}, {"limit": 0}, {"burst": "much"}])
TABLES = st.dictionaries(KEYS, VALUES, max_size=4)


@given(TABLES, st.lists(TABLES, max_size=3))
def test_a_pool_is_wrong_exactly_if_it_or_the_fleet_is(
    fleet: dict[str, object], pools: list[dict[str, object]]
) -> None:
    """No mistake goes unnoticed since it is told elsewhere, and none is told of a table that has none."""
    named = [{"name": f"pool-{number}", **pool} for number, pool in enumerate(pools)]
    table: dict[str, object] = {"plugin": "local", **fleet, "pools": named}
    try:
        structure(with_inheritance(table), Autoscaler, path="autoscaler")
    except ConfigError as error:
        told = [problem.path for problem in at_home(error.problems, table, "autoscaler")]
        assert told
        assert len(set(told)) == len(told)
        for path in told:
            keys = path.removeprefix("autoscaler.").replace("[", ".").replace("]", "").split(".")
            own, key = (named[int(keys[1])], keys[2]) if keys[0] == "pools" else (fleet, keys[0])
            assert key in own
    else:
        for pool in named:
            structure({**pool, "plugin": "local"}, config.NamedPool)
