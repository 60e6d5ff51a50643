"""What of a ``[[runners]]`` entry sidecars get: everything about jobs, and what is meant for them alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import evolve

from fleeting.config import did_you_mean, quoted
from fleeting.errors import ConfigProblem, Mistake
from taskscaler_gitlab._settings import RunnerSettings

Table: TypeAlias = Mapping[str, object]

_OURS = ("binary", "upload", "executor")
"""What the table ``sidecar`` says to us."""

_NOT_PASSED = frozenset({
    "autoscaler", "taskscaler", "url", "token", "id", "name", "executor", "limit", "request_concurrency", "machine",
    "token_obtained_at", "token_expires_at", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls-ca-file",
    "tls-cert-file", "tls-key-file",
})  # fmt: skip
"""What an entry says of the runner itself: a sidecar's place, its token and its one job come from us."""

_GITLABS = frozenset({
    "builds_dir", "cache_dir", "cache", "custom_build_dir", "docker", "shell", "ssh", "custom", "kubernetes",
    "parallels", "virtualbox", "environment", "clone_url", "output_limit", "feature_flags", "referees", "labels",
})  # fmt: skip


ON_HOST = ("shell", "custom")
"""Executors whose jobs are processes of the sidecar's own user, on the instance itself."""

_SECRET = (("s3", "SecretKey"), ("s3", "SessionToken"), ("gcs", "PrivateKey"), ("azure", "AccountKey"))
"""Keys of ``[runners.cache]`` that give access to more than one job's cache."""


_WITH_URL = {
    "advertise_url": 'the address at which instances reach this service, because of reach = "url"',
    "listen": 'the address and port at which this service listens for instances, because of reach = "url"',
}
"""What has to be said where sidecars do not come through a connection."""


def without_passed(entry: Table) -> Table:
    """An entry of whose table ``sidecar`` only what it says to us is left."""
    own, sidecar = _tables(entry)
    if sidecar is None:
        return entry
    return {**entry, "taskscaler": {**own, "sidecar": {key: sidecar[key] for key in sidecar if key in _OURS}}}


def with_passed(runner: RunnerSettings, entry: Table) -> RunnerSettings:
    """The settings with all that sidecars get."""
    if not runner.has_sidecars:
        return runner
    _, given = _tables(entry)
    passed: dict[str, Any] = {key: each for key, each in entry.items() if key not in _NOT_PASSED}
    passed |= {key: each for key, each in (given or {}).items() if key not in _OURS}
    sidecar = runner.taskscaler.sidecar
    executor = sidecar.executor or ("docker" if runner.kind == "docker" else "shell")
    own = evolve(runner.taskscaler, sidecar=evolve(sidecar, executor=executor, passed=passed))
    return evolve(runner, taskscaler=own)


def sidecar_problems(entry: Table, runner: RunnerSettings | None, key: str) -> Iterator[ConfigProblem]:
    """What is wrong with what is said of sidecars."""
    _, given = _tables(entry)
    where = f"{key}.taskscaler.sidecar"
    for name in given or ():
        if name in _NOT_PASSED and name not in _OURS:
            what = "this is the service's own, so sidecars cannot have another"
            yield ConfigProblem(path=f"{where}.{name}", found=what, hint="remove it")
        elif name not in {*_OURS, *_GITLABS} and (hint := did_you_mean(name, _OURS)):
            yield ConfigProblem(path=f"{where}.{name}", found=quoted(name), hint=hint, mistake=Mistake.UNKNOWN_KEY)
    if runner is None or not runner.has_sidecars:
        return
    own = runner.taskscaler
    if own.sidecar.binary and own.sidecar.upload:
        expected = "nothing, if upload brings the program"
        yield ConfigProblem(path=f"{where}.binary", found=quoted(own.sidecar.binary), expected=expected)
    if own.sidecar.upload and not Path(own.sidecar.upload).is_file():
        found, kind = quoted(own.sidecar.upload), Mistake.MISSING_FILE
        yield ConfigProblem(path=f"{where}.upload", found=found, expected="a file", mistake=kind)
    if own.reach == "url":
        for name, expected in _WITH_URL.items():
            if not getattr(own, name):
                yield ConfigProblem(path=f"{key}.taskscaler.{name}", found="nothing", expected=expected)


def keys_that_jobs_can_read(runner: RunnerSettings) -> Iterator[str]:
    """Name what is secret about caches in the file of a sidecar whose jobs are the same user: they can read it."""
    sidecar = runner.taskscaler.sidecar
    cache = sidecar.passed.get("cache")
    if not runner.has_sidecars or sidecar.executor not in ON_HOST or not isinstance(cache, Mapping):
        return
    for storage, key in _SECRET:
        table = cache.get(storage)
        if isinstance(table, Mapping) and table.get(key):
            yield f"runners.cache.{storage}.{key}"


def _tables(entry: Table) -> tuple[Table, Table | None]:
    own = entry.get("taskscaler")
    own = own if isinstance(own, Mapping) else {}
    sidecar = own.get("sidecar")
    return own, sidecar if isinstance(sidecar, Mapping) else None
