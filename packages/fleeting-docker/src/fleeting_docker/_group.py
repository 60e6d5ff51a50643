"""The `docker` group: instances that are containers with an SSH server."""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
from anyio.lowlevel import checkpoint
from attrs import define, field

from fleeting import (
    AuthFailed,
    Capability,
    Clock,
    ConnectInfo,
    FleetingError,
    GroupInfo,
    InstanceNotFound,
    Observation,
    OutcomeUnknown,
    ProviderError,
    Settings,
    Unsupported,
)
from fleeting.connectors.ssh import generate_key
from fleeting.plugins import Mark, one_line, put_mark
from fleeting_docker import _image
from fleeting_docker._config import DockerGroupConfig
from fleeting_docker._container import (
    DIGITS,
    GROUP,
    HOST_KEY,
    SSH,
    USER_KEY,
    Keys,
    body,
    files,
    is_instance,
    name_of,
    observed,
)
from fleeting_docker._marks import Marks
from fleeting_docker_engine import (
    Created,
    Engine,
    EngineRefused,
    EngineUnreachable,
    Info,
    Inspected,
    Listed,
    quoted,
)

AT_ONCE = 4
"""So many containers are made or removed at the same time; a daemon does most of it one by one."""

NOT_FOUND = 404
IN_PROGRESS = 409
LONGEST_KEY = 1 << 14
"""Bytes of the file with the key that lets us in; a job in the instance may write anything there."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@define(eq=False)
class DockerGroup:
    """Makes, lists and removes containers. Nothing is remembered here: the daemon knows everything."""

    _config: DockerGroupConfig
    _clock: Clock = field(init=False)
    _owner: str = field(default="", init=False)
    _image: str = field(default="", init=False)
    _arch: str = field(default="amd64", init=False)
    _observing: bool = field(default=False, init=False)

    async def init(self, settings: Settings) -> GroupInfo:
        """See that the daemon answers, and that there is an image, or make one."""
        self._clock, self._owner = settings.clock, settings.owner
        self._observing = settings.observe_only
        async with self._engine() as engine:
            info = await engine.ask_for(Info, "GET", "/info")
            if not self._observing:
                self._image = await _image.ensure(engine, self._config)
        self._arch = ARCHITECTURES.get(info.architecture, info.architecture)
        return GroupInfo(
            identity=f"docker:{info.id}:{self._config.name}",
            max_size=self._config.max_size,
            max_size_is="max_size in plugin_config",
            capabilities=frozenset({Capability.OWNER_MARK} if self._config.owner_mark else ()),
        )

    async def update(self) -> Observation:
        """List the group's containers."""
        async with self._engine() as engine:
            listed = await self._listed(engine)
        now = self._clock.now()
        return Observation({name: observed(each, now) for name, each in listed.items()})

    async def increase(self, count: int, *, intent: str) -> int:
        """Make and start containers, as many as there is room for; one that cannot be started is removed again."""
        self._refuse_if_observing()
        await checkpoint()
        errors: list[FleetingError] = []
        with anyio.CancelScope(shield=True):
            async with self._engine(changes=True) as engine:
                room = count
                if self._config.max_size is not None:
                    room = min(count, max(0, self._config.max_size - len(await self._listed(engine))))
                limiter = anyio.CapacityLimiter(AT_ONCE)
                async with anyio.create_task_group() as tasks:
                    for _ in range(room):
                        tasks.start_soon(self._make, engine, intent, limiter, errors)
            if errors and len(errors) == room:
                raise self._translated(errors[0], changes=True) from errors[0]
        return room - len(errors)

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Remove containers, and their nameless volumes; one that is not there any more is removed."""
        self._refuse_if_observing()
        await checkpoint()
        errors: dict[str, FleetingError] = {}
        with anyio.CancelScope(shield=True):
            async with self._engine(changes=True) as engine:
                listed = await self._listed(engine)
                limiter = anyio.CapacityLimiter(AT_ONCE)
                async with anyio.create_task_group() as tasks:
                    for name in listed.keys() & {*instances}:
                        tasks.start_soon(self._remove, engine, name, limiter, errors)
        if instances and len(errors) == len(instances):
            error = next(iter(errors.values()))
            raise self._translated(error, changes=True) from error
        return [name for name in instances if name not in errors]

    async def connect_info(self, instance: str) -> ConnectInfo:
        """The port of the instance's SSH server on this host, and the key that is in the instance."""
        async with self._engine() as engine:
            found = await self._inspected(engine, instance)
            ports = found.networking.ports.get(SSH, ())
            if not found.state.is_running or not (ports and ports[0].port):
                raise ProviderError(f"{instance} is not running: its state is {one_line(found.state.status, 40)}")
            key = await engine.read_file(instance, USER_KEY, limit=LONGEST_KEY)
        if key is None or not key.isascii():
            small = f"a text file of at most {LONGEST_KEY >> 10} KiB"
            raise ProviderError(f"the key {USER_KEY} in {instance} is not {small}; delete the instance")
        address = "127.0.0.1" if self._config.address == "0.0.0.0" else self._config.address  # noqa: S104
        return ConnectInfo(
            id=instance,
            arch=self._arch,
            internal_addr=address,
            external_addr=address,
            port=int(ports[0].port),
            user=self._config.user,
            key=key.decode(),
            host_key=found.config.labels.get(HOST_KEY) or None,
        )

    async def heartbeat(self, instance: str) -> None:
        """Return if the container runs."""
        async with self._engine() as engine:
            state = (await self._inspected(engine, instance)).state
        if not state.is_running or state.is_paused:
            raise ProviderError(f"{instance} is not running: its state is {one_line(state.status, 40)}")

    async def mark_owner(self, until: float | None) -> None:
        """Mark the group by a volume, and look once more after that: of two at once, both may be refused."""
        self._refuse_if_observing()
        async with self._engine(changes=True) as engine:
            marks = Marks(engine, self._config.name)
            await put_mark(
                until,
                owner=self._owner,
                clock=self._clock,
                group=self._config.name,
                read=marks.read,
                write=partial(marks.write, self._owner),
                erase=marks.erase,
            )

    async def read_marks(self) -> Sequence[Mark]:
        """List the volumes that mark the group."""
        async with self._engine() as engine:
            return await Marks(engine, self._config.name).read()

    async def shutdown(self) -> None:
        """Nothing is open between two calls."""
        await checkpoint()

    # --- the daemon -------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _engine(self, *, changes: bool = False) -> AsyncIterator[Engine]:
        """Reach the daemon, and say of its errors what to do about them."""
        engine = Engine(partial(anyio.connect_unix, self._config.socket), patience=self._config.timeout)
        try:
            async with engine:
                yield engine
        except (EngineRefused, EngineUnreachable) as error:
            raise self._translated(error, changes=changes) from error

    def _translated(self, error: FleetingError, *, changes: bool) -> FleetingError:
        if isinstance(error.__cause__, PermissionError):
            remedy = "become a member of the group that it belongs to (docker), or set socket"
            return AuthFailed(f"this user may not use {self._config.socket}; {remedy}")
        if isinstance(error, EngineUnreachable):
            if isinstance(error.__cause__, OSError):  # who did not connect has changed nothing
                return ProviderError(f"{error} ({self._config.socket}); start the Docker daemon, or set socket")
            return (OutcomeUnknown if changes else ProviderError)(f"{error} ({self._config.socket})")
        return ProviderError(str(error)) if isinstance(error, EngineRefused) else error

    async def _listed(self, engine: Engine) -> Mapping[str, Listed]:
        """All containers of the group, by their names."""
        query = {"all": True, "filters": {"label": [f"{GROUP}={self._config.name}"]}}
        found = await engine.ask_for(tuple[Listed, ...], "GET", "/containers/json", query=query)
        return {name_of(each): each for each in found if is_instance(name_of(each), each.labels, self._config.name)}

    async def _inspected(self, engine: Engine, instance: str) -> Inspected:
        try:
            found = await engine.ask_for(Inspected, "GET", f"/containers/{quoted(instance)}/json")
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                raise InstanceNotFound(instance) from error
            raise
        if not is_instance(instance, found.config.labels, self._config.name):
            raise InstanceNotFound(instance)
        return found

    async def _make(
        self, engine: Engine, intent: str, limiter: anyio.CapacityLimiter, errors: list[FleetingError]
    ) -> None:
        name = f"{self._config.name}-{uuid.uuid4().hex[:DIGITS]}"
        path = f"/containers/{name}"
        host, user = generate_key(), generate_key()
        keys = Keys(
            host_private=host.private, host_public=host.public, user_private=user.private, user_public=user.public
        )
        async with limiter:
            try:
                described = body(self._config, self._image, keys, intent=intent, owner=self._owner)
                await engine.ask_for(Created, "POST", "/containers/create", query={"name": name}, json=described)
                await engine.ask("PUT", f"{path}/archive", query={"path": "/"}, body=files(keys))
                await engine.ask("POST", f"{path}/start")
            except (EngineRefused, EngineUnreachable) as error:
                errors.append(error)
                with suppress(EngineRefused, EngineUnreachable):
                    await engine.ask("DELETE", path, query={"force": True, "v": True})

    async def _remove(
        self, engine: Engine, name: str, limiter: anyio.CapacityLimiter, errors: dict[str, FleetingError]
    ) -> None:
        async with limiter:
            try:
                await engine.ask("DELETE", f"/containers/{quoted(name)}", query={"force": True, "v": True})
            except EngineRefused as error:
                if error.status not in (NOT_FOUND, IN_PROGRESS):
                    errors[name] = error
            except EngineUnreachable as error:
                errors[name] = error

    def _refuse_if_observing(self) -> None:
        if self._observing:
            raise Unsupported(f"the group {self._config.name} was opened to observe only; open it to manage it")
