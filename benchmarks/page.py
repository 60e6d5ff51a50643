"""What the status page costs: until a fleet of 1,000 is painted, and while ten of its instances change each second.

First paint: in headless Chromium, from when the address is asked for until the frame that has all in it that the window
has room for, the tiles of instances included, by the browser's own clock. Those below its edge come in the next frames;
until when all are painted is told beside it. The daemon: a real scaler over the cloud in memory and the page, in a
process of its own, whose CPU time is read before and after 20 seconds, with nobody who looks and with one browser that
does.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from time import process_time
from typing import Any

import anyio
from _figures import report
from _needs import CHROMIUM, run
from attrs import asdict, define, field

from fleeting import LoopClock, ScaleThrottle
from fleeting.testing import FakeCloud, FakeGroup
from taskscaler import Policy, Pool, Taskscaler
from taskscaler.serve import Server
from taskscaler.serve._page._door import Door
from taskscaler.serve._page._watch import Watch
from taskscaler.serve._tcp import Entrance, Listen, listening_on_tcp

ROOT = Path(__file__).parents[1]

INSTANCES = 1_000
CHANGES = 10
"""Each second."""

WIDTH, HEIGHT = 1280, 860
"""Of the window, in pixels."""

AT = "(name) => performance.getEntriesByName(name)[0].startTime"
MADE = "performance.getEntriesByName('fleet-shown')[0].detail.tiles"
IN_WINDOW = """() => [...document.querySelectorAll('#grid button')]
  .filter((each) => each.getBoundingClientRect().top < innerHeight).length"""

LOADS = 11
SECONDS = 20.0


@define
class Fleet:
    """What the page needs of a daemon."""

    scaler: Taskscaler = field(init=False)

    async def status(self) -> dict[str, object]:
        """Say what a daemon says of itself."""
        explanation = await self.scaler.explain()
        return {
            "fleet": "fleet.toml",
            "state": "serving",
            "answer": explanation.answer,
            "capacity": asdict(explanation.capacity),
            "pools": {pool.name: pool.counts() for pool in explanation.pools},
        }

    async def explain(self, *_: object) -> dict[str, object]:
        """Nobody asks."""
        raise NotImplementedError

    async def drain(self, _: float | None, *, delete: bool) -> bool:
        """Nobody asks for it."""
        raise NotImplementedError


async def serve() -> None:
    """Be the daemon: print where the page is, and, for each line that is read, the CPU time so far."""
    fleet, group, clock = Fleet(), FakeGroup(FakeCloud()), LoopClock()
    watch = Watch(fleet, clock)
    pool = Pool(group, dial=group.dial, max_instances=INSTANCES, scale_throttle=ScaleThrottle(limit=-1))
    policies = [Policy(idle_count=INSTANCES // 2, idle_time=600)]
    entrance = Entrance.of(Listen(host="127.0.0.1", port=0))
    fleet.scaler = Taskscaler(pool, policies=policies, observers=[watch.hear], delete_instances_on_shutdown=False)
    async with listening_on_tcp(entrance) as (listener,), fleet.scaler as scaler, anyio.create_task_group() as tasks:
        for number in range(INSTANCES // 2 - CHANGES):
            await scaler.acquire_lease(f"job-{number}")
        while len(await scaler.instances()) < INSTANCES - CHANGES or (await scaler.capacity()).unready:  # noqa: ASYNC110
            await anyio.sleep(0.1)
        door = Door(entrance, watch, fleet.explain, fleet, clock, without_link=True)
        tasks.start_soon(Server(door.app(), 64, entrance.admit).serve, listener)
        tasks.start_soon(watch.run)
        tasks.start_soon(change, scaler)
        print(entrance.url(listener.extra(anyio.abc.SocketAttribute.local_port)), flush=True)
        async for _ in anyio.wrap_file(sys.stdin):
            print(process_time(), flush=True)
        tasks.cancel_scope.cancel()


async def change(scaler: Taskscaler) -> None:
    """Have leases begin and end, again and again."""
    for number in count():
        lease = await scaler.acquire_lease(f"more-{number}")
        await anyio.sleep(1 / CHANGES)
        lease.release()
        await anyio.sleep(1 / CHANGES)


@contextmanager
def daemon() -> Iterator[tuple[str, Callable[[], float]]]:
    """Run one; gives where the page is, and what reads its CPU time."""
    with Popen([sys.executable, __file__, "--serve"], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None  # noqa: S101  (for mypy)
        assert process.stdout is not None  # noqa: S101
        url = process.stdout.readline().strip()

        def used() -> float:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return float(process.stdout.readline())  # type: ignore[union-attr]

        try:
            yield url, used
        finally:
            process.kill()


@define
class Paints:
    """Milliseconds until a frame, of several loads."""

    anything: list[float] = field(factory=list)
    window: list[float] = field(factory=list)
    """With all that the window has room for."""

    tiles: list[float] = field(factory=list)
    """With all tiles."""

    made: int = 0
    """Tiles that the window's frame had, of which some may be below its edge."""


def paints(browser: Any, url: str) -> Paints:  # noqa: ANN401  (a browser)
    """Load the page again and again, with an empty cache."""
    from playwright.sync_api import expect

    found = Paints()
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
        page = context.new_page()
        page.goto(url)
        expect(page.locator("#timeline-words")).not_to_be_empty(timeout=30_000)
        tiles = page.locator("#grid button").count()
        if tiles < INSTANCES - CHANGES:
            raise SystemExit(f"only {tiles} tiles were painted")
        found.made, in_window = page.evaluate(MADE), page.evaluate(IN_WINDOW)
        if not 0 < in_window <= found.made:
            raise SystemExit(f"the window has room for {in_window} tiles, and its first frame had {found.made}")
        found.anything.append(page.evaluate(AT, "first-contentful-paint"))
        found.window.append(page.evaluate(AT, "fleet-shown"))
        found.tiles.append(page.evaluate(AT, "fleet-complete"))
        context.close()
    return found


def measure() -> None:
    """Measure both."""
    sys.path.insert(0, str(ROOT))  # the tests have the browser
    from tests.e2e.browsers import chromium

    with daemon() as (url, used), chromium() as browser:
        pause = browser.new_page()
        before = used()
        pause.wait_for_timeout(SECONDS * 1000)
        alone = (used() - before) / SECONDS * 100
        found = paints(browser, url)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        page.wait_for_timeout(2000)
        before = used()
        page.wait_for_timeout(SECONDS * 1000)
        watched = (used() - before) / SECONDS * 100
    conditions = f"until all that a window of {WIDTH} by {HEIGHT} has room for is painted, of "
    conditions += f"{INSTANCES} tiles the first {found.made}; best of {LOADS} loads with an empty cache; "
    conditions += f"median {median(found.window):.0f}; all tiles: {min(found.tiles):.0f}, "
    conditions += f"median {median(found.tiles):.0f}; "
    conditions += f"first contentful paint: {min(found.anything):.0f}, median {median(found.anything):.0f}"
    report("page_first_paint_ms", min(found.window), "ms", 150, conditions=conditions)
    conditions = f"{INSTANCES} instances, {CHANGES} changes a second, one page open; with none: {alone:.3g}"
    report("page_daemon_cpu_pct", watched, "%", 5, conditions=conditions)


def main() -> None:
    """Measure, or be what is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().serve:
        anyio.run(serve)
        return
    run(measure, CHROMIUM)


if __name__ == "__main__":
    main()
