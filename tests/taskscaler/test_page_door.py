"""The way to the status page, over real connections: who gets in, what they may see, and what they may change."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import trustme
from anyio.streams.buffered import BufferedByteReceiveStream
from attrs import evolve

from taskscaler._errors import SocketRefused
from taskscaler.serve._page import _watch
from taskscaler.serve._page._door import HEADERS
from taskscaler.serve._page._passes import LINK_LASTS, PASS_LASTS
from taskscaler.serve._tcp import Entrance, Listen
from tests.taskscaler.page_moments import MONDAY, Moment, many
from tests.taskscaler.paged import Stage
from tests.time_limits import NEVER_REACHED

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def shown(moment: Moment | None = None, **settings: Any) -> AsyncIterator[tuple[Stage, httpx.AsyncClient]]:  # noqa: ANN401
    """A page, and a browser without a pass."""
    stage = Stage(moment or many(3), **settings)
    async with anyio.create_task_group() as tasks:
        await tasks.start(stage.run)
        own = f"http://127.0.0.1:{stage.port}"
        async with httpx.AsyncClient(base_url=own, headers={"origin": own}, timeout=NEVER_REACHED) as browser:
            yield stage, browser
        stage._ending.set()


async def enter(stage: Stage, browser: httpx.AsyncClient, *, changes: bool = False) -> Mapping[str, Any]:
    """Open a link; returns what the page learns."""
    secret = stage.link(changes=changes).partition("#link=")[2]
    answer = await browser.post("/session", json={"link": secret})
    assert answer.status_code == 200
    found: Mapping[str, Any] = answer.json()
    return found


@asynccontextmanager
async def listening(stage: Stage, browser: httpx.AsyncClient) -> AsyncIterator[BufferedByteReceiveStream]:
    """Open the stream, and hang up in the end."""
    cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    head = f"GET /stream HTTP/1.1\r\nhost: 127.0.0.1:{stage.port}\r\ncookie: {cookies}\r\n\r\n"
    async with await anyio.connect_tcp("127.0.0.1", stage.port) as connection:
        await connection.send(head.encode())
        yield BufferedByteReceiveStream(connection)


async def next_event(stream: BufferedByteReceiveStream) -> tuple[str, Mapping[str, Any]]:
    """Give the next thing that the stream tells."""
    while True:
        found = await stream.receive_until(b"\n\n", 1 << 22)
        if b"\ndata: " in found:
            name, _, data = found.rpartition(b"event: ")[2].partition(b"\ndata: ")
            return name.decode(), json.loads(data)


async def first_event(stage: Stage, browser: httpx.AsyncClient) -> tuple[str, Mapping[str, Any]]:
    """Give the first thing that the stream tells."""
    async with listening(stage, browser) as stream:
        return await next_event(stream)


ASKED = (("GET", "/session"), ("GET", "/stream"), ("GET", "/explain?instance=i"))
CHANGES = ("/cordon", "/uncordon", "/retain", "/unretain", "/drain")


async def test_without_a_link_nothing_of_the_fleet_is_shown() -> None:
    """The page itself is there, with nothing in it; all else is refused, and says what to do."""
    async with shown() as (stage, browser):
        assert (await browser.get("/")).status_code == 200
        for method, path in ASKED:
            answer = await browser.request(method, path)
            assert (answer.status_code, "taskscaler link" in answer.text) == (401, True)
            assert "i-0001" not in answer.text
        for path in CHANGES:
            assert (await browser.post(path, json={"instance": "default/i-0001"})).status_code == 401
        assert stage.scaler.held == stage.drained == []


async def test_a_link_is_traded_once_and_in_time_for_a_cookie_that_only_the_page_sends() -> None:
    """Not by a script, nor by another site's page; a used or old link opens nothing, and says so."""
    async with shown() as (stage, browser):
        secret = stage.link().partition("#link=")[2]
        answer = await browser.post("/session", json={"link": secret})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"taskscaler-{stage.port}=")
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Domain" not in cookie
        assert secret not in cookie
        assert answer.json() == {"changes": False, "csrf": None}
        name, data = await first_event(stage, browser)
        assert (name, len(data["instances"])) == ("whole", 3)
        for each in (secret, "guessed", "", None, ["x"]):
            refusal = await browser.post("/session", json={"link": each})
            assert (refusal.status_code, "taskscaler link" in refusal.text) == (403, True)
        late = stage.link().partition("#link=")[2]
        stage.clock.at += LINK_LASTS
        assert (await browser.post("/session", json={"link": late})).status_code == 403
        stage.clock.at += PASS_LASTS
        assert (await browser.get("/session")).status_code == 401


async def test_a_link_for_looking_changes_nothing() -> None:
    """Not even with somebody else's token."""
    async with shown() as (stage, browser), httpx.AsyncClient(headers=browser.headers) as other:
        other.base_url = browser.base_url
        csrf = (await enter(stage, other, changes=True))["csrf"]
        await enter(stage, browser)
        for path in CHANGES:
            headers = {"x-taskscaler-csrf": csrf}
            answer = await browser.post(path, json={"instance": "default/i-0001"}, headers=headers)
            assert (answer.status_code, "taskscaler link --changes" in answer.text) == (403, True)
        assert stage.scaler.held == stage.drained == []


async def test_a_change_needs_the_page_s_own_token() -> None:
    """The cookie alone, which a browser may be led to send, does nothing; with both, it is done and shown."""
    async with shown() as (stage, browser):
        csrf = (await enter(stage, browser, changes=True))["csrf"]
        for headers in ({}, {"x-taskscaler-csrf": ""}, {"x-taskscaler-csrf": csrf[:-1]}):
            answer = await browser.post("/cordon", json={"instance": "default/i-0001"}, headers=headers)
            assert answer.status_code == 403
        assert stage.scaler.held == []
        browser.headers["x-taskscaler-csrf"] = csrf
        sent = {"instance": "default/i-0001", "why": "a disk fails"}
        for verb in ("cordon", "retain", "uncordon", "unretain"):
            assert (await browser.post(f"/{verb}", json=sent)).status_code == 200
        assert [each[:2] for each in stage.scaler.held] == [
            (verb, "default/i-0001") for verb in ("cordon", "retain", "uncordon", "unretain")
        ]
        for wrong in ({}, {"instance": "x", "other": 1}, {"instance": "x", "why": "y" * 10_000}):
            assert (await browser.post("/cordon", json=wrong)).status_code == 400
        assert (await browser.post("/drain", json={})).status_code == 200
        assert stage.drained == [False]
        assert (await browser.delete("/session")).status_code == 200
        assert (await browser.post("/drain", json={})).status_code == 401


async def test_who_has_only_the_cookie_may_only_look() -> None:
    """Browsers send it to all ports of the host, others' too; what permits changes is told once, and not for it."""
    async with shown() as (stage, browser):
        csrf = str((await enter(stage, browser, changes=True))["csrf"])
        for path in ("/", "/session"):
            answer = await browser.get(path)
            assert csrf not in answer.text + str(answer.headers)
        assert (await browser.get("/session")).json() == {"entered": True, "changes": True, "here": False}
        refusal = await browser.post("/drain", json={})
        assert (refusal.status_code, "taskscaler link --changes" in refusal.text) == (403, True)
        assert stage.drained == []
        kept = {"x-taskscaler-csrf": csrf}
        assert (await browser.get("/session", headers=kept)).json() == {"entered": True, "changes": True, "here": True}
        assert (await browser.post("/drain", json={}, headers=kept)).status_code == 200
        assert csrf not in repr(stage.passes)


async def test_two_daemons_behind_one_host_name_let_in_the_same_browser() -> None:
    """Forwarded from the same port of two machines to two of one: the cookie has the port that the browser sees."""
    async with shown() as (stage, browser):
        names = []
        for host in ("localhost:8081", "localhost:8082", "[::1]:8083", "localhost"):
            secret = stage.link().partition("#link=")[2]
            seen = {"host": host, "origin": f"http://{host}"}
            answer = await browser.post("/session", json={"link": secret}, headers=seen)
            names.append(answer.headers["set-cookie"].partition("=")[0])
            assert (await browser.get("/session", headers=seen)).status_code == 200
        assert names == [f"taskscaler-{port}" for port in (8081, 8082, 8083, 80)]


async def test_the_log_says_who_changed_what(caplog: pytest.LogCaptureFixture) -> None:
    """Of two who may, by the name of their link, which is none of its secrets."""
    caplog.set_level("INFO", "taskscaler.page")
    async with shown() as (stage, browser):
        secrets: list[str] = []
        kept: dict[str, str] = {}
        for verb in ("cordon", "retain"):
            link = stage.link(changes=True).partition("#link=")[2]
            given = (await browser.post("/session", json={"link": link})).json()
            kept = {"x-taskscaler-csrf": given["csrf"]}
            assert (
                await browser.post(f"/{verb}", json={"instance": "default/i-0001"}, headers=kept)
            ).status_code == 200
            secrets += [link, given["csrf"], *browser.cookies.values()]
        assert (await browser.post("/drain", json={}, headers=kept)).status_code == 200
    told = [(each.getMessage(), vars(each)) for each in caplog.records if each.name == "taskscaler.page"]
    links = [fields["link"] for event, fields in told if event == "page_link_made"]
    assert [fields["link"] for event, fields in told if event == "page_entered"] == links
    changed = [(fields["what"], fields["link"]) for event, fields in told if event == "page_changed"]
    assert changed == [("cordon", links[0]), ("retain", links[1]), ("drain", links[1])]
    assert len({*links}) == 2
    assert not any(secret in str(told) for secret in secrets)


HOSTILE: dict[str, tuple[str, str, Mapping[str, str], int]] = {
    "another name": ("GET", "/", {"host": "evil.example"}, 421),
    "another name for the stream": ("GET", "/stream", {"host": "evil.example:80"}, 421),
    "a page of another site": ("GET", "/stream", {"origin": "https://evil.example"}, 403),
    "a page of another port": ("GET", "/session", {"origin": "http://127.0.0.1:1"}, 403),
    "a page of no site": ("GET", "/session", {"origin": "null"}, 403),
    "a change from another site": ("POST", "/drain", {"origin": "https://evil.example"}, 403),
    "a change from nowhere": ("POST", "/drain", {"origin": ""}, 403),
    "a frame or an image of another site": ("GET", "/session", {"sec-fetch-site": "cross-site"}, 403),
    "a page of the same host, on another port": ("GET", "/stream", {"sec-fetch-site": "same-site"}, 403),
    "a file that is none of the page": ("GET", "/assets/..%2f_door.py", {}, 404),
    "a path that is not there": ("GET", "/v1/status", {}, 404),
    "another method": ("PUT", "/session", {}, 405),
}


@pytest.mark.parametrize(("method", "path", "headers", "status"), HOSTILE.values(), ids=HOSTILE)
async def test_only_the_page_itself_may_ask(method: str, path: str, headers: Mapping[str, str], status: int) -> None:
    """With a pass that may change things: what others bring a browser to send is refused, with all the headers."""
    async with shown() as (stage, browser):
        browser.headers["x-taskscaler-csrf"] = str((await enter(stage, browser, changes=True))["csrf"])
        answer = await browser.request(method, path, headers=headers)
        assert answer.status_code == status
        assert HEADERS.items() <= dict(answer.headers).items()
        assert stage.drained == []


async def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    """No script or style but the page's own files, nothing inline, no frame; files are kept, and asked about."""
    async with shown() as (_, browser):
        page = await browser.get("/")
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert " style=" not in page.text
        assert "http://" not in page.text.replace("http://www.w3.org", "")
        assert "https://" not in page.text
        tag = {"if-none-match": page.headers["etag"]}
        assert (await browser.get("/", headers=tag)).status_code == 304
        for name in ("main.js", "page.css", "icon.svg"):
            assert HEADERS.items() <= dict((await browser.get(f"/assets/{name}")).headers).items()


async def test_without_a_link_everybody_may_look_if_the_operator_says_so_and_nobody_may_change() -> None:
    """On this machine's own address only: elsewhere, the daemon does not start."""
    async with shown(without_link=True) as (stage, browser):
        assert (await browser.get("/session")).json() == {"entered": False, "changes": False, "here": False}
        assert (await first_event(stage, browser))[0] == "whole"
        assert (await browser.post("/drain", json={}, headers={"x-taskscaler-csrf": ""})).status_code == 403
        csrf = (await enter(stage, browser, changes=True))["csrf"]
        assert (await browser.post("/drain", json={}, headers={"x-taskscaler-csrf": csrf})).status_code == 200


async def test_under_tls_the_cookie_is_for_tls_only(tmp_path: Path) -> None:
    """And for this host only, by its name."""
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    async with shown(certificate=tmp_path / "tls.pem") as (stage, _):
        import ssl

        own = f"https://127.0.0.1:{stage.port}"
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        async with httpx.AsyncClient(base_url=own, headers={"origin": own}, verify=context) as browser:
            secret = stage.link().removeprefix(f"{own}/#link=")
            cookie = (await browser.post("/session", json={"link": secret})).headers["set-cookie"]
    assert cookie.startswith(f"__Host-taskscaler-{stage.port}=")
    assert "Secure" in cookie


def test_an_open_page_is_for_this_machine_only(tmp_path: Path) -> None:
    """Whoever asks for more is told what to do."""
    trustme.CA().issue_cert("x.example").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "tls.pem"))
    entrance = Entrance.of(Listen(host="0.0.0.0", port=0, certificate=tmp_path / "tls.pem"))  # noqa: S104
    with pytest.raises(SocketRefused, match="would show the fleet to all who reach"):
        entrance.check_own("--http-no-link")


async def test_a_browser_that_does_not_read_holds_nothing_up_and_misses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it has not read is not kept: in the end it gets one change, from what it saw to what is there."""
    monkeypatch.setattr(_watch, "TICK", 0.001)
    stage = Stage(many(3))
    stage.make(Entrance.of(Listen(host="127.0.0.1", port=0)))
    watch = stage.door.watch
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        async with aclosing(watch.told(MONDAY * 2)) as slow, aclosing(watch.told(MONDAY * 2)) as quick:
            watch.looking = 2
            watch._wanted.set()
            first = [await anext(slow), await anext(slow)]
            assert first[1].startswith(b"event: whole")
            await anext(quick)
            for number in range(20):
                fleet = stage.scene.fleet
                stage.scene = evolve(stage.scene, fleet=evolve(fleet, answer=f"answer {number}"))
                watch.look_again()
                while f"answer {number}".encode() not in await anext(quick):
                    pass
            late = await anext(slow)
            assert late.startswith(b"event: change")
            assert b"answer 19" in late
            assert len(watch._written) <= _watch.MOST_LOOKING
        tasks.cancel_scope.cancel()


async def test_who_comes_later_is_told_the_time_that_it_is_then() -> None:
    """Though the rest is written once for all: ages and the timeline begin with that time."""
    async with shown(without_link=True) as (stage, browser), listening(stage, browser) as earlier:
        assert (await next_event(earlier))[1]["at"] == stage.clock.at
        stage.clock.at += 3600
        name, told = await first_event(stage, browser)
        assert (name, told["at"], len(told["instances"])) == ("whole", stage.clock.at, 3)


async def test_so_many_browsers_are_told_and_one_too_many_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries again by itself; one who came by a link has room where strangers have taken all of theirs."""
    monkeypatch.setattr("taskscaler.serve._page._door.MOST_LOOKING", 2)
    async with shown(without_link=True) as (stage, browser), listening(stage, browser) as first:
        await next_event(first)
        second = await browser.get("/stream")
        assert (second.status_code, "event: full" in second.text, "retry: 10000" in second.text) == (200, True, True)
        await enter(stage, browser)
        assert (await first_event(stage, browser))[0] == "whole"


async def test_who_asks_only_for_the_head_of_the_stream_takes_no_place() -> None:
    """It ends at once, instead of pouring what nobody is sent."""
    async with shown(without_link=True) as (stage, browser):
        answer = await browser.head("/stream", timeout=None)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert stage.door.watch.looking == 0


async def test_a_stream_ends_with_its_pass() -> None:
    """Who has left, or whose time is up, is told nothing more."""
    async with shown() as (stage, browser):
        await enter(stage, browser)
        async with listening(stage, browser) as stream:
            await next_event(stream)
            await browser.delete("/session")
            fleet = stage.scene.fleet
            stage.scene = evolve(stage.scene, fleet=evolve(fleet, answer="a secret"))
            stage.door.watch.look_again()
            rest = await stream.receive_until(b"0\r\n\r\n", 1 << 20)
    assert b"a secret" not in rest
