"""Keeps one group as large as is asked: for those who need instances, but no slots or jobs."""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from fleeting._arguments import check
from fleeting._protocols import InstanceGroup
from fleeting._types import Clock, ConnectInfo, ConnectorConfig, GroupInfo
from fleeting.core import messages
from fleeting.core._building import build_plan, refusal_of
from fleeting.core._instance import Instance
from fleeting.core._plan import Plan
from fleeting.core._plan_config import PlanConfig
from fleeting.core._records import PLAN_RECORDS
from fleeting.core._step import NOTHING, Step
from fleeting.journal._journal import Journal, Recovered
from fleeting.runtime._driver import GroupDriver
from fleeting.runtime._instances import Dial, ReadyHook, Upkeep
from fleeting.runtime._runtime import Runtime


class Provisioner:
    """The runtime of one group's plan. An async context manager; entered once. Before, all else raises `RuntimeError`.

    Grows by `request`, shrinks by `remove`; everything else (readiness, health, loss, retries, ceilings)
    it does by itself, and emits events. Leaving it keeps the instances.
    """

    def __init__(
        self,
        group: InstanceGroup,
        config: PlanConfig | None = None,
        *,
        dial: Dial,
        on_event: Callable[[messages.Event], None],
        connector: ConnectorConfig | None = None,
        ready_command: str | None = None,
        ready_hook: ReadyHook | None = None,
        heartbeat_command: str | None = None,
        heartbeat_timeout: float = 10.0,
        notice_interval: float = 10.0,
        journal: Journal | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] | None = None,
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            group: Not initialised yet.
            config: None: the defaults.
            dial: Connects to an instance; `fleeting.dial`.
            on_event: Called with each event, in order, before anything else happens; must not block. What an instance
                has come to be is read from `instances`.
            connector: How to connect; overrides what the group reports.
            ready_command: Run on a new instance; failure replaces it.
            ready_hook: The caller's own last readiness step.
            heartbeat_command: Run on an instance with each heartbeat; failure counts as one of the group's does.
            heartbeat_timeout: Seconds that a heartbeat, command included, may take.
            notice_interval: Seconds between two looks for notices on an instance, where the group has a probe for them.
            journal: None: in memory.
            clock: None: the event loop's time.
            random: Gives numbers from 0 to 1, for jitter. None: as they come.
        """
        self._config = config if config is not None else PlanConfig()
        self._random = random
        self._journaled = journal is not None
        self._on_event = on_event
        driver = GroupDriver(
            group,
            pool=self._config.name,
            connector=connector if connector is not None else ConnectorConfig(),
            dial=dial,
            upkeep=Upkeep(
                ready_command=ready_command,
                ready_hook=ready_hook,
                heartbeat_command=heartbeat_command,
                heartbeat_timeout=heartbeat_timeout,
                notice_interval=notice_interval,
            ),
        )
        self._runtime = Runtime([driver], self._build, self._pass_on, kinds=PLAN_RECORDS, journal=journal, clock=clock)

    @property
    def plan(self) -> Plan:
        """The core, to be read: instances, intents, problems, limits."""
        return self._open.core.plan

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All known instances by id; to be read, not changed."""
        return self.plan.instances

    def now(self) -> float:
        """Seconds since the epoch, on the clock that everything here goes by."""
        return self._open.clock.now()

    def request(self, count: int) -> None:
        """Ask for *count* more instances, or for as many as ceiling, throttle and backoff allow now."""
        check("count", count, int, least=0)
        self._open.take(self._open.core.route(self.plan.request(count, self.now())))

    def remove(self, instances: Iterable[str], reason: str) -> None:
        """Delete these; whatever runs there is the caller's affair."""
        self._open.take(self._open.core.route(self.plan.remove(dict.fromkeys(instances, reason), self.now())))

    async def connect_info(self, instance: str) -> ConnectInfo:
        """How to connect to the instance."""
        return await self._open.drivers[self._config.name].calls.connect_info(instance)

    async def __aenter__(self) -> Self:
        """Open the group and see it once. Raises as `Runtime.__aenter__`."""
        await self._runtime.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Finish what is under way and close the group."""
        return await self._runtime.__aexit__(kind, error, trace)

    @property
    def _open(self) -> "Runtime[_OnePlan]":
        if not hasattr(self._runtime, "core"):
            raise RuntimeError("the provisioner is not open yet; enter it with `async with` first")
        return self._runtime

    def _build(self, infos: Mapping[str, GroupInfo], recovered: Recovered, now: float) -> "_OnePlan":
        """The core over the one plan."""
        info = infos[self._config.name]
        return _OnePlan(build_plan(self._config, info, recovered, now, random=self._random, journaled=self._journaled))

    def _pass_on(self, event: Any) -> None:  # noqa: ANN401  (whatever the core puts among its actions)
        """Pass an event on; it comes as an action, so that it comes after what led to it is durable."""
        self._on_event(event)


class _OnePlan:
    """A plan as the runtime's core; its events become actions for the owner."""

    def __init__(self, plan: Plan) -> None:
        """Wrap the plan."""
        self.plan = plan
        self.refusal: str | None = None

    @property
    def wake_at(self) -> float | None:
        """See `Core`."""
        return self.plan.wake_at

    def heed(self, now: float) -> None:
        """See `Core`; a plan's timers are always right."""

    def tick(self, now: float) -> Step:
        """See `Core`."""
        return self.route(self.plan.tick(now))

    def handle(self, _pool: str, fact: messages.Fact, now: float) -> Step:
        """See `Core`."""
        return self.route(self.plan.handle(fact, now))

    def journal_failed(self, _error: str, _now: float) -> Step:
        """Nothing is handed out here; what was decided waits."""
        return NOTHING

    def journal_recovered(self, _now: float) -> Step:
        """See `journal_failed`."""
        return NOTHING

    def route(self, step: Step) -> Step:
        """Make the events part of what is performed."""
        for event in step.events:
            if isinstance(event, messages.Refused):
                self.refusal = refusal_of(event)
        return Step(step.writes, [*step.actions, *step.events])
