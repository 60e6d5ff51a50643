"""The daemon: from the first sign of life to the last, and what signals and operators ask of it."""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from time import monotonic_ns

import anyio
from anyio import to_thread
from anyio.abc import SocketAttribute, SocketListener, TaskStatus
from attrs import asdict, define, field

from fleeting import ConfigError, ConnectorConfig, FleetingError, JournalError, LoopClock
from fleeting.cli import SIGNALLED, SUCCEEDED, in_lines
from fleeting.plugins import span
from taskscaler._cost import Spending, cost_as_data
from taskscaler._errors import DaemonRefused
from taskscaler._fleet_log import FleetLog
from taskscaler._observe import InstanceEvent, ScalerEvent
from taskscaler._open_files import allow_open_files
from taskscaler._scaler import Taskscaler
from taskscaler._wording import counted, enumerated, iso
from taskscaler.serve._app import Api
from taskscaler.serve._batches import Batches
from taskscaler.serve._fleet_file import FleetFile, read_fleet_file
from taskscaler.serve._holders import Holders
from taskscaler.serve._listen import listening
from taskscaler.serve._notify import notify, watchdog_interval
from taskscaler.serve._owners import JobOwner, Owners
from taskscaler.serve._page._door import Door
from taskscaler.serve._page._watch import Watch
from taskscaler.serve._server import Server, connections_of
from taskscaler.serve._tcp import MOST_CONNECTIONS, Entrance, listening_on_tcp

GOODBYE = 2.0
"""Seconds that answers under way have to be sent when the daemon ends."""

LEAVE_TIMEOUT = 15.0
"""Seconds for leaving the jobs of batches to the next daemon; what is not left in good order by then is as after a
kill."""

log = logging.getLogger("taskscaler.serve")


@define(eq=False)
class Daemon:
    """Owns the fleet of a file, and does with it what its clients ask."""

    file: FleetFile
    socket: Path
    group: str | None
    """Users who may connect besides the daemon's own."""

    stop_timeout: float
    """Seconds that leases have to end after the first signal."""

    say: Callable[[str], None]
    """Prints a line."""

    runner: str | None = None
    """Which runner of a ``config.toml``."""

    entrance: Entrance | None = None
    """Where it listens over TCP, too."""

    page_entrance: Entrance | None = None
    """Where it shows the status page."""

    page_without_link: bool = False
    """Whether everybody who reaches that may look."""

    job_owners: Sequence[JobOwner] = ()
    """Who brings jobs to the fleet, beside clients and batches."""

    on_terminal: bool = False
    """Whether what it says is read on a terminal, and not kept."""

    boot: str = field(factory=lambda: token_hex(8), init=False)
    scaler: Taskscaler = field(init=False)
    holders: Holders = field(init=False)
    batches: Batches = field(init=False)
    owners: Owners = field(init=False)
    _api: Api = field(init=False)
    _page: Door | None = field(default=None, init=False)
    _clock: LoopClock = field(init=False)
    _since: float = field(init=False)
    _spending: Spending = field(init=False)
    _opening: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _tasks: anyio.abc.TaskGroup = field(init=False)
    _ended_by: int = field(default=0, init=False)
    """The signal that ended it before its leases had; 0: none."""

    _signals: int = field(default=0, init=False)
    _draining: bool = field(default=False, init=False)
    _over: anyio.Event = field(factory=anyio.Event, init=False)
    """Set when it is to end, whatever is still held."""

    async def run(self) -> int:
        """Serve until a signal or an operator ends it; returns the exit status.

        Raises:
            SocketRefused, JournalError: Another daemon has the socket, the state or the group.
            FleetingError: The fleet cannot be opened.
        """
        async with (
            listening(self.socket, self.group) as listener,
            listening_on_tcp(self.entrance) as others,
            listening_on_tcp(self.page_entrance) as shown,
            anyio.create_task_group() as self._tasks,
        ):
            await self._tasks.start(self._heed_signals)
            self._clock = LoopClock()
            self._since = self._clock.now()
            self._api = Api(self)
            self._page = self._shown_at(shown)
            self._spending = Spending.at({pool.name: pool.tariff for pool in self.file.autoscaler.all_pools})
            shows = [] if self._page is None else [self._page.watch.hear]
            self.scaler = self.file.scaler(self._clock, [self._api.hear, self._hear, FleetLog(), *shows])
            with self._opening:
                async with self.scaler:
                    await self._serve(self._servers(listener, others, shown))
            self._tasks.cancel_scope.cancel()
        self.say("stopped")
        return SIGNALLED + self._ended_by if self._ended_by else SUCCEEDED

    def _shown_at(self, listeners: Sequence[SocketListener]) -> Door | None:
        """Make the status page, if it is shown."""
        if self.page_entrance is None:
            return None
        watch, without_link = Watch(self, self._clock), self.page_without_link
        page = Door(self.page_entrance, watch, self._api.explain, self, self._clock, without_link)
        page.port = listeners[0].extra(SocketAttribute.local_port)
        return page

    def _servers(
        self, listener: SocketListener, others: Sequence[SocketListener], shown: Sequence[SocketListener]
    ) -> Sequence[tuple[Server, SocketListener]]:
        """Give each listener its own server, so that nobody takes another's places."""
        app = self._api.app()
        most = connections_of(allow_open_files(), 1 + len(others) + len(shown))
        servers = [(Server(app, most), listener)]
        if self.entrance is not None:
            guarded = self.entrance.guard(app)
            servers += [(Server(guarded, min(most, MOST_CONNECTIONS), self.entrance.admit), other) for other in others]
        if self._page is not None:
            page, admit = self._page.app(), self._page.entrance.admit
            servers += [(Server(page, min(most, MOST_CONNECTIONS), admit), each) for each in shown]
        return servers

    async def _serve(self, servers: Sequence[tuple[Server, SocketListener]]) -> None:
        """Answer until it is over."""
        async with anyio.create_task_group() as serving:
            self.holders = Holders(self.scaler, self._clock.now, serving.start_soon, self._api.notify, self.file.leases)
            self.batches = Batches(
                self.file.batches,
                self.scaler,
                self._clock,
                serving.start_soon,
                self.file.autoscaler,
                self.file.executors,
                self.file.retention,
                self.say,
            )
            self._show_batches()
            self.owners = Owners(self.job_owners, self.say)
            await self._take_up()
            serving.start_soon(self.owners.run)
            serving.start_soon(self.batches.watch)
            serving.start_soon(self.holders.watch)
            for server, listener in servers:
                serving.start_soon(server.serve, listener)
            serving.start_soon(self._show_life)
            if self._page is not None:
                serving.start_soon(self._page.watch.run)
            self._say_where([listener for _, listener in servers[1:]])
            self.say(f"ready: {self.file.path} is served on {self.socket} (process {os.getpid()})")
            notify("READY=1", f"STATUS=serving {self.file.path} on {self.socket}")
            await self._over.wait()
            notify("STOPPING=1")
            with anyio.move_on_after(GOODBYE if self._ended_by else LEAVE_TIMEOUT):
                async with anyio.create_task_group() as leaving:
                    leaving.start_soon(self.batches.leave)
                    leaving.start_soon(self.owners.leave)
            if self._page is not None:
                self._page.watch.close()
            with anyio.move_on_after(GOODBYE):
                await self._api.settle()
            async with anyio.create_task_group() as closing:
                for server, _ in servers:
                    closing.start_soon(server.close)
            serving.cancel_scope.cancel()

    def _show_batches(self) -> None:
        """Show batches to Prometheus beside the fleet, if anything is."""
        if self.file.metrics is not None:
            from taskscaler.observers._batches import OfBatches  # the client library need not be there
            from taskscaler.observers._costs import OfCosts

            costs = OfCosts(self.file.metrics.families, lambda: self._spending.so_far(self._clock.now()))
            self.file.metrics.registry.register(costs)
            shown = OfBatches(self.file.metrics.families, lambda: self.batches.states)
            self.batches.hear_of_jobs = shown.changed
            self.file.metrics.registry.register(shown)

    def _say_where(self, listeners: Sequence[SocketListener]) -> None:
        """Name what TCP clients need, and where metrics are, and traces are sent."""
        if self.file.metrics is not None and self.file.metrics.url:
            self.say(f"metrics: {self.file.metrics.url}")
        if self.file.traces is not None and self.file.traces.endpoint:
            self.say(f"traces: {self.file.traces.endpoint}")
        if self.entrance is not None:
            port = listeners[0].extra(SocketAttribute.local_port)
            self.say(f"listening on {self.entrance.url(port)}; the token is in {self.entrance.asked.token}")
        if self._page is not None:
            self._say_page(self._page)

    def _say_page(self, page: Door) -> None:
        """Say where the page is; a link, which lets somebody in, only to a terminal: other output is kept."""
        if page.without_link:
            self.say(f"status page: {page.url}")
        elif self.on_terminal:
            self.say(f"status page: {page.link(changes=False)['url']} (good once; `taskscaler link` prints another)")
        else:
            self.say(f"status page: {page.url}; `taskscaler link` prints a link to it")

    async def _take_up(self) -> None:
        """Go on with what an earlier daemon has left: before anybody is answered, for its leases' time runs.

        Raises:
            JournalError: A directory cannot be used.
        """
        directory = self.file.leases
        try:
            await self.holders.keeper.take_up()
            directory = self.batches.directory
            await self.batches.take_up()
        except OSError as error:
            why = f"{directory} cannot be used ({error.strerror})"
            raise JournalError(f"{why}; check its permissions") from error
        try:
            await self.owners.take_up(self.scaler, self._clock)
        except OSError as error:
            raise JournalError(f"{error.filename} cannot be used ({error.strerror}); check its permissions") from error
        if left := len(self.batches.unfinished):
            self.say(f"resuming {'1 batch' if left == 1 else f'{left} batches'}")

    def _hear(self, event: ScalerEvent) -> None:
        """Pass on what the scaler reports to the batches and to who keeps leases, once they are there."""
        if isinstance(event, InstanceEvent):
            self._spending.take(event)
        if hasattr(self, "holders"):
            self.holders.keeper.hear(event)
        if hasattr(self, "batches"):
            self.batches.hear(event)

    async def _show_life(self) -> None:
        interval = watchdog_interval()
        while interval is not None:
            notify("WATCHDOG=1")
            await anyio.sleep(interval)

    # --- what operators ask ------------------------------------------------------------------------------

    async def status(self) -> dict[str, object]:
        """Describe it at a glance."""
        explanation = await self.scaler.explain()
        return {
            "fleet": str(self.file.path),
            "pid": os.getpid(),
            "version": version("taskscaler"),
            "since": iso(self._since),
            "state": "draining" if self._draining else "serving",
            "deletes": self._draining and self.scaler.delete_instances_on_shutdown,
            "answer": explanation.answer,
            "capacity": asdict(explanation.capacity),
            "pools": {pool.name: pool.counts() for pool in explanation.pools},
            "cost": cost_as_data(self._spending.so_far(self._clock.now())),
            "clients": len(self.holders.clients),
            "leases": len(self.holders.held),
            "kept": self.holders.keeper.left,
            "batches": len(self.batches.unfinished),
            "jobs": self.batches.jobs_running,
            "owners": self.owners.status(),
            "intake": None if (intake := self.owners.intake) is None else asdict(intake),
        }

    def link(self, *, changes: bool) -> dict[str, object]:
        """Make a link to the status page.

        Raises:
            DaemonRefused: There is none.
        """
        if self._page is None:
            raise DaemonRefused("the daemon shows no status page; start it with --http HOST:PORT", status=404)
        return self._page.link(changes=changes)

    def connector_of(self, pool: str) -> ConnectorConfig:
        """How to connect to the instances of a pool."""
        return next(each.connector_config for each in self.file.autoscaler.all_pools if each.name == pool)

    async def drain(self, timeout: float | None, *, delete: bool) -> bool:
        """Hand out no more slots, and end with the last lease.

        Args:
            timeout: Seconds to wait for that; None: for ever.
            delete: Whether the instances are deleted, too.

        Returns:
            Whether no lease is held any more.
        """
        if delete:
            self.scaler.delete_instances_on_shutdown = True
            await self.holders.keeper.hold_all()
        if not self._draining:
            self._draining = True
            self.batches.drain()
            self.owners.drain(for_good=delete)
            self.say(f"draining: {self._left} left")
            self._tasks.start_soon(self._end_with_the_last)
        elif delete:
            self.owners.drain(for_good=True)
        with anyio.move_on_after(timeout):
            drained = await self.scaler.drain()
            await self.owners.settle()
            return drained
        return False

    @property
    def _left(self) -> str:
        """Count what is held."""
        parts = [
            counted(len(self.holders.held) + self.holders.keeper.in_hand, "lease"),
            *([f"{counted(jobs, 'job')} of batches"] if (jobs := self.batches.jobs_running) else []),
            *self.owners.running,
        ]
        return enumerated(parts)

    async def _end_with_the_last(self) -> None:
        await self.scaler.drain()
        await self.owners.settle()
        self._over.set()

    async def reload(self) -> dict[str, object]:
        """Take over the policies as they are in the file now, and name what else has changed.

        Token and certificate are read again, too.

        Raises:
            ConfigError, FleetingError, OSError: The file is wrong; nothing has changed.
        """
        notify("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")
        try:
            file = await to_thread.run_sync(read_fleet_file, self.file.path, self.runner)
            later = await self.owners.reload()
            for each in (self.entrance, self.page_entrance):
                if each is not None:
                    await to_thread.run_sync(each.reload)
            await self.scaler.configure(policies=file.autoscaler.policy)
        except OSError as error:
            problem = f"{self.file.path} cannot be read ({error.strerror}); nothing was reloaded"
            raise FleetingError(problem) from error
        finally:
            notify("READY=1")
        pending = [*self.file.changes(file), *later]
        return {"policies": len(file.autoscaler.policy), "pending": pending, "notes": list(file.notes)}

    # --- signals -----------------------------------------------------------------------------------------

    async def _heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGHUP, signal.SIGINT, signal.SIGTERM) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    await self._reload_for_signal()
                else:
                    self._end(number)

    async def _reload_for_signal(self) -> None:
        if not hasattr(self, "holders"):
            self.say("nothing was reloaded: the fleet is being opened")
            return
        try:
            result = await self.reload()
        except (ConfigError, FleetingError) as error:
            for line in in_lines(error):
                self.say(line)
            self.say("nothing was reloaded: the policies have not changed")
        else:
            for line in reloaded(result):
                self.say(line)

    def _end(self, number: int) -> None:
        """Drain within the bound at the first signal, and end at once at the second."""
        self._signals += 1
        if not hasattr(self, "holders"):
            self._ended_by = number
            self._opening.cancel()
        elif self._signals == 1:
            bound = span(self.stop_timeout)
            self.say(f"stopping: waiting at most {bound} for {self._left} to end; repeat the signal to stop at once")
            notify(
                f"EXTEND_TIMEOUT_USEC={int((self.stop_timeout + LEAVE_TIMEOUT + GOODBYE) * 2_000_000)}", "STOPPING=1"
            )
            self._tasks.start_soon(self._drain_in_time)
        else:
            self.say("stopping at once")
            self._ended_by = number
            self._over.set()

    async def _drain_in_time(self) -> None:
        if not await self.drain(self.stop_timeout, delete=False) and not self._over.is_set():
            self.say(f"{self._left} did not end in time; the next daemon resumes what can be resumed")
        self._over.set()


def reloaded(result: dict[str, object]) -> list[str]:
    """Say in lines what a reload has brought."""
    pending = result["pending"]
    lines = [f"the policies were reloaded ({result['policies']} in all)"]
    return lines + [f"{change}: takes effect when the daemon is restarted" for change in pending]  # type: ignore[attr-defined]
