"""Makes of the tables of a jobs file the jobs that they stand for."""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TypeVar

from taskscaler._jobsfile._tables import Defaults, JobTable
from taskscaler.batch import Job
from taskscaler.executors import JobSpec

T = TypeVar("T")
D = TypeVar("D")


def jobs_of(table: JobTable, defaults: Defaults, options: Mapping[str, object], directory: Path) -> Iterator[Job]:
    names = table.names
    executor = _first(table.executor, defaults.executor)
    files = defaults.files if table.files is None else table.files
    for index, name in enumerate(names):
        spec = JobSpec(
            name=name,
            script=table.script,
            env={
                **defaults.env,
                **table.env,
                "TASKSCALER_JOB_NAME": name,
                "TASKSCALER_JOB_INDEX": str(index),
                "TASKSCALER_JOB_COUNT": str(len(names)),
            },
            files={str(PurePosixPath(file)): directory / file for file in files},
            artifacts=_first(table.artifacts, defaults.artifacts),
            timeout=_first(table.timeout, defaults.timeout),
            options=options.get(executor),
        )
        yield Job(
            spec=spec,
            executor=executor,
            retries=defaults.retries if table.retries is None else table.retries,
            log_limit=_first(table.log_limit, defaults.log_limit),
            expected_duration=_first(table.expected_duration, defaults.expected_duration),
        )


def _first(own: T | None, default: D) -> T | D:
    return default if own is None else own
