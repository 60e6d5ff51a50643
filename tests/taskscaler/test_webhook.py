"""The webhook: what it sends, what it does about a server that fails, and that no scaler suffers from either."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import repeat
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread
from attrs import define, evolve, field

from fleeting import ConfigError, PluginNotFound
from fleeting.testing import FakeCloud, FakeGroup, virtual_time
from taskscaler import Pool, Taskscaler
from taskscaler._jobsfile import read_jobs_file
from taskscaler._observe import LeaseEvent
from taskscaler.observers import available_observers, load_observer
from taskscaler.observers.webhook import FAREWELL, FAREWELL_IN_TROUBLE, MOST_AT_ONCE, Webhook, WebhookConfig
from tests.taskscaler.scaling import virtual_clock

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

URL = "https://hooks.example.com/T00/SECRET-PATH"
SECRET = "SECRET-TOKEN"


@contextmanager
def listening(answer: Callable[[BaseHTTPRequestHandler, bytes], None]) -> Iterator[HTTPServer]:
    """Listen on a free port; what is asked goes to *answer*, once, with the body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer(self, self.rfile.read(int(self.headers["Content-Length"])))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.timeout = 60
        yield server


def accept(handler: BaseHTTPRequestHandler) -> None:
    """Answer that all is well."""
    handler.send_response(204)
    handler.end_headers()


@define
class Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes over a network."""

    chunks: Iterator[bytes] = field(factory=lambda: iter(()))
    pause: float = 0.0
    """Seconds before each chunk."""

    status: int = 200
    length: int | None = 0
    """What the server says of it; None: nothing."""

    sent: int = 0
    """Bytes of it that were asked for."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Send it."""
        for chunk in self.chunks:
            await anyio.sleep(self.pause)
            self.sent += len(chunk)
            yield chunk

    def answer(self) -> httpx.Response:
        """The answer with this body."""
        headers = {} if self.length is None else {"Content-Length": str(self.length)}
        return httpx.Response(self.status, headers=headers, stream=self)


@define
class Server:
    """What the server got, and how it answers: by each entry of *answers* once, then well."""

    answers: list[int | Exception | float | Body] = field(factory=list)
    """A status, an error of the network, seconds that it takes, or a body without end."""

    bodies: list[dict[str, Any]] = field(factory=list)
    headers: list[httpx.Headers] = field(factory=list)
    tries: int = 0

    async def handle(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.tries += 1
        body = Body()
        match self.answers.pop(0) if self.answers else body:
            case Exception() as error:
                raise error
            case float(seconds):
                await anyio.sleep(seconds)
            case Body() as body:
                pass
            case int(status):
                body = Body(status=status)
        if body.status == 200:
            self.bodies.append(json.loads(request.content))
            self.headers.append(request.headers)
        return body.answer()

    def hook(self, **settings: Any) -> Webhook:  # noqa: ANN401  (the fields of a `WebhookConfig`)
        """A webhook that sends here."""
        config = WebhookConfig(url=URL, headers={"Authorization": f"Bearer {SECRET}"}, **settings)
        return Webhook(config, transport=httpx.MockTransport(self.handle))

    @property
    def keys(self) -> list[str]:
        """Of which leases it heard, in order."""
        return [event["key"] for body in self.bodies for event in body["events"]]


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    """What the webhook has logged: each event's name, and why it fails or how many events were lost."""
    keys = {"webhook_fails": "why", "webhook_recovered": "events_lost", "webhook_events_lost": "events"}
    ours = [record for record in caplog.records if record.name == "taskscaler.webhook"]
    return [(record.message, vars(record)[keys[record.message]]) for record in ours]


def lease(key: str) -> LeaseEvent:
    """Something that happened."""
    return LeaseEvent(at=1.0, key=key, pool="spot", instance="i-1", slot=0, what="acquired")


async def test_what_a_scaler_does_arrives_in_order() -> None:
    """Every event, once, as the record of the fleet has it; also what happens last."""
    server = Server()
    group = FakeGroup(FakeCloud())
    pool = Pool(group, name="spot", dial=group.dial)
    seen: list[object] = []
    async with (
        Taskscaler(
            pool, clock=virtual_clock(), observers=[server.hook(), seen.append], delete_instances_on_shutdown=True
        ) as scaler,
        scaler.acquire("job"),
    ):
        await anyio.sleep(10)
    events = [event for body in server.bodies for event in body["events"]]
    assert len(events) == len(seen)
    assert {body["version"] for body in server.bodies} == {1}
    assert [event["what"] for event in events if event["event"] == "lease"] == ["acquired", "released"]
    assert {event["pool"] for event in events if event["event"] == "lease"} == {"spot"}
    assert events[-1]["state"] == "gone"
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {SECRET}"}


async def test_only_what_was_asked_for_is_sent() -> None:
    """Kinds of events that are not named are not queued either."""
    server = Server()
    async with server.hook(events=("instance",)) as hook:
        hook(lease("a"))
    assert server.tries == 0


@pytest.mark.parametrize("trouble", [500, 503, 429, httpx.ConnectError("refused"), httpx.ReadTimeout("slow")], ids=str)
async def test_a_passing_trouble_costs_nothing(trouble: int | Exception) -> None:
    """It is tried again, and what happened meanwhile follows, all in order."""
    server = Server([trouble, trouble])
    async with server.hook() as hook:
        hook(lease("a"))
        await anyio.sleep(0.1)
        hook(lease("b"))
        await anyio.sleep(100)
        assert server.keys == ["a", "b"]
    assert server.tries == 4


async def test_what_a_server_will_not_have_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    """At once if it says so, after some tries if it is not there; what comes later is sent."""
    server = Server([403, *[500] * 3])
    with caplog.at_level(logging.INFO):
        async with server.hook(attempts=3) as hook:
            for key in ("a", "b", "c"):
                hook(lease(key))
                await anyio.sleep(200)
    assert server.keys == ["c"]
    assert server.tries == 5
    assert told(caplog) == [("webhook_fails", "the server answers 403 Forbidden"), ("webhook_recovered", 2)]


async def test_a_server_that_is_down_is_two_lines_however_often_it_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    """One when it begins and one when it is over, and none of the libraries' own."""
    server = Server([500] * 25)
    with caplog.at_level(logging.INFO):
        async with server.hook(attempts=6) as hook:
            for number in range(100):
                hook(lease(f"{number}"))
                await anyio.sleep(10)
            await anyio.sleep(100)
    assert server.tries > 25
    (_, why), (recovered, lost) = told(caplog)
    assert (why, recovered) == ("the server answers 500 Internal Server Error", "webhook_recovered")
    assert lost + len(server.keys) == 100
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING] == ["taskscaler.webhook"] * 2


async def test_leaving_hardly_waits_for_a_server_that_is_down(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried once more at once, though the next try was due in a minute."""
    server = Server([httpx.ConnectError("refused")] * 1000)
    with caplog.at_level(logging.INFO):
        async with server.hook(attempts=100) as hook:
            for key in ("a", "b"):
                hook(lease(key))
                await anyio.sleep(300)
            tries, begun = server.tries, anyio.current_time()
    assert server.tries > tries
    assert anyio.current_time() - begun <= FAREWELL_IN_TROUBLE
    assert told(caplog) == [("webhook_fails", "ConnectError"), ("webhook_events_lost", 2)]


async def test_one_that_came_back_meanwhile_hears_the_last_events() -> None:
    """The end of a batch is what people wait for."""
    server = Server([500] * 8)
    async with server.hook(attempts=100) as hook:
        hook(lease("a"))
        await anyio.sleep(20)
        assert server.keys == []
        hook(lease("b"))
        server.answers.clear()
    assert server.keys == ["a", "b"]


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize(
    ("body", "most"),
    [
        (Body(repeat(bytes(1 << 20)), length=None), 0),
        (Body(repeat(b"x"), length=1 << 40), 0),
        (Body(repeat(b"x"), 6.0, length=99), 2),
    ],
    ids=["no length", "too long", "slow"],
)
async def test_an_answer_without_an_end_is_not_received(body: Body, most: int, status: int) -> None:
    """Its status is all that counts, so it is tried neither again nor for long; what comes later is sent."""
    body = evolve(body, status=status)
    server = Server([body])
    async with server.hook() as hook:
        for key in ("a", "b"):
            hook(lease(key))
            await anyio.sleep(20)
        assert server.keys == (["a", "b"] if status == 200 else ["b"])
    assert server.tries == 2
    assert body.sent <= most


@pytest.mark.parametrize("length", [0, 3, 99_999])
async def test_a_short_answer_is_received_so_that_its_connection_can_be_used_again(length: int) -> None:
    """The body goes nowhere."""
    body = Body(iter([bytes(length)]), length=length)
    server = Server([body])
    async with server.hook() as hook:
        hook(lease("a"))
    assert (server.keys, body.sent) == (["a"], length)


async def test_a_try_takes_no_longer_than_it_may(caplog: pytest.LogCaptureFixture) -> None:
    """Also if the server goes on saying something, so that no single wait is long."""
    server = Server([1e6, 1e6])
    async with server.hook(attempts=2, timeout=5.0) as hook:
        hook(lease("a"))
        await anyio.sleep(60)
    assert told(caplog) == [("webhook_fails", "the server did not answer within 5s"), ("webhook_events_lost", 1)]


async def test_no_log_line_names_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    """Neither ours nor those of the libraries, however it goes; nor does anything that is printed of the objects."""
    server = Server([500, httpx.ConnectError(f"no way to {URL}"), 404])
    with caplog.at_level(logging.DEBUG):
        async with server.hook() as hook:
            for key in ("a", "b"):
                hook(lease(key))
                await anyio.sleep(100)
            assert "SECRET" not in repr(hook) + repr(hook._config)
    assert caplog.records
    for record in caplog.records:
        assert "SECRET" not in f"{record.getMessage()} {vars(record)!r}"


async def test_a_full_queue_loses_events_and_delays_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """What there is no room for is counted; whoever tells of it never waits."""
    server = Server([50.0])
    async with server.hook(queue=5, timeout=100.0) as hook:
        hook(lease("first"))
        await anyio.sleep(1)
        for number in range(8):
            hook(lease(f"{number}"))
        await anyio.sleep(100)
        hook(lease("last"))
    assert server.keys == ["first", "0", "1", "2", "3", "4", "last"]
    assert told(caplog) == [("webhook_fails", "the queue was full"), ("webhook_recovered", 3)]


async def test_many_go_in_few_requests() -> None:
    """What waits goes together, up to a bound."""
    server = Server()
    async with server.hook() as hook:
        for number in range(2 * MOST_AT_ONCE + 50):
            hook(lease(f"{number}"))
    assert [len(body["events"]) for body in server.bodies] == [100, 100, 50]


async def test_leaving_waits_for_a_server_that_hangs_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    """The last events are lost, which is told; and a cancellation from outside does not lose them sooner."""
    server = Server([1e6])
    begun = anyio.current_time()
    with anyio.move_on_after(1):
        async with server.hook(timeout=1e7) as hook:
            hook(lease("a"))
            await anyio.sleep_forever()
    assert anyio.current_time() - begun == pytest.approx(1 + FAREWELL)
    why = "there was no time left to send the last events"
    assert told(caplog) == [("webhook_fails", why), ("webhook_events_lost", 1)]


async def test_an_error_of_the_body_is_raised_as_it_is() -> None:
    """Not wrapped in a group; and what happened before it is sent."""
    server = Server()
    with pytest.raises(ZeroDivisionError):
        async with server.hook() as hook:
            hook(lease("a"))
            raise ZeroDivisionError
    assert server.keys == ["a"]


# --- in a file --------------------------------------------------------------------------------------------

FILE = """
    [autoscaler]
    plugin = "local"
    [autoscaler.observers.webhook]
    url = "https://hooks.example.com/T00/SECRET-PATH"
    headers = { Authorization = "Bearer SECRET-TOKEN" }
    events = ["lease"]
    {more}
    [[jobs]]
    name = "a"
    script = "true"
"""


def read(directory: Path, more: str = "") -> Any:  # noqa: ANN401  (a jobs file)
    """Read a file with a webhook."""
    path = directory / "jobs.toml"
    path.write_text(dedent(FILE).replace("{more}", more))
    return read_jobs_file(path)


def test_a_file_names_its_observers(tmp_path: Path) -> None:
    """Found by the name of their entry point."""
    (hook,) = read(tmp_path).observers
    assert isinstance(hook, Webhook)
    assert available_observers() == ["metrics", "traces", "webhook"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("timeout = 3", "autoscaler.observers.webhook.timeout: expected"),
        ("retries = 3", "unknown key `retries` in [autoscaler.observers.webhook]"),
        (
            "[autoscaler.observers.webhok]",
            "autoscaler.observers.webhok: 'webhok' is not an installed plugin",
        ),
    ],
)
def test_what_is_wrong_with_an_observer_is_told_where_it_stands(tmp_path: Path, more: str, said: str) -> None:
    """One line each, in which no secret stands."""
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, more)
    assert said in str(caught.value).replace('"', "'")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["hooks.example.com", "ftp://SECRET.example.com", "https:///SECRET"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """And not shown, since it may be a secret with a slip in it."""
    with pytest.raises(ConfigError, match="a url that begins with https://") as caught:
        load_observer("webhook", {"url": url})
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "settings", "accepted"),
    [
        ("http://hooks.example.com/", {}, True),
        ("http://hooks.example.com/", {"headers": {"Authorization": SECRET}}, False),
        ("http://hooks.example.com/", {"headers": {"X-Token": SECRET}}, False),
        ("http://me:SECRET@hooks.example.com/", {}, False),
        ("http://localhost.example.com/", {"headers": {"Authorization": SECRET}}, False),
        ("http://hooks.example.com/", {"headers": {"Authorization": SECRET}, "allow_plaintext": True}, True),
        ("HTTPS://me:SECRET@hooks.example.com/", {"headers": {"Authorization": SECRET}}, True),
        ("http://localhost:8080/", {"headers": {"Authorization": SECRET}}, True),
        ("http://127.0.0.2/", {"headers": {"Authorization": SECRET}}, True),
        ("http://[::1]/", {"headers": {"Authorization": SECRET}}, True),
    ],
)
def test_headers_do_not_go_over_a_network_in_plain_text(
    url: str,
    settings: dict[str, Any],
    accepted: bool,  # noqa: FBT001  (an example's outcome)
) -> None:
    """Unless that was asked for; what stays on this machine may."""
    if accepted:
        load_observer("webhook", {"url": url, **settings})
        return
    with pytest.raises(ConfigError, match=r"url that begins with https://, because .* or allow_plaintext") as caught:
        load_observer("webhook", {"url": url, **settings})
    assert "SECRET" not in str(caught.value)


def test_an_unknown_observer_is_not_found() -> None:
    """With those that there are."""
    with pytest.raises(PluginNotFound, match="webhook"):
        load_observer("webhok", {})


# --- over a network ---------------------------------------------------------------------------------------


class TestForReal:
    """On both backends, in real time."""

    @pytest.fixture(params=["asyncio", "trio"])
    def anyio_backend(self, request: pytest.FixtureRequest) -> str:
        """Not in virtual time."""
        return str(request.param)

    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Give the last events longer than a user would wait: how long they take, a busy machine decides."""
        monkeypatch.setattr("taskscaler.observers.webhook.FAREWELL", 60.0)

    async def test_a_server_that_never_ends_is_hung_up_on(self) -> None:
        """Over a real connection: it notices, and the next event gets another one."""
        sent: list[int] = []

        def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
            handler.send_response(200)
            handler.end_headers()  # without a length, the body ends with the connection
            with suppress(OSError):
                while sum(sent) < 1 << 28:
                    sent.append(handler.wfile.write(bytes(1 << 16)))

        with listening(answer) as server:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, server.handle_request)
                async with Webhook(WebhookConfig(url=f"http://127.0.0.1:{server.server_port}/")) as hook:
                    hook(lease("a"))
        assert sum(sent) < 1 << 26

    async def test_what_is_for_this_machine_is_shown_to_no_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The headers would go to it in plain text, whatever machine it is on."""
        got: list[tuple[str, str]] = []

        def answer(handler: BaseHTTPRequestHandler, _: bytes) -> None:
            got.append((handler.path, handler.headers["Authorization"]))
            accept(handler)

        with listening(answer) as server, listening(answer) as proxy:
            monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
            proxy.timeout = 0
            url = f"http://127.0.0.1:{server.server_port}/here"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, server.handle_request)
                async with Webhook(WebhookConfig(url=url, headers={"Authorization": SECRET}, timeout=60)) as hook:
                    hook(lease("a"))
            proxy.handle_request()
        assert got == [("/here", SECRET)]

    async def test_it_speaks_http(self) -> None:
        """A server of the standard library understands it."""
        got: list[bytes] = []

        def answer(handler: BaseHTTPRequestHandler, body: bytes) -> None:
            got.append(body)
            accept(handler)

        with listening(answer) as server:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(to_thread.run_sync, server.handle_request)
                async with Webhook(WebhookConfig(url=f"http://127.0.0.1:{server.server_port}/")) as hook:
                    hook(lease("a"))
        assert [event["key"] for body in got for event in json.loads(body)["events"]] == ["a"]
