"""The instance group: a Puddle pool."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from urllib.parse import urlsplit

from fleeting import (
    Capability,
    ConnectInfo,
    GroupInfo,
    InstanceNotFound,
    Observation,
    Observed,
    Problem,
    ProblemKind,
    ProviderError,
    Settings,
    State,
)

from fleeting_puddle._cloud import Cloud
from fleeting_puddle._config import Config

STATES = {"pending": State.CREATING, "active": State.RUNNING, "stopping": State.DELETING, "error": State.FAILED}
PROBLEMS = {"no_stock": ProblemKind.CAPACITY, "quota": ProblemKind.QUOTA}
CAPABILITIES = frozenset({Capability.NAMED_CREATE, Capability.WITHDRAW})


class Group:
    """Instances of one pool."""

    def __init__(self, config: Config) -> None:
        """Open no connection yet."""
        self._config = config
        self._cloud = Cloud(config)
        self._pool = f"/pools/{config.pool}"

    async def init(self, settings: Settings) -> GroupInfo:
        """Check that the pool exists."""
        self._settings = settings
        pool = await self._cloud.call("GET", self._pool)
        url = urlsplit(self._config.url)
        identity = f"puddle:{url.netloc.lower()}{url.path.rstrip('/')}{self._pool}"
        return GroupInfo(identity=identity, max_size=pool["limit"], capabilities=CAPABILITIES)

    async def update(self) -> Observation:
        """List the pool, page by page, and why no more instances come."""
        pool = await self._cloud.call("GET", self._pool)
        instances: dict[str, Observed] = {}
        pages: list[str | None] = [""]
        while (page := pages[-1]) is not None:
            listing = await self._cloud.call("GET", f"{self._pool}/instances?page={page}")
            instances |= {each["id"]: self._observed(each) for each in listing["instances"]}
            if listing["next"] in pages:
                raise ProviderError("the pages of Puddle's list lead in a circle")
            pages.append(listing["next"])
        return Observation(instances, [self._problem(each) for each in pool["problems"]])

    async def increase(self, count: int, *, intent: str) -> int:
        """Ask for instances that carry the intent as their label."""
        self._settings.refuse_if_observing()
        body = {"count": count, "label": intent}
        return int((await self._cloud.call("POST", f"{self._pool}/instances", body, key=intent))["accepted"])

    async def decrease(self, instances: Sequence[str]) -> Sequence[str]:
        """Delete one instance after the other."""
        self._settings.refuse_if_observing()
        for instance in instances:
            with suppress(InstanceNotFound):
                await self._cloud.call("DELETE", f"/instances/{instance}")
        return instances

    async def withdraw(self, count: int) -> int:
        """Withdraw requests that are not filled."""
        self._settings.refuse_if_observing()
        return int((await self._cloud.call("POST", f"{self._pool}/withdraw", {"count": count}))["withdrawn"])

    async def connect_info(self, instance: str) -> ConnectInfo:
        """Return what the API knows."""
        found = await self._cloud.call("GET", f"/instances/{instance}")
        return ConnectInfo(id=instance, internal_addr=found["address"], user=found["user"], password=found["password"])

    async def heartbeat(self, instance: str) -> None:
        """Check that the instance is running."""
        status = (await self._cloud.call("GET", f"/instances/{instance}"))["status"]
        if STATES.get(status) is not State.RUNNING:
            raise ProviderError(f"instance {instance} is {status}")

    async def shutdown(self) -> None:
        """Do nothing: no connection stays open."""

    def _observed(self, each: dict[str, str]) -> Observed:
        if each["status"] not in STATES:
            raise ProviderError(f"instance {each['id']} is {each['status']}, which this plugin does not know")
        return Observed(state=STATES[each["status"]], created_at=_time(each["created"]), intent=each["label"])

    def _problem(self, each: dict[str, str]) -> Problem:
        kind = PROBLEMS.get(each["code"], ProblemKind.OTHER)
        return Problem(kind=kind, message=each["code"], since=_time(each["since"]))


def _time(written: str) -> float:
    return datetime.fromisoformat(written).timestamp()
