"""A headless Chromium, and pages in it that are watched: whatever goes wrong in one fails the test."""

from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which
from typing import Any, Literal

from attrs import define, field
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

PATIENCE = 500_000
"""Milliseconds until Playwright reports what it waits for, which only Playwright knows. It is just below the limit of
a page's test, 600 s."""

NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""How Chromium ends a request when the machine gets or loses an address, as with each network of Docker; it is asked
again by the page, or by `go`.
"""

DESKTOP, PHONE = (1280, 860), (360, 780)
"""Width and height, in pixels."""

TRIES = 5
"""So often a network may change while one page is loaded."""

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
"""What axe looks for."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run one while the body does."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=which("chromium"),
            timeout=PATIENCE,
            args=["--disable-dev-shm-usage"],  # containers have little of it
        )
        try:
            yield browser
        finally:
            browser.close()


@define
class Window:
    """A browser's window with cookies of its own."""

    page: Page
    troubles: list[str] = field(factory=list)
    """What went wrong, such as what the page's policy has forbidden."""

    def forgive(self) -> None:
        """Forget what was meant to go wrong, such as a request that is refused."""
        self.troubles.clear()

    def violations(self) -> list[str]:
        """What axe finds that keeps people out."""
        found: Any = Axe().run(self.page, options={"runOnly": TAGS, "resultTypes": ["violations"]}).response
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
            for each in found["violations"]
        ]

    def is_too_wide(self) -> bool:
        """Whether one has to scroll sideways."""
        wide = self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        return bool(wide)


def go(page: Page, url: str) -> None:
    """Go to an address, also while the machine's networks change."""
    for _ in range(TRIES):
        try:
            page.goto(url)
        except Error as error:
            if NETWORK_CHANGED not in error.message:
                raise
        else:
            return
    page.goto(url)


@contextmanager
def window(
    browser: Browser, size: tuple[int, int] = DESKTOP, *, scheme: Literal["light", "dark"] = "light", scale: float = 1.0
) -> Iterator[Window]:
    """Open one while the body runs; nothing may go wrong in it that is not forgiven."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,
        device_scale_factor=scale,
        reduced_motion="reduce",
        timezone_id="UTC",
        locale="en-GB",
    )
    context.set_default_timeout(PATIENCE)
    opened = Window(context.new_page())

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and NETWORK_CHANGED not in message.text:
            opened.troubles.append(message.text)

    opened.page.on("console", hear)
    opened.page.on("pageerror", lambda error: opened.troubles.append(str(error)))
    try:
        yield opened
        assert opened.troubles == []
    finally:
        context.close()
