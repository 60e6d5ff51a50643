"""The status page on a real listener, with a fleet that the test stages: what its tests and pictures share."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import anyio
from anyio.abc import SocketAttribute, TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal
from attrs import define, evolve, field

from taskscaler._errors import DaemonRefused
from taskscaler.serve import Server
from taskscaler.serve._bodies import Explain
from taskscaler.serve._page._door import Door
from taskscaler.serve._page._passes import Passes
from taskscaler.serve._page._view import Scene
from taskscaler.serve._page._watch import Watch
from taskscaler.serve._peers import Peer
from taskscaler.serve._tcp import Entrance, Listen, listening_on_tcp
from tests.taskscaler.page_moments import Moment


@define
class StillClock:
    """Stands still unless it is set."""

    at: float

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    async def sleep_until(self, at: float) -> None:
        """Wait for ever: nobody sets it meanwhile."""
        await anyio.sleep_forever()


@define(eq=False)
class StagedScaler:
    """Takes note of what is to be done to instances, and does it to the scene."""

    stage: "Stage"
    held: list[tuple[str, str, str]] = field(factory=list)
    refusal: str = ""

    async def cordon(self, instance: str, why: str = "") -> None:
        """Take note, or refuse."""
        self._hold("cordon", instance, why, cordoned=why)

    async def uncordon(self, instance: str) -> None:
        """Take note."""
        self._hold("uncordon", instance, cordoned=None)

    async def retain(self, instance: str, why: str = "") -> None:
        """Take note."""
        self._hold("retain", instance, why, retained=why)

    async def unretain(self, instance: str) -> None:
        """Take note."""
        self._hold("unretain", instance, retained=None)

    def _hold(self, verb: str, instance: str, why: str = "", **changed: str | None) -> None:
        if self.refusal:
            raise DaemonRefused(self.refusal)
        self.held.append((verb, instance, why))
        fleet = self.stage.scene.fleet
        pool, _, id_ = instance.partition("/")
        each = evolve(fleet.instances[pool, id_], **changed)  # type: ignore[arg-type]
        fleet = evolve(fleet, instances={**fleet.instances, each.place: each})
        self.stage.scene = evolve(self.stage.scene, fleet=fleet)


@define(eq=False)
class StagedWatch(Watch):
    """Shows the scene of a stage."""

    async def _look(self) -> None:
        self._missed = False
        stage: Any = self.source
        self._show(stage.scene)


@define(eq=False)
class Stage:
    """A page whose fleet is as the test has it."""

    moment: Moment
    without_link: bool = False
    certificate: Any = None
    drained: list[bool] = field(factory=list)
    port: int = 0
    scene: Scene = field(init=False)
    clock: StillClock = field(init=False)
    passes: Passes = field(factory=Passes, init=False)
    scaler: Any = field(init=False)
    door: Door = field(init=False)
    _ending: anyio.Event = field(init=False)
    _portal: BlockingPortal | None = field(default=None, init=False)
    _over: "Future[None] | None" = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        """Begin at the moment."""
        self.scene, self.clock, self.scaler = self.moment.scene, StillClock(self.moment.now), StagedScaler(self)

    async def status(self) -> dict[str, object]:
        """Nobody asks."""
        raise AssertionError

    async def drain(self, timeout: float | None, *, delete: bool) -> bool:
        """Take note."""
        self.drained.append(delete)
        return True

    async def explain(self, _: Peer, asked: Explain) -> Mapping[str, object]:
        """Say what was asked about."""
        about = asked.instance or asked.key
        return {
            "answer": f"{about} is explained",
            "details": ["because of this"],
            "next": [{"sentence": "in 5s: that"}],
        }

    def make(self, entrance: Entrance) -> Door:
        """Make the page."""
        watch = StagedWatch(self, self.clock)
        watch._history = self.moment.history
        self.door = Door(entrance, watch, self.explain, self, self.clock, self.without_link)
        self.door.passes = self.passes
        return self.door

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Show it until `_ending` is set."""
        self._ending = anyio.Event()
        entrance = Entrance.of(Listen(host="127.0.0.1", port=self.port, option="--http", certificate=self.certificate))
        async with listening_on_tcp(entrance) as (listener,), anyio.create_task_group() as tasks:
            door = self.make(entrance)
            door.port = self.port = listener.extra(SocketAttribute.local_port)
            server = Server(door.app(), 64, entrance.admit)
            tasks.start_soon(server.serve, listener)
            tasks.start_soon(door.watch.run)
            task_status.started()
            await self._ending.wait()
            door.watch.close()
            await server.close()
            tasks.cancel_scope.cancel()

    # --- from another thread -----------------------------------------------------------------------------

    def start(self, portal: BlockingPortal) -> None:
        """Have it run, on the port that it had if it had one."""
        self._portal = portal
        self._over, _ = portal.start_task(self.run)

    def stop(self) -> None:
        """Have it end, with all its connections."""
        assert self._portal is not None
        assert self._over is not None
        self._portal.call(self._ending.set)
        self._over.result()

    def start_again(self) -> None:
        """Have it come back."""
        assert self._portal is not None
        self.start(self._portal)

    def show(self, scene: Scene) -> None:
        """Have another scene shown."""
        assert self._portal is not None
        self.scene = scene
        self._portal.call(self.door.watch.look_again)

    def link(self, *, changes: bool = False) -> str:
        """Make a link to it."""
        return str(self.door.link(changes=changes)["url"])


@contextmanager
def staged(moment: Moment, **settings: Any) -> Iterator[Stage]:  # noqa: ANN401  (a stage's)
    """Show a page from another thread while the body runs."""
    stage = Stage(moment, **settings)
    with start_blocking_portal() as portal:
        stage.start(portal)
        try:
            yield stage
        finally:
            stage.stop()
