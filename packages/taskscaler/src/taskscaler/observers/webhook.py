"""The observer ``webhook``: sends what happens to an HTTP server, as JSON.

What happened meanwhile goes in one request, in order, each event once: a body ``{"version": 1, "events": […]}`` whose
events are those of the scaler. A server that cannot be reached, that fails or that asks for patience is tried
again for a while; then these events are given up. A scaler never waits for a server: events that find the queue full
are lost. The log has a line when this begins and one when it is over, with how many events were lost, however often
the server was tried. Address and headers may hold secrets, and are never shown.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from ipaddress import ip_address
from types import TracebackType
from typing import Literal, Self

import anyio
from attrs import define, field, frozen
from attrs.validators import ge, gt

from fleeting import Duration
from fleeting.plugins import format_duration, one_line
from taskscaler._observe import KINDS, ScalerEvent, event_as_data
from taskscaler.observers._hooks import ObserverPlugin, hookimpl

try:
    import httpx
    import tenacity
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'taskscaler[webhook]'") from error

SCHEMA_VERSION = 1
"""Of the body; raised when a key changes its meaning or goes."""

MOST_AT_ONCE = 100
"""Events in one request."""

FAREWELL = 5.0
"""Seconds that are left at the end to send what happened last."""

FAREWELL_IN_TROUBLE = 2.0
"""Seconds that are left if the server fails: nobody is to wait for it."""

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 60.0
"""Seconds before another try; the pause doubles each time."""

MOST_JITTER = 1.0
"""Seconds that are added at random, so that not all who failed together come again together."""

LONGEST_LENGTH = 5
"""Digits of the length, in bytes, of an answer that is received; a server that has more to say is hung up on."""

NO_CONTENT = 204
"""The status of an answer without a body."""

LONGEST_REASON = 200
"""Bytes that the log shows of what a server says is wrong."""

ASKS_FOR_PATIENCE = frozenset({408, 425, 429})
"""Statuses below 500 for which another try is worth it."""

SERVER_FAILS = 500
"""The lowest status that says so."""

log = logging.getLogger("taskscaler.webhook")

Kind = Literal["instance", "lease", "decision"]


@frozen(kw_only=True)
class WebhookConfig:
    """``[autoscaler.observers.webhook]``."""

    url: str = field(repr=False)
    """Where to; the events are posted there."""

    headers: dict[str, str] = field(factory=dict, repr=False)
    """Added to each request, such as ``Authorization``."""

    events: tuple[Kind, ...] = ("instance", "lease", "decision")
    """Which kinds of events are sent."""

    timeout: Duration = field(default=10.0, validator=gt(0))
    """How long one try may take."""

    attempts: int = field(default=6, validator=ge(1))
    """How often a request is tried, with growing pauses between."""

    queue: int = field(default=1000, validator=ge(1))
    """So many events may wait to be sent."""

    allow_plaintext: bool = False
    """Whether the headers, or a password in the `url`, may be shown to everybody on the way."""

    def __attrs_post_init__(self) -> None:
        """What a validator says of a secret would not be shown."""
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL:
            address = httpx.URL()
        if address.scheme not in {"http", "https"} or not address.host:
            raise ValueError("a url that begins with https:// or http:// and names a server")
        if (self.headers or address.userinfo) and not (self.allow_plaintext or _is_private(address)):
            raise ValueError(
                "a url that begins with https://, because http:// would expose the headers on the network;"
                " or allow_plaintext = true"
            )


def _is_private(address: httpx.URL) -> bool:
    """Whether nobody on the way can read what is sent there: it is encrypted, or does not leave this machine."""
    return address.scheme == "https" or _stays_here(address)


def _stays_here(address: httpx.URL) -> bool:
    """Whether what is sent there does not leave this machine, unless a proxy is asked to send it."""
    host = address.host.rstrip(".").lower()
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class NotDelivered(Exception):
    """A request was not accepted; shows nothing of what was sent, nor where to."""

    def __init__(self, why: str, *, again: bool) -> None:
        """*again*: whether another try is worth it."""
        super().__init__(why)
        self.again = again


@define
class _Health:
    """Whether what happens arrives: each change of that is logged, not each try."""

    trouble: str = ""
    """Why it does not; empty if it does."""

    lost: int = 0
    """Events, since it does not."""

    def fail(self, why: str, *, lost: int = 0) -> None:
        """Something did not arrive, and may yet."""
        self.lost += lost
        if not self.trouble:
            self.trouble = why
            log.warning("webhook_fails", extra={"why": why})

    def recover(self) -> None:
        """Things arrive."""
        if self.trouble:
            log.warning("webhook_recovered", extra={"events_lost": self.lost})
            self.trouble, self.lost = "", 0

    def end(self) -> None:
        """Nothing more is sent."""
        if self.lost:
            log.warning("webhook_events_lost", extra={"events": self.lost, "why": self.trouble})


class Webhook:
    """The observer; an async context manager, entered once."""

    def __init__(self, config: WebhookConfig, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """Prepare; nothing is sent before it is entered. *transport*: how to; None: over the network."""
        self._config = config
        self._transport = transport
        self._dropped = 0
        self._health = _Health()

    def __repr__(self) -> str:
        """Show nothing of the settings."""
        return "<Webhook>"

    def __call__(self, event: ScalerEvent) -> None:
        """Queue the event, if it is of a kind that is to be sent and there is room."""
        if KINDS[type(event)] in self._config.events:
            try:
                self._send.send_nowait(event)
            except anyio.WouldBlock:
                self._dropped += 1

    async def __aenter__(self) -> Self:
        """Begin to send."""
        self._send, self._waiting = anyio.create_memory_object_stream[ScalerEvent](self._config.queue)
        self._stack, address = AsyncExitStack(), httpx.URL(self._config.url)
        self._stack.enter_context(_unlogged(self._config.url))
        self._client = await self._stack.enter_async_context(
            httpx.AsyncClient(
                headers=self._config.headers,
                timeout=self._config.timeout,
                transport=self._transport,
                # The environment's proxy would be shown in plain text what is not to leave this machine.
                trust_env=address.scheme == "https" or not _stays_here(address),
            )
        )
        self._sending, self._leaving = anyio.CancelScope(shield=True), anyio.Event()
        tasks = await self._stack.enter_async_context(anyio.create_task_group())
        tasks.start_soon(self._deliver, name="webhook")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Send what is left, within a bound, and end."""
        self._send.close()
        self._leaving.set()
        self._hasten(FAREWELL_IN_TROUBLE if self._health.trouble else FAREWELL)
        if isinstance(error, Exception):  # the body's own, which a task group would wrap
            await self._stack.__aexit__(None, None, None)
            return False
        return await self._stack.__aexit__(kind, error, trace)

    async def _deliver(self) -> None:
        """Send what comes, one request after the other, until there is nothing more to come."""
        left, in_hand = 0, list[ScalerEvent]()
        with self._sending, self._waiting:
            try:
                async for first in self._waiting:
                    in_hand = [first, *self._take(MOST_AT_ONCE - 1)]
                    await self._post(in_hand)
                    in_hand = []
            finally:
                left = len(in_hand) + self._waiting.statistics().current_buffer_used
        if self._sending.cancelled_caught:
            self._health.fail("there was no time left to send the last events", lost=left)
        self._health.end()

    def _hasten(self, seconds: float) -> None:
        """Leave no more time than that to send what is left."""
        self._sending.deadline = min(self._sending.deadline, anyio.current_time() + seconds)

    def _take(self, most: int) -> Sequence[ScalerEvent]:
        """What waits by now."""
        return [
            self._waiting.receive_nowait() for _ in range(min(most, self._waiting.statistics().current_buffer_used))
        ]

    async def _post(self, events: Sequence[ScalerEvent]) -> None:
        """Send them, or give them up."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._health.fail("the queue was full", lost=dropped)
        body = {"version": SCHEMA_VERSION, "events": [event_as_data(event) for event in events]}
        tries = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(self._config.attempts),
            wait=tenacity.wait_exponential(FIRST_PAUSE, LONGEST_PAUSE) + tenacity.wait_random(0, MOST_JITTER),
            retry=tenacity.retry_if_exception(_is_worth_another),
            sleep=self._pause,
            after=self._note_failure,
            reraise=True,
        )
        try:
            await tries(self._try, body)
        except NotDelivered as error:
            self._health.fail(str(error), lost=len(events))
        else:
            if not self._dropped and self._waiting.statistics().current_buffer_used <= self._config.queue // 2:
                self._health.recover()

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        """Log that a server fails at its first failure, not at the end of the last try."""
        if state.outcome is not None:
            self._health.fail(str(state.outcome.exception()))

    async def _pause(self, seconds: float) -> None:
        """Wait before the next try; who leaves cuts that short once, and then has little time."""
        if self._leaving.is_set():
            self._hasten(FAREWELL_IN_TROUBLE)
            await anyio.sleep(seconds)
        else:
            with anyio.move_on_after(seconds):
                await self._leaving.wait()

    async def _try(self, body: object) -> None:
        """Post once.

        Raises:
            NotDelivered: In words that hold no secret: those of the library name the address.
        """
        response = None
        try:
            with anyio.move_on_after(self._config.timeout):
                async with self._client.stream("POST", self._config.url, json=body) as response:
                    await _receive_rest(response)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotDelivered(type(error).__name__, again=isinstance(error, httpx.TransportError)) from None
        if response is None:
            patience = format_duration(self._config.timeout)
            raise NotDelivered(f"the server did not answer within {patience}", again=True)
        if not response.is_success:
            status = response.status_code
            again = status >= SERVER_FAILS or status in ASKS_FOR_PATIENCE
            words = one_line(f"the server answers {status} {response.reason_phrase}", LONGEST_REASON)
            raise NotDelivered(words, again=again)


async def _receive_rest(response: httpx.Response) -> None:
    """Receive the body if it says that it is short: else the connection could not be used again. Nobody needs it.

    It is taken as it is on the wire, since a kilobyte could be unpacked to a megabyte. Whatever goes wrong with it, the
    server has answered.
    """
    length = "0" if response.status_code == NO_CONTENT else response.headers.get("Content-Length", "")
    if length.isascii() and length.isdigit() and len(length) <= LONGEST_LENGTH:
        with suppress(httpx.HTTPError):
            async for _ in response.aiter_raw():
                pass


def _is_worth_another(error: BaseException) -> bool:
    return isinstance(error, NotDelivered) and error.again


@contextmanager
def _unlogged(url: str) -> Iterator[None]:
    """Keep the HTTP library's log from naming an address while the body runs."""
    named, logger = httpx.URL(url), logging.getLogger("httpx")

    def let_pass(record: logging.LogRecord) -> bool:
        return not isinstance(record.args, tuple) or named not in record.args

    logger.addFilter(let_pass)
    try:
        yield
    finally:
        logger.removeFilter(let_pass)


@hookimpl
def taskscaler_observer() -> ObserverPlugin:
    """Describe the observer."""
    return ObserverPlugin(config=WebhookConfig, observer=Webhook)
