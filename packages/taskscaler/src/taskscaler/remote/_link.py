"""The way to a daemon: requests that get their answers in spite of its restarts, and its news."""

import json
import logging
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from math import inf
from secrets import token_hex
from typing import Any

import anyio
import httpx
from anyio.abc import TaskStatus
from attrs import define, field

from fleeting.errors import WrongArguments
from fleeting.plugins import format_duration
from taskscaler._errors import DaemonRefused, NoDaemon
from taskscaler._socket import Place
from taskscaler._span import carried
from taskscaler._url import DaemonUrl, trusting_nobody
from taskscaler._wire import CLIENT, ClientUnknown, error_of

PROMPT = 30.0
"""Seconds that a daemon may take for what needs no waiting."""

SILENCE = 35.0
"""Seconds without a sign of life from the daemon, after which the connection is made again: it sends one every 10 s."""

_ERRNO = re.compile(r"^\[Errno [0-9]+\] ")
"""How Python begins what the system says."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between two tries to reach the daemon."""

log = logging.getLogger("taskscaler.remote")


class _Body(httpx.AsyncByteStream):
    """What a request sends. httpx's own is a generator, of which trio warns if the daemon ends while it is sent."""

    def __init__(self, content: bytes) -> None:
        """Send it in one piece."""
        self._pieces = iter([content])

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Give the piece, once."""
        return self

    async def __anext__(self) -> bytes:
        """Give it, or nothing more."""
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


class _Transport(httpx.AsyncHTTPTransport):
    """httpx's, for requests whose bodies are there as a whole."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        request.stream = _Body(request.content)
        return await super().handle_async_request(request)


class _Token(httpx.Auth):
    """Shows the token, as its file has it at the moment."""

    def __init__(self, place: DaemonUrl) -> None:
        """Read it once.

        Raises:
            WrongArguments: There is none.
        """
        self._place = place
        self._last = place.headers()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response]:
        """Add it to a request; while the file is being exchanged, the last one."""
        with suppress(WrongArguments):
            self._last = self._place.headers()
        request.headers.update(self._last)
        yield request


@define(eq=False)
class Link:
    """One client of a daemon."""

    socket: Place
    patience: float
    """Seconds for which a daemon that does not answer is tried again."""

    begin: Callable[[], Awaitable[None]]
    """Called each time that the daemon is there, once its news are heard."""

    hear: Callable[[Mapping[str, Any]], None]
    """Called with news."""

    lose: Callable[[str], None]
    """Called when the daemon was not there for too long, with why."""

    ttl: float
    id: str = field(factory=lambda: token_hex(16), repr=False)
    _http: httpx.AsyncClient = field(init=False)
    _there: anyio.Event = field(factory=anyio.Event, init=False)
    """Set while the daemon is there."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Have a way to the daemon, while the body runs; nothing is asked yet.

        Raises:
            WrongArguments: There is no token to show.
        """
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        headers, root, auth = {**carried(os.environ), CLIENT: self.id}, "http://localhost/v1", None
        if isinstance(self.socket, DaemonUrl):
            transport = _Transport(verify=self.socket.context(), limits=limits)
            root, auth = f"{self.socket}/v1", _Token(self.socket)
        else:
            transport = _Transport(verify=trusting_nobody(), uds=str(self.socket), limits=limits)
        self._http = httpx.AsyncClient(transport=transport, base_url=root, headers=headers, auth=auth)
        async with self._http:
            yield

    async def once(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        wait: float = PROMPT,
    ) -> dict[str, Any]:
        """Ask once.

        Args:
            method: HTTP's.
            path: Below the API's root.
            body: What is sent.
            params: The query.
            wait: Seconds that the answer may take; infinite: for ever.

        Raises:
            NoDaemon: There is no answer.
            ClientUnknown: The daemon no longer knows this client.
            FleetingError, ValueError: It refuses.
        """
        timeout = httpx.Timeout(PROMPT, read=None if wait == inf else wait, pool=None)
        try:
            answer = await self._http.request(method, path, json=body, params=params, timeout=timeout)
            data = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise self._none(error) from error
        if not answer.is_success or not isinstance(data, dict):
            raise error_of(data.get("error") if isinstance(data, dict) else None)
        return data

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        wait: float = PROMPT,
    ) -> dict[str, Any]:
        """Ask until there is an answer: what is asked must mean the same the second time. As `once`.

        A daemon that has come back is asked once it knows what this client had: before, it would say that there is no
        such lease.

        Raises:
            NoDaemon: There was none for too long.
        """
        while True:
            there = self._there
            with anyio.move_on_after(self.patience):
                await there.wait()
            if not there.is_set():
                raise NoDaemon(f"no daemon has answered at {self.socket} for {format_duration(self.patience)}")
            try:
                return await self.once(method, path, body, params=params, wait=wait)
            except NoDaemon:
                if there is self._there:  # `keep` has yet to notice; others may wait for it already
                    self._there = anyio.Event()
            except ClientUnknown:
                with suppress(NoDaemon):  # it has ended once more: the next one is asked
                    await self.begin()
            except DaemonRefused:
                if there is self._there:  # else it may have been restarted, and not know yet what this client had
                    raise

    async def keep(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Hear the news, and come back when the daemon does; raises `NoDaemon` only if it is not there at first."""
        begun, pause = False, FIRST_PAUSE
        gone_at = anyio.current_time()
        while True:
            try:
                await self.once("POST", "/client", {"ttl": self.ttl})
                async with aclosing(self._news()) as news:
                    async for message in news:
                        if message is not None:
                            self.hear(message)
                            continue
                        await self.begin()
                        pause = FIRST_PAUSE
                        self._there.set()
                        if not begun:
                            begun = True
                            task_status.started()
                gone_at = anyio.current_time()
            except (NoDaemon, ClientUnknown, DaemonRefused) as error:  # the last: it may know another token by now
                if not begun:
                    raise
                if self._there.is_set():
                    gone_at = anyio.current_time()
                log.debug("daemon_is_away", extra={"why": str(error)})
            if self._there.is_set():
                self._there = anyio.Event()
            if anyio.current_time() > gone_at + self.patience:
                self.lose(f"no daemon has answered at {self.socket} for {format_duration(self.patience)}")
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def listen(
        self, hear: Callable[[Mapping[str, Any]], None], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Hear what happens to the fleet; what happens while the daemon is away is missed.

        Raises:
            DaemonRefused: That is not for this user. Only at first.
        """
        begun = False
        while True:
            await self._there.wait()
            try:
                async with aclosing(self.stream("/events")) as events:
                    async for event in events:
                        if event is not None:
                            hear(event)
                        elif not begun:
                            begun = True
                            task_status.started()
            except NoDaemon as error:
                log.debug("no_events", extra={"why": str(error)})
            except DaemonRefused:
                if not begun:
                    raise
            await anyio.sleep(LONGEST_PAUSE)

    async def _news(self) -> AsyncGenerator[Mapping[str, Any] | None]:
        """Give what the daemon reports to this client, as `stream` does."""
        try:
            async with aclosing(self.stream("/client/events")) as news:
                async for message in news:
                    yield message
        except DaemonRefused as error:
            raise NoDaemon(f"the daemon at {self.socket} does not report; use its own release") from error

    async def stream(self, path: str) -> AsyncGenerator[Mapping[str, Any] | None]:
        """Give what the daemon streams, after a None once it does; ends when the daemon does.

        Raises:
            NoDaemon: There is no answer, or no sign of life any more.
            DaemonRefused: It is not for this user.
        """
        timeout = httpx.Timeout(PROMPT, read=SILENCE, pool=None)
        try:
            async with self._http.stream("GET", path, timeout=timeout) as answer:
                if not answer.is_success:
                    await answer.aread()
                    data = answer.json()
                    raise DaemonRefused(str(error_of(data.get("error") if isinstance(data, dict) else None)))
                yield None
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))
        except (httpx.HTTPError, ValueError) as error:
            raise self._none(error) from error

    def _none(self, error: Exception) -> NoDaemon:
        why = _ERRNO.sub("", str(error)) or type(error).__name__
        return NoDaemon(f"no daemon answers at {self.socket} ({why}); is it running?")
