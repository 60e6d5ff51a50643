"""The schema of a ``[[runners]]`` entry, as far as it is about jobs. Names, meanings and defaults are GitLab's."""

import posixpath
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from attrs import Attribute, asdict, evolve, field, frozen
from attrs.validators import ge, gt

from fleeting import Duration
from fleeting.plugins import is_absolute, place_to_listen
from job_steps.executor import PolicySettings

EXECUTORS: Mapping[str, str] = {"docker": "docker", "docker-autoscaler": "docker", "instance": "instance"}
"""What GitLab Runner calls an executor, and what it is called here."""


def _is_size(_: object, __: "Attribute[str]", value: str) -> None:
    if value and not re.fullmatch(r"[0-9]+[bkmgBKMG]?", value):
        raise ValueError('a size such as "512m" or "2g"')


def _is_cpus(_: object, __: "Attribute[str]", value: str) -> None:
    if value and not (re.fullmatch(r"[0-9]*\.?[0-9]+", value) and float(value)):
        raise ValueError('a number of CPUs in quotes, such as "1.5"')


def _is_socket(_: object, __: "Attribute[str]", value: str) -> None:
    if value and not value.startswith("unix:///"):
        raise ValueError("the daemon's socket on the instance, such as unix:///var/run/docker.sock")


def _is_for_metrics(_: object, __: "Attribute[str]", value: str) -> None:
    if value and _place(value) is None:
        raise ValueError('HOST:PORT, such as "127.0.0.1:9252"')


def _place(value: str) -> tuple[str, int] | None:
    try:
        return place_to_listen(value)
    except ValueError:
        return None


def _no_nul(_: object, __: "Attribute[str]", value: str) -> None:
    if "\0" in value:
        raise ValueError("text without NUL")


@frozen(kw_only=True)
class CacheSettings:
    """The table ``[runners.cache]``: caches are kept on the instances, and on the manager if that is asked for."""

    type: Literal["", "local"] = field(default="", metadata={"aliases": ("Type",)})
    """``local`` or nothing: object storage is not supported."""

    path: str = field(default="", metadata={"aliases": ("Path",)})
    """Put before every key."""

    shared: bool = field(default=False, metadata={"aliases": ("Shared",)})
    """Whether all runners of a fleet share caches; else each has its own."""


@frozen(kw_only=True)
class CustomBuildDir:
    """The table ``[runners.custom_build_dir]``."""

    enabled: bool = True
    """Whether jobs choose a directory below ``builds_dir`` by ``GIT_CLONE_PATH``."""


def _whole_path(path: str) -> str:
    """An absolute path in a container, in one form: that of Docker, for which two slashes at its beginning are one."""
    return posixpath.normpath(f"/{path.lstrip('/')}")


@frozen(kw_only=True)
class DockerSettings:
    """The table ``[runners.docker]``, as far as jobs in containers have it here."""

    image: str = ""
    """For jobs that name none."""

    helper_image: str = ""
    """For what is not a job's own commands: its sources, caches and artifacts. Nothing: the job's image."""

    allowed_images: tuple[str, ...] = ()
    """Patterns of the images that jobs may name; none: any, as in GitLab Runner."""

    allowed_services: tuple[str, ...] = ()
    """The same for services."""

    pull_policy: tuple[Literal["always", "if-not-present", "never"], ...] = ("always",)
    """When to pull; several are tried in their order. A file may name one without brackets."""

    privileged: bool = False
    """Whether every job has the instance as good as to itself."""

    memory: str = field(default="", validator=_is_size)
    """Of each job, such as ``2g``."""

    cpus: str = field(default="", validator=_is_cpus)
    """The same with CPUs, as a string."""

    shm_size: int = field(default=0, validator=ge(0))
    """Bytes of ``/dev/shm``."""

    volumes: tuple[str, ...] = ()
    """``/host:/container[:ro]``, or a path alone, which is kept for later jobs."""

    devices: tuple[str, ...] = ()
    """The instance's devices that every job has."""

    cap_add: tuple[str, ...] = ()
    """Capabilities that every job has beyond Docker's own."""

    cap_drop: tuple[str, ...] = ()
    """Those of Docker's own that none has."""

    network_mode: Literal["", "bridge", "none"] = ""
    """``bridge`` or ``none``; nothing: a network for each job."""

    user: str = ""
    """As whom scripts run; nothing: as the image says."""

    disable_cache: bool = False
    """Whether nothing is kept for later jobs."""

    host: str = field(default="", validator=_is_socket)
    """``unix://`` and the path of the daemon's socket on the instance."""

    @property
    def binds(self) -> tuple[str, ...]:
        """What of the instance every job has in its container."""
        return tuple(each for each in self.volumes if ":" in each)

    @property
    def bound(self) -> frozenset[str]:
        """Where in containers that is: all slots of an instance have the same there."""
        return frozenset(_whole_path(each.split(":")[1]) for each in self.binds)

    def is_shared(self, path: str) -> bool:
        """Whether a directory in containers is in what all slots of an instance have there."""
        return any(PurePosixPath(_whole_path(path)).is_relative_to(each) for each in self.bound)

    @property
    def kept(self) -> tuple[str, ...]:
        """Directories of containers that are kept for later jobs."""
        return () if self.disable_cache else tuple(each for each in self.volumes if ":" not in each)

    def executor(self) -> dict[str, object]:
        """The settings of the executor *docker*, as far as they are here."""
        wanted: dict[str, object] = {
            "image": self.image,
            "allowed_images": [*(self.allowed_images or ("*",)), *([self.helper_image] if self.helper_image else [])],
            "allowed_services": list(self.allowed_services or ("*",)),
            "pull_policy": list(self.pull_policy),
            "memory": self.memory,
            "cpus": float(self.cpus) if self.cpus else None,
            "shm_size": str(self.shm_size) if self.shm_size else None,
            "network": self.network_mode or "job",
            "allowed_volumes": [each.partition(":")[0] for each in self.binds],
            "allowed_devices": [each.partition(":")[0] for each in self.devices],
            "allowed_capabilities": list(self.cap_add),
            "allow_privileged": self.privileged,
            "socket": self.host.removeprefix("unix://"),
        }
        return {key: value for key, value in wanted.items() if value not in (None, "", [])}

    def options(self) -> dict[str, object]:
        """What every job wishes of that executor, whatever the job itself says."""
        wanted: dict[str, object] = {
            "privileged": self.privileged,
            "volumes": list(self.binds),
            "devices": list(self.devices),
            "capabilities": list(self.cap_add),
            "drop_capabilities": list(self.cap_drop),
            "user": self.user,
        }
        return {key: value for key, value in wanted.items() if value}


def _is_address(_: object, __: "Attribute[str]", value: str) -> None:
    if value and not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", value):
        raise ValueError('an address such as "http://10.0.0.5:8930"')


def _is_place(_: object, __: "Attribute[str]", value: str) -> None:
    if value and not all(_place(value) or ("", 0)):
        raise ValueError('an address of this machine and a port, such as "0.0.0.0:8930" or "[::]:8930"')


@frozen(kw_only=True)
class SidecarSettings:
    """The table ``[runners.taskscaler.sidecar]``: the gitlab-runner that runs jobs on the instances."""

    binary: str = field(default="", validator=_no_nul)
    """Where it is on instances; nothing: in their PATH, if `upload` is not given either."""

    upload: str | None = field(default=None, validator=is_absolute)
    """Where it is on this machine; it is brought to each instance once. None: it is there already."""

    executor: str = field(default="", validator=_no_nul)
    """What it runs jobs with; nothing: ``docker`` for ``docker-autoscaler``, else ``shell``."""

    passed: Mapping[str, Any] = field(factory=dict, repr=False, metadata={"internal": True})
    """What else its ``[[runners]]`` says: all that ours does, and beyond that all that this table does."""


def _is_limit(instance: object, attribute: "Attribute[str]", value: str) -> None:
    _is_size(instance, attribute, value or "none")


@frozen(kw_only=True)
class TailorSettings:
    """The table ``[runners.taskscaler.tailor_memory]``: memory of jobs in containers, by what earlier runs needed."""

    max: str = field(validator=_is_limit)
    """What a job gets at the most, such as ``4g``; at least ``memory`` of ``[runners.docker]``."""

    min: str = field(default="64m", validator=_is_limit)
    """Below what no limit is lowered."""


@frozen(kw_only=True)
class LogRetention:
    """The table ``[runners.taskscaler.retention]``: how long logs of jobs that are over are kept on this machine."""

    age: Duration = field(default=30 * 86400.0, validator=gt(0))
    """Seconds after which a log is deleted."""

    size: int = field(default=256 << 20, validator=ge(0))
    """Bytes that all of them may have; beyond that, the oldest are deleted first."""


@frozen(kw_only=True)
class CacheRetention:
    """The table ``[runners.taskscaler.cache_retention]``: which caches stay in ``cache_on_manager``."""

    age: Duration = field(default=30 * 86400.0, validator=gt(0))
    """Seconds without use after which a cache is deleted."""

    size: int = field(default=10 << 30, validator=ge(0))
    """Bytes that all of them may have; beyond that, those that were used least recently are deleted first."""


def _is_cell(_: object, __: "Attribute[str]", value: str) -> None:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", value):
        raise ValueError('up to 32 lower-case letters, digits and hyphens, such as "eu-1"')


def _is_weight(_: object, __: "Attribute[float]", value: float) -> None:
    if not 0.001 <= value <= 1000:  # noqa: PLR2004  (said here)
        raise ValueError("a number from 0.001 to 1000; leave a cell out of the file to have no jobs of it")


@frozen(kw_only=True)
class UpstreamSettings:
    """A table ``[[runners.taskscaler.upstreams]]``: one of several GitLabs whose jobs one runner runs."""

    cell: str = field(validator=_is_cell)
    """What it is called here; part of the names of its jobs."""

    url: str
    """Where it is."""

    token_file: str = field(validator=_no_nul)
    """The file with the runner's token there, beside the configuration unless its path is absolute."""

    weight: float = field(default=1.0, validator=_is_weight)
    """Its share of slots, next to those of other cells that have jobs."""


@frozen(kw_only=True)
class OwnSettings:
    """The table ``[runners.taskscaler]``: what GitLab Runner does not know."""

    run_with: Literal["own", "sidecar"] = "own"
    """Who runs jobs: this program itself, or a gitlab-runner beside each."""

    reach: Literal["tunnel", "url"] = "tunnel"
    """How sidecars reach this program: through its connection to their instance, or at `advertise_url`."""

    advertise_url: str = field(default="", validator=_is_address)
    """Where this program is, as seen from instances."""

    listen: str = field(default="", validator=_is_place)
    """Where it listens for them, as ``address:port``; what is between the two is somebody else's."""

    keep_job_tokens: bool = False
    """Whether tokens of jobs that sidecars run are noted down, and not only their hashes."""

    sidecar: SidecarSettings = SidecarSettings()
    """The table ``sidecar``."""

    placements: int = field(default=3, validator=ge(1))
    """How often a job is placed at most whose instance is lost before anything of it ran."""

    cache_on_manager: str | None = field(default=None, validator=is_absolute)
    """A directory where caches are kept here too, for instances that do not live long. None: nowhere."""

    cache_retention: CacheRetention = CacheRetention()
    """The table ``cache_retention``."""

    state_dir: str | None = field(default=None, validator=is_absolute)
    """Where jobs are noted down that have been taken. None: beside the state of the fleet."""

    retention: LogRetention = LogRetention()
    """The table ``retention``."""

    tailor_memory: TailorSettings | None = None
    """The table ``tailor_memory``; only for jobs in containers. None: limits are as they are set."""

    steps_policy: PolicySettings = field(factory=PolicySettings)
    """The table ``steps_policy``: what the steps of a job's ``run`` may be."""

    upstreams: tuple[UpstreamSettings, ...] = ()
    """The tables ``upstreams``; none: jobs come from ``url``."""


FEATURE_FLAGS = frozenset({
    "FF_CLEAN_UP_FAILED_CACHE_EXTRACT", "FF_ENABLE_BASH_EXIT_CODE_CHECK", "FF_ENABLE_JOB_CLEANUP",
    "FF_SCRIPT_SECTIONS", "FF_USE_GIT_NATIVE_CLONE",
})  # fmt: skip
"""Those of GitLab Runner that have an effect here; the others are settled one way or the other."""


@frozen(kw_only=True)
class RunnerSettings:
    """One ``[[runners]]`` entry: where its jobs come from, and how they run."""

    name: str = ""
    """What people call the runner."""

    url: str
    """The GitLab that it asks for jobs."""

    token: str = field(repr=False)
    """What it asks with."""

    executor: Literal["instance", "docker-autoscaler", "docker"]
    """What runs jobs, as the file has it."""

    limit: int = field(default=0, validator=ge(0))
    """Jobs at once; 0: as many as ``concurrent`` allows."""

    request_concurrency: int = field(default=1, validator=ge(1))
    """Requests for jobs that may be open at once."""

    output_limit: int = field(default=4096, validator=ge(1))
    """KiB of a job's log."""

    environment: tuple[str, ...] = field(default=(), repr=False)
    """``KEY=value``, for every job."""

    shell: Literal["", "bash", "sh"] = ""
    """What scripts are for; nothing: ``bash`` where there is one."""

    pre_get_sources_script: str = field(
        default="", repr=False, validator=_no_nul, metadata={"aliases": ("pre_clone_script",)}
    )
    """Commands before the sources are fetched."""

    post_get_sources_script: str = field(
        default="", repr=False, validator=_no_nul, metadata={"aliases": ("post_clone_script",)}
    )
    """Commands after they were."""

    pre_build_script: str = field(default="", repr=False, validator=_no_nul)
    """Commands before a job's own."""

    post_build_script: str = field(default="", repr=False, validator=_no_nul)
    """Commands after them."""

    builds_dir: str = field(default="", validator=_no_nul)
    """Where projects are checked out on instances; nothing: below the slot's own directory."""

    cache_dir: str = field(default="", validator=_no_nul)
    """Where caches are kept on instances; nothing: beside the projects."""

    clone_url: str = ""
    """Where sources come from instead of the address that jobs name."""

    tls_ca_file: str = field(default="", metadata={"aliases": ("tls-ca-file",)})
    """Certificates of authorities that vouch for GitLab, as PEM."""

    tls_cert_file: str = field(default="", metadata={"aliases": ("tls-cert-file",)})
    """The certificate that is shown to GitLab."""

    tls_key_file: str = field(default="", metadata={"aliases": ("tls-key-file",)})
    """Its key."""

    debug_trace_disabled: bool = False
    """Whether ``CI_DEBUG_TRACE`` has no effect."""

    feature_flags: Mapping[str, bool] = field(factory=dict)
    """The table ``feature_flags``, which no job overrides; those of `FEATURE_FLAGS` have an effect."""

    cache: CacheSettings = CacheSettings()
    """The table ``cache``."""

    custom_build_dir: CustomBuildDir = CustomBuildDir()
    """The table ``custom_build_dir``."""

    docker: DockerSettings = DockerSettings()
    """The table ``docker``."""

    taskscaler: OwnSettings = OwnSettings()
    """The table ``taskscaler``."""

    ca_chain: str = field(default="", init=True, repr=False, metadata={"internal": True})
    """What is in ``tls-ca-file``, for jobs that fetch sources; empty if there is none."""

    tls_cert: str = field(default="", init=True, repr=False, metadata={"internal": True})
    """What is in ``tls-cert-file``, likewise."""

    tls_key: str = field(default="", init=True, repr=False, metadata={"internal": True})
    """What is in ``tls-key-file``, likewise."""

    tokens: Mapping[str, str] = field(factory=dict, init=True, repr=False, metadata={"internal": True})
    """What is in the files that upstreams name, by the names of their cells."""

    token_obtained_at: str = ""
    """When the token was given, as GitLab Runner writes it."""

    token_expires_at: str = ""
    """When it ends; nothing: never."""

    @property
    def kind(self) -> str:
        """Which executor of ours runs the jobs: ``instance`` or ``docker``."""
        return EXECUTORS[self.executor]

    def container_settings(self) -> dict[str, object]:
        """The settings of the executor *docker*."""
        tailored = self.taskscaler.tailor_memory
        return {**self.docker.executor(), **({"tailor_memory": asdict(tailored)} if tailored else {})}

    @property
    def cells(self) -> "Mapping[str, RunnerSettings]":
        """The same for each GitLab that it asks, by the cells' names; of a runner with one, the name is empty."""
        alone = evolve(self, taskscaler=evolve(self.taskscaler, upstreams=()), tokens={})
        upstreams = self.taskscaler.upstreams
        several = {each.cell: evolve(alone, url=each.url, token=self.tokens[each.cell]) for each in upstreams}
        return several or {"": self}

    @property
    def has_sidecars(self) -> bool:
        """Whether gitlab-runners run the jobs."""
        return self.taskscaler.run_with == "sidecar"

    @property
    def output_bytes(self) -> int:
        """Bytes of a job's log."""
        return self.output_limit << 10

    @property
    def variables(self) -> Mapping[str, str]:
        """What is in ``environment``; of two with one name, the later counts."""
        pairs = (each.partition("=") for each in self.environment)
        return {key: value for key, _, value in pairs}


@frozen(kw_only=True)
class Top:
    """What the top of the file says of jobs."""

    concurrent: int = field(default=1, validator=ge(1))
    """Jobs at once."""

    check_interval: int = field(default=0, validator=ge(0))
    """Seconds between an answer without a job and the next request; 0: 3."""

    shutdown_timeout: int = field(default=0, validator=ge(0))
    """Seconds that jobs have to end after the first signal; 0: 30."""

    log_level: Literal["debug", "info", "warn", "warning", "error", "fatal", "panic"] = "info"
    """What is logged, and what is more important."""

    listen_address: str = field(default="", validator=_is_for_metrics)
    """Where Prometheus finds the metrics, ``HOST:PORT``; ``:PORT``: on all addresses. Nothing: nowhere."""

    log_format: Literal["runner", "text", "json"] = "runner"
    """How."""
