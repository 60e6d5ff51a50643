"""Settings of a jobs file that are right each by itself and make no sense together."""

from collections.abc import Iterator

from fleeting import ConnectorConfig
from fleeting.errors import ConfigProblem
from fleeting.plugins import format_duration
from taskscaler._jobsfile._tables import JobsTables, Tables
from taskscaler.config._autoscaler import Autoscaler, PoolTable


def impossible_combinations(tables: Tables) -> Iterator[ConfigProblem]:
    """Find them all. What could not be read has its default, and contradicts nothing."""
    yield from impossible_jobs(tables)
    fleet = tables.autoscaler
    yield from _of_policies(fleet)
    for index, pool in enumerate(fleet.all_pools):
        path = f"autoscaler.pools[{index}]" if fleet.pools else "autoscaler"
        yield from _of_pool(path, pool)
        yield from _of_connector(f"{path}.connector_config", pool.connector_config)


def impossible_jobs(tables: JobsTables) -> Iterator[ConfigProblem]:
    """Find those of jobs alone."""
    for index, table in enumerate(tables.jobs):
        timeout = tables.defaults.timeout if table.timeout is None else table.timeout
        expected = table.expected_duration
        expected = tables.defaults.expected_duration if expected is None else expected
        if timeout is not None and expected is not None and expected > timeout:
            yield ConfigProblem(
                path=f"jobs[{index}].{'timeout' if table.timeout is not None else 'expected_duration'}",
                found=(
                    f"the job is expected to take {format_duration(expected)}, and is ended after"
                    f" {format_duration(timeout)}"
                ),
                hint="raise timeout, or lower expected_duration",
            )


def _of_policies(fleet: Autoscaler) -> Iterator[ConfigProblem]:
    for index, policy in enumerate(fleet.policy):
        limit, where = policy.scale_factor_limit, f"autoscaler.policy[{index}]"
        if limit and not policy.scale_factor:
            yield ConfigProblem(
                path=f"{where}.scale_factor_limit",
                found="there is no scale_factor that it could limit",
                hint="set scale_factor, or remove this key",
            )
        elif 0 < limit < policy.idle_count:
            yield ConfigProblem(
                path=f"{where}.scale_factor_limit",
                found=f"expected at least idle_count, which is {policy.idle_count}, found {limit}",
                hint="raise it, or lower idle_count",
            )


def _of_pool(path: str, pool: PoolTable) -> Iterator[ConfigProblem]:
    if pool.backoff_initial > pool.backoff_cap:
        yield ConfigProblem(
            path=f"{path}.backoff_initial",
            found=(
                f'expected at most backoff_cap, which is "{format_duration(pool.backoff_cap)}",'
                f' found "{format_duration(pool.backoff_initial)}"'
            ),
        )


def _of_connector(path: str, connector: ConnectorConfig) -> Iterator[ConfigProblem]:
    if connector.certificate and connector.ca_file:
        yield ConfigProblem(
            path=f"{path}.ca_file",
            found="no authority is asked, because certificate names the one that is right",
            hint="remove one of them",
        )
