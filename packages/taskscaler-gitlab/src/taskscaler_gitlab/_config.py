"""A ``config.toml`` of GitLab Runner, as a runner of our own reads it.

What it says of the fleet is read by `taskscaler.config`; here is what it says of jobs. A key of GitLab's that means
nothing here is listed as ignored; one that nearly is a key that means something is a mistake.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from attrs import evolve, fields_dict, frozen

from fleeting import ConfigError
from fleeting.config import did_you_mean, file_error, find_runner, quoted, read_toml
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import structure
from taskscaler.config import RunnerConfig, load
from taskscaler_gitlab._dispatch import Dispatch
from taskscaler_gitlab._dispatch_config import read_rules
from taskscaler_gitlab._settings import (
    FEATURE_FLAGS,
    CacheSettings,
    CustomBuildDir,
    DockerSettings,
    OwnSettings,
    RunnerSettings,
    Top,
)
from taskscaler_gitlab._sidecar_settings import sidecar_problems, with_passed, without_passed
from taskscaler_gitlab._upstream_settings import upstream_problems, with_a_place, with_tokens

T = TypeVar("T")
Table: TypeAlias = Mapping[str, object]

_GITLABS = frozenset({
    "machine", "ssh", "shell", "monitoring", "custom", "kubernetes", "parallels", "virtualbox", "referees", "labels",
    "id", "token_obtained_at", "token_expires_at", "post_clone_script", "pre_clone_script",
})  # fmt: skip
"""Keys of GitLab's that are not taken for slips of the pen, however near to ours they are."""


@frozen(kw_only=True)
class ServiceConfig:
    """A file that has been read and found to be right; nothing has been connected to."""

    path: Path
    """The file."""

    runner: RunnerSettings
    """The entry whose jobs are run."""

    fleet: RunnerConfig
    """The same entry's fleet."""

    top: Top
    """What holds for all entries."""

    dispatch: Dispatch
    """The rules of ``[[dispatch]]`` that are for the entry."""

    ignored: tuple[str, ...]
    """Key paths of GitLab's that mean nothing here, in the order of the file."""

    unsupported: tuple[str, ...]
    """What the file asks for and will not get, one sentence each."""

    @property
    def jobs_at_once(self) -> int:
        """How many jobs there may be at a time."""
        return self.fleet.jobs_at_once

    @property
    def check_interval(self) -> float:
        """Seconds between an answer without a job and the next request."""
        return float(self.top.check_interval or 3)

    @property
    def shutdown_timeout(self) -> float:
        """Seconds that jobs have to end after the first signal."""
        return float(self.top.shutdown_timeout or 30)


def read_config(path: Path, *, runner: str | None = None) -> ServiceConfig:
    """Read and check one runner of a ``config.toml``. Nothing is connected to.

    Args:
        path: The file.
        runner: The ``name`` of the entry. None: the only one with ``[runners.autoscaler]``.

    Raises:
        ConfigError: With every mistake; or the file leaves open which runner is meant, with the names there are.
        OSError: It, or a certificate that it names, cannot be read.
    """
    _, file = read_toml(path)
    key, entry = find_runner(file, runner, source=str(path))
    problems: list[ConfigProblem] = []
    unsupported = [*_unsupported(entry)]
    top = _read(Top, file, "", problems, {"runners", "dispatch"})
    ours = with_a_place(without_passed(_without_clouds(entry)))
    own = _read(RunnerSettings, ours, key, problems, {"autoscaler"})
    fleet = _fleet(path, runner, problems)
    problems += (*sidecar_problems(entry, own, key), *upstream_problems(entry, key))
    pools = [each.name for each in fleet.autoscaler.all_pools] if fleet is not None else []
    rules = read_rules(file, pools, own.name, problems) if fleet is not None and own is not None else ()
    settings = None if own is None else _with_files(with_passed(own, entry), path.parent, key, problems)
    if problems or top is None or settings is None or fleet is None:
        raise file_error(problems, file, source=str(path))
    return ServiceConfig(
        path=path,
        runner=settings,
        fleet=fleet,
        top=top,
        dispatch=Dispatch(rules),
        ignored=tuple(_ignored(file, entry, fleet, has_sidecars=settings.has_sidecars)),
        unsupported=(*(() if settings.has_sidecars else unsupported), *fleet.unsupported),
    )


def _fleet(path: Path, runner: str | None, problems: list[ConfigProblem]) -> RunnerConfig | None:
    try:
        return load(path, runner=runner)
    except ConfigError as error:
        problems += error.problems
        return None


def _read(cls: type[T], table: Table, path: str, problems: list[ConfigProblem], others: set[str]) -> T | None:
    """Read what is ours in a table, and the tables in it; what nearly is ours is a mistake."""
    before = len(problems)
    ours = _ours(cls, table, path, problems, others)
    read: list[ConfigProblem] = []
    result = structure(ours, cls, path=path, zero_is_default=True, problems=read)
    problems += read
    return None if len(problems) > before else result


def _ours(
    cls: type[Any], table: Table, path: str, problems: list[ConfigProblem], others: set[str]
) -> dict[str, object]:
    """What of a table is read here; notes the keys that are slips of the pen."""
    known = _keys(cls)
    found: dict[str, object] = {}
    for key, value in table.items():
        where = f"{path}.{key}" if path else key
        if key in known:
            inner = _TABLES.get(known[key]) if cls is RunnerSettings else None
            is_table = inner is not None and isinstance(value, Mapping) and inner is not OwnSettings
            found[key] = _ours(inner, value, where, problems, set()) if is_table else _plain(key, value)  # type: ignore[arg-type]
        elif key not in others | _GITLABS and (hint := did_you_mean(key, known)):
            problems.append(ConfigProblem(path=where, found=quoted(key), hint=hint, mistake=Mistake.UNKNOWN_KEY))
    return found


_TABLES: Mapping[str, type[Any]] = {
    "cache": CacheSettings,
    "custom_build_dir": CustomBuildDir,
    "docker": DockerSettings,
    "taskscaler": OwnSettings,
}


def _plain(key: str, value: object) -> object:
    """A value as the schema has it: TOML has times of its own, and a single policy needs no brackets."""
    if isinstance(value, datetime):
        return value.isoformat()
    return [value] if key == "pull_policy" and isinstance(value, str) else value


def _keys(cls: type[Any]) -> dict[str, str]:
    """The names that a file has for fields, and the fields."""
    fields = {name: each for name, each in fields_dict(cls).items() if not each.metadata.get("internal")}
    aliases = {alias: name for name, each in fields.items() for alias in each.metadata.get("aliases", ())}
    return {**{name: name for name in fields}, **aliases}


def _without_clouds(entry: Table) -> Table:
    """An entry whose caches are where they can be: here, those of a cloud are kept on the instances."""
    match entry.get("cache"):
        case {"Type": kind, **rest} | {"type": kind, **rest} if kind in _CLOUDS:
            return {**entry, "cache": rest}
    return entry


_CLOUDS = ("s3", "s3v2", "gcs", "azure")


def _unsupported(entry: Table) -> Iterator[str]:
    match entry.get("cache"):
        case {"Type": kind} | {"type": kind} if kind in _CLOUDS:
            yield (
                f"[runners.cache] of type {kind}: there is no cache in object storage here, caches are kept on the"
                " instances; set cache_on_manager in [runners.taskscaler] to keep them on this machine too"
            )
    match entry.get("docker"):
        case {"allowed_privileged_images": [_, *_]} | {"allowed_privileged_services": [_, *_]}:
            yield "[runners.docker] allowed_privileged_images: privileged holds for all images here, or for none"
        case {"allowed_pull_policies": [_, *_]}:
            yield "[runners.docker] allowed_pull_policies: images are pulled as pull_policy says, whatever a job wants"


MAX_TOKEN = 1024
"""Characters of a runner's token."""

_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")
_TOKEN = re.compile(rf"[!-~]{{1,{MAX_TOKEN}}}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=[^\0]*")


def _secret_problems(runner: RunnerSettings, key: str) -> Iterator[ConfigProblem]:
    """What is wrong with values that no message may show."""
    places = [("url", runner.url, "token", runner.token)]
    if upstreams := runner.taskscaler.upstreams:
        named = ((f"taskscaler.upstreams[{number}]", each) for number, each in enumerate(upstreams))
        places = [(f"{where}.url", each.url, f"{where}.token_file", runner.tokens[each.cell]) for where, each in named]
    urls = [(name, url) for name, url, _, _ in places]
    for name, url in (*urls, *([("clone_url", runner.clone_url)] if runner.clone_url else [])):
        if not _URL.fullmatch(url):
            found = "an address with a user in it" if "@" in url else quoted(url)
            expected = "an address such as https://gitlab.example.com"
            yield ConfigProblem(path=f"{key}.{name}", found=found, expected=expected)
    for _, _, name, token in places:
        if not _TOKEN.fullmatch(token):
            expected = f"up to {MAX_TOKEN} printable ASCII characters, as GitLab shows the token of a runner"
            yield ConfigProblem(path=f"{key}.{name}", found="something else", expected=expected)
    for number, each in enumerate(runner.environment):
        if not _ASSIGNMENT.fullmatch(each):
            expected = 'an assignment such as "KEY=value", with a name that a shell can have'
            yield ConfigProblem(path=f"{key}.environment[{number}]", found="something else", expected=expected)


def _with_files(
    runner: RunnerSettings, directory: Path, key: str, problems: list[ConfigProblem]
) -> RunnerSettings | None:
    """The settings with the files that they name, which are looked for beside the configuration."""
    before = len(problems)
    runner = with_tokens(runner, directory, key, problems)
    if len(problems) == before:
        problems += _secret_problems(runner, key)
    ca, cert, secret = (
        str(directory / written) if written else ""
        for written in (runner.tls_ca_file, runner.tls_cert_file, runner.tls_key_file)
    )
    for name, path in (("tls-ca-file", ca), ("tls-cert-file", cert), ("tls-key-file", secret)):
        if path and not Path(path).is_file():
            kind = Mistake.MISSING_FILE
            problems.append(ConfigProblem(path=f"{key}.{name}", found=quoted(path), expected="a file", mistake=kind))
    if bool(runner.tls_cert_file) != bool(runner.tls_key_file):
        lacking = "tls-key-file" if runner.tls_cert_file else "tls-cert-file"
        expected = "tls-cert-file and tls-key-file, or neither of them"
        problems.append(ConfigProblem(path=f"{key}.{lacking}", found="nothing", expected=expected))
    if len(problems) > before:
        return None
    chain, shows, key_of = (Path(each).read_text(errors="replace") if each else "" for each in (ca, cert, secret))
    url, clone_url = runner.url.rstrip("/"), runner.clone_url.rstrip("/")
    runner = evolve(runner, url=url, clone_url=clone_url, ca_chain=chain, tls_cert=shows, tls_key=key_of)
    return evolve(runner, tls_ca_file=ca, tls_cert_file=cert, tls_key_file=secret)


def _ignored(file: Table, entry: Table, fleet: RunnerConfig, *, has_sidecars: bool) -> Iterator[str]:
    """What means nothing here, in the order of the file; to sidecars, everything about jobs means what it should."""
    yield from (key for key in file if key not in {"runners", "dispatch", *_keys(Top)})
    if has_sidecars:
        yield from (key for key in fleet.ignored if key.startswith("runners.autoscaler."))
        return
    yield from _strangers(entry, "runners", _keys(RunnerSettings).keys() | {"autoscaler"})
    for name, cls in _TABLES.items():
        if isinstance(table := entry.get(name), Mapping):
            yield from _strangers(table, f"runners.{name}", _keys(cls).keys())
    if isinstance(flags := entry.get("feature_flags"), Mapping):
        yield from _strangers(flags, "runners.feature_flags", FEATURE_FLAGS)
    yield from (key for key in fleet.ignored if key.startswith("runners.autoscaler."))


def _strangers(table: Table, path: str, known: Collection[str]) -> Iterator[str]:
    return (f"{path}.{key}" for key in table if key not in known)
