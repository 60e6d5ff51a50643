"""The status page in a real browser: what people see, and what they can do with it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from playwright.sync_api import Browser, Locator, expect

from taskscaler.serve._page._passes import Passes
from tests.e2e.browsers import DESKTOP, PHONE, Window, chromium, go, window
from tests.taskscaler.page_moments import WAITING, Moment, at_the_ceiling, busy, cordoned, hostile, many
from tests.taskscaler.paged import Stage, staged
from tests.taskscaler.services import command, serving, write

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium"), pytest.mark.timeout(600)]


SEEN = """(seen) => {
  Object.defineProperty(document, "hidden", { get: () => !seen, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
"""Brings a tab to the front, or has another one hide it."""

HELD = "window.requestAnimationFrame = () => 0"
"""The page's own: what it has put off until a later frame does not come."""

BELOW = """() => [...document.querySelectorAll("#grid button")].at(-1).getBoundingClientRect().bottom - innerHeight"""
"""How far the last tile is below the window's edge, in pixels."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests."""
    with chromium() as running:
        yield running


def enter(stage: Stage, opened: Window, *, changes: bool = False) -> None:
    """Open a link, and wait until the fleet is there."""
    go(opened.page, stage.link(changes=changes))
    expect(opened.page.locator("#connection")).to_have_text("live")
    expect(opened.page.locator("#fleet")).to_be_visible()


def tile(opened: Window, place: str) -> Locator:
    """The button of an instance."""
    return opened.page.locator(f'#grid button[data-place="{place}"]')


def test_a_link_opens_the_page_once_and_leaves_nothing_to_find(browser: Browser) -> None:
    """Neither in the address, nor for a script; somebody else who has the link learns that they need another.

    So does who has signed out.
    """
    with staged(Moment()) as stage:
        with window(browser) as opened:
            link = stage.link()
            go(opened.page, link)
            expect(opened.page.get_by_text("There are no instances.")).to_be_visible()
            expect(opened.page.get_by_text("No job waits for a slot.")).to_be_visible()
            expect(opened.page.get_by_text("Nothing was decided yet.")).to_be_visible()
            assert opened.page.url == f"http://127.0.0.1:{stage.port}/"
            assert opened.page.evaluate("document.cookie") == ""
            opened.page.reload()
            expect(opened.page.locator("#connection")).to_have_text("live")
            assert opened.violations() == []
            opened.page.get_by_role("button", name="Sign out").click()
            expect(opened.page.locator("#enter")).to_be_visible()
            assert stage.passes._passes == {}
            opened.forgive()  # the refusals
        with window(browser) as other:
            go(other.page, link)
            expect(other.page.locator("#enter-why")).to_contain_text("This link is not good any more")
            expect(other.page.locator("#enter")).to_contain_text("taskscaler link")
            expect(other.page.locator("#fleet")).to_be_hidden()
            assert other.violations() == []
            other.forgive()  # the refusals


def in_words(name: str) -> str:
    """What a person has to be able to read."""
    return {
        "ceiling": "The limit of 3 instances (max_instances) is reached",
        "stock-out": "the cloud says: no capacity for m5.large in zone-a",
        "cordoned": "are cordoned by an operator and get no new work: disk errors, ticket OPS-4711",
    }[name]


@pytest.mark.parametrize(("name", "moment"), WAITING, ids=[name for name, _ in WAITING])
def test_why_jobs_wait_can_be_read_at_once(browser: Browser, name: str, moment: Callable[[], Moment]) -> None:
    """Without a click and without scrolling, on a desk and on a phone, in both schemes; and axe finds nothing."""
    with staged(moment()) as stage:
        for size in (DESKTOP, PHONE):
            with window(browser, size, scheme="light" if size == DESKTOP else "dark") as opened:
                enter(stage, opened)
                why = opened.page.locator(".reason")
                expect(why).to_contain_text(in_words(name))
                expect(why).to_be_in_viewport()
                expect(opened.page.locator(".waiters .age").first).to_have_text(re.compile(r"waits \d+"))
                assert not opened.is_too_wide()
                assert opened.violations() == []


def test_a_thousand_instances_are_shown_and_follow(browser: Browser, *, full: bool) -> None:
    """Each with its slots; a change is seen at its tile, and an instance that goes takes its own away."""
    with staged(many()) as stage, window(browser) as opened:
        enter(stage, opened)
        expect(opened.page.locator("#grid button")).to_have_count(1000)
        expect(tile(opened, "default/i-0003")).to_have_text("■□")
        fleet = stage.scene.fleet
        each = evolve(fleet.instances["default", "i-0003"], cordoned="a disk fails")
        rest = {place: other for place, other in fleet.instances.items() if place != ("default", "i-0004")}
        stage.show(evolve(stage.scene, fleet=evolve(fleet, instances={**rest, each.place: each})))
        expect(tile(opened, "default/i-0003")).to_have_text("✕■□")
        name = "i-0003, ready, 1 of 2 slots with a job, cordoned (a disk fails)"
        expect(tile(opened, "default/i-0003")).to_have_accessible_name(name)
        expect(tile(opened, "default/i-0004")).to_have_count(0)
        expect(opened.page.locator("#grid button")).to_have_count(999)
        if full:
            assert opened.violations() == []


def test_what_the_window_has_room_for_is_painted_first(browser: Browser) -> None:
    """The other tiles come in later frames, in order, or at once for who goes on with the keyboard."""
    with staged(many()) as stage, window(browser) as opened:
        opened.page.add_init_script(HELD)
        enter(stage, opened)
        tiles = opened.page.locator("#grid button")
        first = tiles.count()
        assert 100 < first < 1000
        assert opened.page.evaluate(BELOW) > 0
        tiles.first.focus()
        opened.page.keyboard.press("End")
        expect(tile(opened, "default/i-0999")).to_be_focused()
        assert opened.page.locator("#grid button").count() == 1000
        places = opened.page.evaluate(
            "[...document.querySelectorAll('#grid button')].map((each) => each.dataset.place)"
        )
        assert places == sorted(places)


def test_a_lost_connection_is_seen_and_comes_back(browser: Browser) -> None:
    """The last state stays, with its time; a daemon that was restarted knows no old cookie, and asks for a link."""
    with staged(busy()) as stage, window(browser, PHONE) as opened:
        enter(stage, opened)
        assert opened.violations() == []
        stage.stop()
        expect(opened.page.locator("#connection")).to_contain_text("connection lost; trying again. What you see is as")
        assert opened.page.locator("body").get_attribute("data-view") == "lost"
        expect(opened.page.locator("#grid button").first).to_be_visible()
        assert opened.violations() == []
        stage.start_again()
        expect(opened.page.locator("#connection")).to_have_text("live")
        stage.stop()
        stage.passes = Passes()
        stage.start_again()
        expect(opened.page.locator("#enter")).to_be_visible()
        expect(opened.page.locator("#fleet")).to_be_hidden()
        opened.forgive()  # requests that found nobody


def test_what_is_lost_while_the_page_loads_is_asked_for_again(browser: Browser) -> None:
    """A part of the page, or the answer to its link, as when a VPN is joined meanwhile: nobody has to load it again."""
    with staged(busy()) as stage, window(browser) as opened:
        for part in ("**/assets/lists.js", "**/assets/page.css", "**/session"):
            opened.page.route(part, lambda route: route.abort("connectionreset"), times=1)
        enter(stage, opened, changes=True)
        expect(opened.page.get_by_role("button", name="Drain")).to_be_visible()
        opened.forgive()  # the losses


def test_a_tab_that_nobody_sees_holds_no_connection(browser: Browser) -> None:
    """A browser has six for all its tabs; once it is seen again, it shows what has changed meanwhile."""
    with staged(many(3)) as stage, window(browser) as opened:
        enter(stage, opened)
        with opened.page.expect_event("requestfailed", lambda request: request.url.endswith("/stream")):
            opened.page.evaluate(SEEN, False)
        fleet = stage.scene.fleet
        stage.show(evolve(stage.scene, fleet=evolve(fleet, answer="all is well")))
        opened.page.evaluate(SEEN, True)
        expect(opened.page.locator("#answer")).to_have_text("All is well.")
        expect(opened.page.locator("#connection")).to_have_text("live")


def test_a_tab_that_is_opened_behind_another_asks_for_nothing_until_it_is_seen(browser: Browser) -> None:
    """One that is seen asks at once, and once: what is said before the page can hear it is kept."""
    with staged(many(3)) as stage, window(browser) as opened:
        enter(stage, opened)
        asked: list[str] = []
        opened.page.context.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
        opened.page.reload()
        expect(opened.page.locator("#grid button")).to_have_count(3)
        assert asked.count("stream") == 1
        assert asked.index("stream") < asked.index("session")
        asked.clear()
        behind = opened.page.context.new_page()
        behind.add_init_script(f"({SEEN})(false)")
        go(behind, opened.page.url)
        expect(behind.locator("#leave")).to_be_visible()
        assert "stream" not in asked
        behind.evaluate(SEEN, True)
        expect(behind.locator("#grid button")).to_have_count(3)


def test_everything_can_be_done_with_the_keyboard(browser: Browser) -> None:
    """Skip the head, go through the grid, open an instance, cordon it with a reason, and come back to where one was."""
    with staged(at_the_ceiling()) as stage, window(browser) as opened:
        enter(stage, opened, changes=True)
        keys, focused = opened.page.keyboard, opened.page.locator(":focus")
        keys.press("Tab")
        expect(focused).to_have_text("Skip to what the fleet does now")
        keys.press("Enter")
        expect(opened.page.locator("#main")).to_be_focused()
        for _ in range(5):  # four jobs that wait
            keys.press("Tab")
        tiles = opened.page.locator("#grid button")
        expect(tiles.first).to_be_focused()
        for key, number in (("ArrowRight", 1), ("End", 2), ("ArrowLeft", 1), ("Home", 0), ("ArrowDown", 2)):
            keys.press(key)
            expect(tiles.nth(number)).to_be_focused()
        place = str(tiles.nth(2).get_attribute("data-place"))
        keys.press("Enter")
        dialog = opened.page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"{place} is explained")
        assert opened.violations() == []
        opened.page.get_by_label("Why, for others to read").focus()
        keys.type("a disk fails")
        keys.press("Tab")
        keys.press("Enter")
        expect(dialog.get_by_role("button", name="Uncordon")).to_be_visible()
        assert stage.scaler.held == [("cordon", place, "a disk fails")]
        keys.press("Escape")
        expect(dialog).to_be_hidden()
        expect(tiles.nth(2)).to_be_focused()
        expect(tiles.nth(2)).to_contain_text("cordoned (a disk fails)")


def test_changes_are_offered_to_those_who_may_and_asked_about(browser: Browser) -> None:
    """Who may only look sees no button; a refusal is said where it was asked; draining needs a second yes.

    What permits it is kept in the tab that the link has opened, and in no other.
    """
    with staged(cordoned()) as stage:
        with window(browser) as looking:
            enter(stage, looking)
            expect(looking.page.get_by_role("button", name="Drain")).to_be_hidden()
            slots = looking.page.locator("#grid .slot")
            empty = ["□empty"] * 4  # of the cordoned: nobody gets one, so that they are not free
            expect(slots.filter(has_text="□")).to_have_text(empty)
            looking.page.locator("#grid button").first.click()
            expect(looking.page.get_by_role("dialog")).to_contain_text("is explained")
            expect(looking.page.locator("#hold")).to_be_hidden()
        with window(browser) as opened:
            enter(stage, opened, changes=True)
            opened.page.locator("#grid button").first.click()
            stage.scaler.refusal = "it is gone; choose another"
            opened.page.get_by_role("button", name="Retain", exact=True).click()
            expect(opened.page.locator("#details-result")).to_have_text("It is gone; choose another")
            opened.forgive()
            opened.page.get_by_role("button", name="Close").click()
            opened.page.get_by_role("button", name="Drain").click()
            opened.page.get_by_role("button", name="No", exact=True).click()
            assert stage.drained == []
            opened.page.get_by_role("button", name="Drain").click()
            assert opened.violations() == []
            opened.page.get_by_role("button", name="Yes, drain").click()
            expect(opened.page.get_by_role("dialog")).to_be_hidden()
            assert stage.drained == [False]
            opened.page.reload()
            expect(opened.page.get_by_role("button", name="Drain")).to_be_visible()
            other = opened.page.context.new_page()
            go(other, opened.page.url)
            expect(other.get_by_text("This tab can only look; open another link to make changes.")).to_be_visible()
            expect(other.get_by_role("button", name="Drain")).to_be_hidden()


def test_hostile_names_are_text(browser: Browser) -> None:
    """Markup and scripts in the names of jobs, instances, pools and clouds are shown as they are, on a phone too."""
    with staged(hostile()) as stage, window(browser, PHONE) as opened:
        enter(stage, opened, changes=True)
        expect(opened.page.locator("#grid")).to_contain_text("<img src=x onerror=")
        assert opened.page.locator("main img, main script").count() == 0
        assert opened.page.title() != "owned"
        assert not opened.is_too_wide()
        opened.page.locator("#grid button").first.click()
        expect(opened.page.get_by_role("dialog")).to_contain_text('found "<img src=x')  # the refusal of such a name
        assert not opened.is_too_wide()
        opened.forgive()


def test_a_daemon_shows_its_page_to_who_has_a_link(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed by a command over the socket; what is done on the page is done to the fleet, and survives a look by it.

    Output that is kept has no link in it; no token, over TCP either, makes one.
    """
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write(tmp_path)
    with serving(tmp_path, "--http", "127.0.0.1:0", "--stop-timeout", "1s") as service:
        said = next(line for line in service.lines if "status page" in line)
        assert said.endswith("; `taskscaler link` prints a link to it")
        assert "#link=" not in said
        status, printed = command("link", "--changes", "--socket", str(service.socket))
        link = printed.split()[0]
        assert (status, "good once, within 5m, to look and to change" in printed) == (0, True)
        assert link.startswith(said.split()[2].rstrip(";"))
        with window(browser) as opened:
            go(opened.page, link)
            first = opened.page.locator("#grid button").first
            expect(first).to_contain_text("free")
            first.click()
            opened.page.get_by_label("Why, for others to read").fill("a disk fails")
            opened.page.get_by_role("button", name="Cordon", exact=True).click()
            expect(opened.page.locator("#details-result")).to_have_text("Done: cordon.")
            opened.page.get_by_role("button", name="Close").click()
            expect(first).to_contain_text("cordoned (a disk fails)")
            cordoned_too = service.ask("GET", "/instances")["instances"][0]
            assert cordoned_too["cordoned"] == "a disk fails"
            expect(opened.page.locator("#pool-list")).to_contain_text("instance-hours, price unknown")
        service.ask("POST", "/drain", json={"delete": True})
        assert service.end() == 0
