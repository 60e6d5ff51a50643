"""All jobs of a runner that sidecars run: where their calls come in, and what they share."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import anyio
from anyio import to_thread
from attrs import define, evolve, field

from fleeting import ConfigError, FleetingError, Unsupported
from fleeting.plugins import one_line
from gitlab_jobs import Job, JobInfo, shorten
from taskscaler import Lease, TaskscalerError
from taskscaler_gitlab._dispatch import Decision
from taskscaler_gitlab._settings import RunnerSettings
from taskscaler_gitlab._work import FAREWELL, Shop
from taskscaler_gitlab.relay._about import About
from taskscaler_gitlab.relay._deliveries import DeliveryDirectory, found, record_of
from taskscaler_gitlab.relay._places import is_covered, places_of
from taskscaler_gitlab.relay._relay import Record, Relay
from taskscaler_gitlab.relay._routes import application
from taskscaler_gitlab.relay._sidecar import Sidecars, detaching, end_leftovers
from taskscaler_gitlab.relay._ways import Listening, Ways
from taskscaler_gitlab.relay._work import RelayWork

_NONE = Decision()
_SHOWN = 9
"""Characters of a token that gitlab-runner makes a part of paths, and of the names of containers and volumes: a slot's
own, so that the next job there finds the clones, and that of another slot, which runs at the same time, does not."""


@define(eq=False)
class Relays:
    """The part of a runner that has jobs run by sidecars."""

    settings: RunnerSettings
    directory: Path
    """Where the runner notes down its jobs."""

    origins: Mapping[str, RunnerSettings]
    """Stand for the runner at its GitLabs, 12 hexadecimal digits for each, with the settings there."""

    is_kept: bool
    """Whether the fleet's state outlives the process."""

    lost: set[str] = field(factory=set, init=False)
    """Keys of the leases of jobs that cannot be continued, in whose slots something may run."""

    about: About = field(init=False)
    sidecars: Sidecars = field(init=False)
    ways: Ways = field(init=False)
    _left: list[tuple[DeliveryDirectory, Record | str]] = field(factory=list, init=False)
    """What an earlier process has left; of what cannot be read, why."""

    _elsewhere: set[str] = field(factory=set, init=False)
    """Where sidecars report that are not heard where the settings say."""

    _had_sidecars: bool = field(default=False, init=False)
    """Whether an earlier process has had any, whatever the settings say by now."""

    _resumed: list[RelayWork] = field(factory=list, init=False)
    """What is gone on with of that."""

    _works: dict[str, RelayWork] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Make what they share; nothing is read or connected to."""
        sidecar = self.settings.taskscaler.sidecar
        self.sidecars = Sidecars(sidecar)
        self.about = About(sidecar.executor, self.directory / "sidecar.json")

    def load(self) -> None:
        """Find what an earlier process has left; blocks.

        Raises:
            OSError: The directory cannot be used.
        """
        self.about.load()
        for each in found(self.directory / "deliveries"):
            try:
                self._left.append((each, each.read()))
            except (OSError, ValueError, ConfigError) as error:
                self._left.append((each, one_line(str(error))))
        self._had_sidecars = bool(self._left) or self.about.path.exists()
        self._elsewhere = {record.listen for _, record in self._left if isinstance(record, Record) and record.listen}
        self._elsewhere = {listen for listen in self._elsewhere if not self._is_heard(listen)}

    def _is_heard(self, listen: str) -> bool:
        """Whether what is reported there comes to where the settings say that we listen; blocks if it is a name."""
        own = self.settings.taskscaler.listen
        try:
            return listen == own or (bool(own) and all(is_covered(each, places_of(own)) for each in places_of(listen)))
        except TaskscalerError:  # one of them stands for nothing
            return False

    def resume(self, shops: Mapping[str, Shop], say: Callable[[str], object]) -> Iterator[RelayWork]:
        """Go on with the jobs that an earlier process has left; says which cannot be continued, and why.

        Args:
            shops: What jobs share, by `origins`.
            say: Prints a line.
        """
        for directory, record in self._left:
            if isinstance(record, str):
                why = f"what was noted down of it cannot be read ({record})"
            elif record.prefix not in self.origins:
                urls = " and ".join(each.url for each in self.origins.values())
                why = f"it is from another GitLab than {urls}, or was taken by another runner"
            else:
                if record.listen in self._elsewhere:
                    say(
                        f"note: the job {record.job} is reported at {record.listen}, as it was started; this program"
                        " listens there until it is over"
                    )
                work = self._work(shops[record.prefix], directory, record)
                self._resumed.append(work)
                yield work
                continue
            self.lost.add(directory.key)
            directory.remove()
            say(f"warning: a job cannot be continued: {why}; its instance is replaced")

    async def clear(self, lease: Lease) -> None:
        """End the sidecar that may run in a slot of whose job nothing is noted down; if it did, the job may live on."""
        if not (self.settings.has_sidecars or self._had_sidecars):
            return
        why = "it took too long to look"
        with anyio.move_on_after(FAREWELL):
            try:
                why = await self._cleared(lease)
            except Unsupported:  # then there are no sidecars
                why = ""
            except (FleetingError, OSError) as error:
                why = one_line(str(error))
        if why:
            lease.mark_suspect(f"a job may run there of which nothing is noted down: {why}")

    async def _cleared(self, lease: Lease) -> str:
        async with lease.dial() as connection:
            detached = detaching(connection)  # first: where nothing outlives a connection, there may be no /bin/sh
            killed = False
            for origin in self.origins:
                place = await self.sidecars.locate(connection, lease.instance, f"{origin}-{lease.slot}")
                killed = await end_leftovers(detached, place) or killed
            return "its sidecar was killed" if killed else ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Answer the sidecars' calls while the context is open, if there are any.

        Raises:
            SocketRefused: It cannot listen where it should.
        """
        if not (self.settings.has_sidecars or self._left):
            yield
            return
        addresses = {work.record.listen for work in self._resumed if work.record.listen}
        others = {address: self._all_over_that_report_at(address) for address in addresses}
        async with Listening(self.settings.taskscaler, others).serve(application(self)) as self.ways:
            yield

    def _all_over_that_report_at(self, address: str) -> Callable[[], Awaitable[None]]:
        works = [work for work in self._resumed if work.record.listen == address]

        async def over() -> None:
            for work in works:
                await work.over.wait()

        return over

    def directory_of(self, origin: str, job: int, key: str) -> DeliveryDirectory:
        """Where a job is noted down."""
        return DeliveryDirectory.of(self.directory / "deliveries", origin, job, key)

    def take(self, shop: Shop, job: Job, key: str, *, origin: str, now: float, decision: Decision = _NONE) -> RelayWork:
        """Note down a job that was just handed out, and what the rules say of it; blocks.

        Raises:
            OSError: It cannot be noted down.
        """
        keeps_token = self.settings.taskscaler.keep_job_tokens
        record = record_of(job, key=key, prefix=origin, now=now, keeps_token=keeps_token)
        if decision.rule:
            record = evolve(record, rule=decision.rule, dispatched=str(decision), pools=decision.pools)
        directory = self.directory_of(origin, job.id, key)
        directory.note(record)
        return self._work(shop, directory, record, job)

    def _work(self, shop: Shop, directory: DeliveryDirectory, record: Record, job: Job | None = None) -> RelayWork:
        shop = evolve(shop, info=self.about.as_info, outlives=self.is_kept)
        placements = self.settings.taskscaler.placements
        relay = Relay(record=record, placements=placements)
        if job is None:
            relay = Relay.found(record, placements=placements)
            info = JobInfo(name=record.name, project_full_path=record.project)
            job = Job(id=record.job, token=record.token, job_info=info)
        work = RelayWork(shop, self, job, directory, relay)
        if record.delivery:
            self.enter(record.delivery, work)
        return work

    # --- as a `Desk`, and as `Deliveries` ----------------------------------------------------------------

    def find(self, delivery: str) -> RelayWork | None:
        """See `Deliveries.find`."""
        return self._works.get(delivery)

    def enter(self, delivery: str, work: RelayWork) -> None:
        """See `Desk.enter`."""
        self._works[delivery] = work

    def strike(self, delivery: str) -> None:
        """See `Desk.strike`."""
        self._works.pop(delivery, None)

    async def learn(self, said: object) -> None:
        """See `Desk.learn`."""
        kept = self.about.learn(said)
        if kept is not None:
            await to_thread.run_sync(self.about.keep, kept)

    def secret(self, settings: RunnerSettings, slot: int) -> str:
        """See `Desk.secret`."""
        whose = sha256(f"{settings.url} {shorten(settings.token)} {slot}".encode()).hexdigest()
        return f"glrt-{whose[:_SHOWN]}{token_hex(16)}"
