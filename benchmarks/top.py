"""What `taskscaler top` costs while it shows 1,000 instances of which ten change each second.

A daemon stands in whose answers are made once, so that all the CPU time is that of `top`: Textual's driver without a
terminal, a picture four times a second, events as they come, and all that is asked for from time to time. Measured for
20 seconds after the first picture.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import TYPE_CHECKING

import anyio
from _figures import report

from fleeting import LoopClock
from taskscaler.cli._top._app import Top
from taskscaler.cli._top._feed import Feed

if TYPE_CHECKING:
    from starlette.types import ASGIApp

INSTANCES = 1_000
CHANGES = 10
"""Each second."""

SECONDS = 20.0
SIZES = ((80, 24), (140, 40))


def instance(number: int) -> dict[str, object]:
    """One that is busy."""
    return {
        "id": f"i-{number:04}",
        "pool": "default",
        "state": "running",
        "slots": [f"job-{number:04}", None],
        "held_since": [1.7e9, None],
        "cleaning": [],
        "uses": 3,
        "since": 1.7e9 + number,
        "ready_since": 1.7e9 + number,
        "why": "",
        "cordoned": None,
        "retained": None,
    }


ANSWERS = {
    "/v1/status": {
        "fleet": "fleet.toml",
        "state": "serving",
        "answer": "nothing is waiting; 1000 slots are idle",
        "capacity": {"idle": INSTANCES, "acquired": INSTANCES, "pending": 0},
        "pools": {"default": f"{INSTANCES} ready"},
    },
    "/v1/waiting": {"waiting": [], "total": 0},
    "/v1/instances": {"instances": [instance(number) for number in range(INSTANCES)]},
    "/v1/explain": {
        "at": "2026-11-24T10:00:00+00:00",
        "pools": [{"name": "default", "ceiling": INSTANCES, "ceiling_over_all": None}],
        "decisions": [],
    },
}


def serve(socket: str) -> None:
    """Be the daemon: another process, whose time does not count."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    bodies = {path: json.dumps(answer).encode() for path, answer in ANSWERS.items()}

    async def answer(request: Request) -> Response:
        return Response(bodies[request.url.path], media_type="application/json")

    async def events(_: Request) -> Response:
        return StreamingResponse(changes(), media_type="text/event-stream")

    routes = [*(Route(path, answer) for path in bodies), Route("/v1/events", events)]
    anyio.run(_listen, Starlette(routes=routes), socket)


async def changes() -> AsyncGenerator[bytes]:
    """Have a lease end and another begin, again and again."""
    for number in count():
        what = "released" if number % 2 else "acquired"
        where = {"pool": "default", "instance": f"i-{number // 2 * 7 % INSTANCES:04}", "slot": 1}
        event = {"event": "lease", "at": 1.7e9, "key": f"more-{number // 2}", **where, "what": what, "why": ""}
        yield f"event: lease\ndata: {json.dumps(event)}\n\n".encode()
        await anyio.sleep(1 / CHANGES)


async def _listen(app: "ASGIApp", socket: str) -> None:
    from taskscaler.serve._listen import listening
    from taskscaler.serve._server import Server

    async with listening(Path(socket), None) as listener:
        print("ready", flush=True)
        await Server(app).serve(listener)


async def measure(socket: Path, size: tuple[int, int], seconds: float) -> float:
    """Give how much of a core it takes, in percent."""
    heard: list[Feed] = []

    def opened(changed: Callable[[], object]) -> Feed:
        heard.append(Feed(socket, LoopClock(), changed))
        return heard[0]

    app = Top(opened)
    async with app.run_test(size=size):
        with anyio.fail_after(30):
            while len(heard[0].fleet.instances) < INSTANCES:  # noqa: ASYNC110  (the feed has no event for it)
                await anyio.sleep(0.1)
        await anyio.sleep(2)
        before, first = process_time(), heard[0].fleet
        await anyio.sleep(seconds)
        used = process_time() - before
        if heard[0].lost or heard[0].fleet is first:
            raise SystemExit(f"nothing has changed: {heard[0].lost}")
    return 100 * used / seconds


def main() -> None:
    """Measure at both sizes, and print the worse one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="SOCKET", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    with TemporaryDirectory() as directory:
        socket = Path(directory, "s.sock")
        command = (sys.executable, __file__, "--serve", str(socket))
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
            try:
                assert daemon.stdout is not None  # noqa: S101  (for mypy)
                daemon.stdout.readline()
                figures = {size: anyio.run(measure, socket, size, given.seconds) for size in SIZES}
            finally:
                daemon.kill()
    conditions = ", ".join(f"{width}x{height}: {figure:.3g}" for (width, height), figure in figures.items())
    report("top_1000_instances_cpu_pct", max(figures.values()), "%", 10, conditions=conditions)


if __name__ == "__main__":
    main()
