"""The `local` group: instances that are processes of this host. No cloud, no root, no daemon."""

import platform
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio
from attrs import define, evolve, field

from fleeting import (
    Capability,
    Clock,
    ConnectInfo,
    GroupInfo,
    InstanceNotFound,
    Observation,
    Observed,
    ProviderError,
    Settings,
    State,
    Unreachable,
)
from fleeting.groups.local import _client, _instance
from fleeting.groups.local._agent import has_hung_up
from fleeting.groups.local._config import LocalConfig
from fleeting.groups.local._instance import Instance
from fleeting.plugins import Offload, PrivateDirectory

HEARTBEAT_TIMEOUT = 5.0
"""Seconds within which an agent answers if it is healthy."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""GitLab's names for what ``uname -m`` says; the others are the same."""


@define(eq=False)
class LocalGroup:
    """Agents in directories of their own; the file system is the cloud's view, their locks are the truth.

    All that touches files or processes goes through one thread at a time, so no method sees another's half
    done work. For each agent a socket is kept open, by which it knows that its manager is there.
    """

    _config: LocalConfig
    _offload: Offload = field(factory=lambda: Offload(limit=1), init=False)
    _leashes: dict[Instance, socket.socket] = field(factory=dict, init=False)
    _accepted: Counter[str] = field(factory=Counter, init=False)
    """How many instances were started for each intent, since this manager opened the group or before."""

    _directory: PrivateDirectory = field(init=False)
    _clock: Clock = field(init=False)
    _settings: Settings = field(init=False)

    @_directory.default
    def _its_directory(self) -> PrivateDirectory:
        return PrivateDirectory(self._config.root, "the instances", "plugin_config.directory")

    async def init(self, settings: Settings) -> GroupInfo:
        """Make the group's directory, and take over the instances that are there; or only look at them."""
        self._clock = settings.clock
        self._settings = settings
        root = await self._offload(self._look_in if self._settings.observe_only else self._take_over)
        return GroupInfo(  # without another await: cancelled there, the directory would stay locked
            identity=f"local:{socket.gethostname()}:{root}",
            max_size=self._config.max_size,
            max_size_is="max_size in plugin_config",
            capabilities=frozenset({Capability.NAMED_CREATE, Capability.SUSPEND_RESUME}),
        )

    async def update(self) -> Observation:
        """Look at every instance; one whose agent died is reported as deleted once, then its directory is gone."""
        return Observation(await self._offload(self._look_on if self._settings.observe_only else self._look))

    async def increase(self, count: int, *, intent: str) -> int:
        """Start agents, as many as there is room for; none for an intent that was carried out before."""
        self._settings.refuse_if_observing()
        return await self._offload(self._start, count, intent, self._clock.now())

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Ask agents to end, with all that runs in them; those asked a second time are killed."""
        self._settings.refuse_if_observing()
        await self._offload(self._end, instances)
        return instances

    async def suspend(self, instances: Sequence[str]) -> Sequence[str]:
        """Ask agents to end, with all that runs in them; their directories stay."""
        self._settings.refuse_if_observing()
        return await self._offload(self._put_to_sleep, instances)

    async def resume(self, instances: Sequence[str]) -> Sequence[str]:
        """Start new agents in the directories of suspended instances."""
        self._settings.refuse_if_observing()
        return await self._offload(self._wake, instances)

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Where the instance's agent listens."""
        found = await self._offload(self._find, instance)
        return ConnectInfo(
            id=instance,
            os=platform.system().lower(),
            arch=_ARCHITECTURES.get(platform.machine(), platform.machine()),
            protocol="local",
            internal_addr=found.socket,
        )

    async def heartbeat(self, instance: str) -> None:
        """Return if the agent answers."""
        found = await self._offload(self._find, instance)
        try:
            with anyio.fail_after(HEARTBEAT_TIMEOUT):
                async with await _client.connect(found.socket) as stream:
                    await _client.ping(stream)
        except (TimeoutError, Unreachable) as error:
            raise ProviderError(f"the agent of {instance} does not answer") from error

    async def shutdown(self) -> None:
        """Let go of the instances, and remove the group's directory if there are none."""
        if not self._settings.observe_only:
            await self._offload(self._close)

    def _take_over(self) -> Path:
        self._directory.claim()
        try:
            _instance.clear_away(self._config.root)
            found = tuple(_instance.find_all(self._config.root))
        except BaseException:
            self._directory.let_go()
            raise
        self._accepted.update(instance.intent for instance in found)
        for instance in found:
            self._attach(instance)
        return self._config.root.resolve()

    def _look_in(self) -> Path:
        with suppress(FileNotFoundError):  # so nobody has begun to manage the group
            self._directory.check()
        return self._config.root.resolve()

    def _look_on(self) -> dict[str, Observed]:
        return {instance.id: instance.observe() for instance in _instance.find_all(self._config.root)}

    def _look(self) -> dict[str, Observed]:
        _instance.reap_agents()
        _instance.clear_away(self._config.root)
        for instance, leash in tuple(self._leashes.items()):
            if has_hung_up(leash):
                self._let_go_of(instance)
        present = dict.fromkeys((*_instance.find_all(self._config.root), *self._leashes))
        return {instance.id: self._look_at(instance) for instance in present}

    def _look_at(self, instance: Instance) -> Observed:
        observed = instance.observe()
        if instance in self._leashes:
            has_not_quite_ended = observed.state is State.DELETED
            return evolve(observed, state=State.DELETING) if has_not_quite_ended else observed
        if observed.state is State.DELETED:
            instance.discard()
        elif observed.state is State.RUNNING:
            self._attach(instance)
        return observed

    def _attach(self, instance: Instance) -> None:
        with suppress(OSError):  # it boots or ends; there is another `update`
            self._leashes[instance] = _client.attach(instance.socket)

    def _start(self, count: int, intent: str, now: float) -> int:
        if intent not in self._accepted:
            self._directory.claim()  # old and empty, the directory may have been cleared away
            for _ in range(self._room(count)):
                try:
                    instance, leash = _instance.create(self._config, intent=intent, now=now)
                except OSError as error:
                    if intent in self._accepted:
                        break
                    raise ProviderError(
                        f"no agent could be started in {self._config.root}: {error.strerror}"
                    ) from error
                self._leashes[instance] = leash
                self._accepted[intent] += 1
        return min(count, self._accepted[intent])

    def _room(self, count: int) -> int:
        if self._config.max_size is None:
            return count
        present = sum(1 for _ in _instance.find_all(self._config.root))
        return max(0, min(count, self._config.max_size - present))

    def _end(self, instances: Sequence[str]) -> None:
        for instance in instances:
            with suppress(InstanceNotFound):
                self._find(instance).end()

    def _put_to_sleep(self, instances: Sequence[str]) -> Sequence[str]:
        return [found.id for found in self._those_there(instances) if found.suspend()]

    def _wake(self, instances: Sequence[str]) -> Sequence[str]:
        accepted = []
        for found in self._those_there(instances):
            try:
                leash = _instance.resume(found, self._config)
            except OSError as error:
                raise ProviderError(f"no agent could be started for {found.id}: {error.strerror}") from error
            if leash is not None:
                self._let_go_of(found)
                self._leashes[found] = leash
            if leash is not None or found.observe().state in {State.RESUMING, State.RUNNING}:
                accepted.append(found.id)
        return accepted

    def _those_there(self, instances: Sequence[str]) -> Iterator[Instance]:
        for instance in instances:
            with suppress(InstanceNotFound):
                yield self._find(instance)

    def _let_go_of(self, instance: Instance) -> None:
        leash = self._leashes.pop(instance, None)
        if leash is not None:
            leash.close()

    def _find(self, instance: str) -> Instance:
        found = Instance.load(self._config.root / instance)
        if found is None or found.observe().state is State.DELETED:
            raise InstanceNotFound(instance)
        return found

    def _close(self) -> None:
        for leash in self._leashes.values():
            leash.close()
        self._leashes.clear()
        _instance.reap_agents()
        with suppress(OSError):  # somebody is in there
            self._config.root.rmdir()
        self._directory.let_go()
