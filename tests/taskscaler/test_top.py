"""`taskscaler top` in a terminal: through Textual's own driver, and in a real one with a real daemon."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import evolve
from textual import events
from textual.pilot import Pilot

from taskscaler.cli._top import _live
from taskscaler.cli._top._app import Picture, Top
from taskscaler.cli._top._view import Question
from tests.taskscaler.services import COMMAND, command, serving, write
from tests.taskscaler.topped import FakeFeed, changed, feeding, fleet_of

SIZES = [(80, 24), (140, 40)]


def seen(app: Top) -> str:
    """What is on the screen."""
    picture = app.query_one(Picture)
    return "\n".join(picture.render_line(y).text for y in range(app.size.height))


def fed(app: Top) -> FakeFeed:
    """The feed, which the test brings news."""
    assert isinstance(app.feed, FakeFeed)
    return app.feed


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("count", [0, 3, 1000])
async def test_a_fleet_of_any_size_is_shown_and_walked_through(count: int, size: tuple[int, int]) -> None:
    """From the first row to the last, which then is in sight; what is opened is explained."""
    app = Top(feeding(fleet_of(count)))
    async with app.run_test(size=size) as pilot:
        await pilot.press("end")
        lines = seen(app).splitlines()
        assert len(lines) == size[1]
        assert {len(line) for line in lines} == {size[0]}
        assert f"1:instances ({count})" in lines[6]
        last = f"i-{count - 1:04}"
        assert (last in seen(app)) == bool(count)
        await pilot.press("enter")
        await until(pilot, lambda: f"default/{last} is explained" in seen(app) or not count)
        await pilot.press("end")
        assert ("because of reason 39" in seen(app)) == bool(count)
        await pilot.press("escape", "2", "end", "3", "question_mark")
        assert "what keys do" in seen(app)
        await pilot.press("a", "q")
    assert app.return_code == 0


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Wait for what the screen will show."""
    while not true():
        await pilot.pause(0.02)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_change_is_asked_for_done_and_shown_and_a_refusal_is_the_daemons_sentence() -> None:
    """Nothing is done before the yes; while a reason is typed, no letter of it is a command."""
    app = Top(feeding(fleet_of(3)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("down", "c", *"quit", "enter")
        await until(pilot, lambda: "cordoned (quit)" in seen(app))
        assert fed(app).done == [Question(verb="cordon", instance="default/i-0001", why="quit")]
        fed(app).refusal = "only the daemon's own user may retain; ask that user to do it"
        await pilot.press("r", "enter")
        await until(pilot, lambda: "the daemon: only the daemon's own user may retain" in seen(app))
        await pilot.press("r", "escape")
        assert "nothing was changed" in seen(app)
        assert len(fed(app).done) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_news_are_drawn_by_themselves_and_a_lost_connection_is_shown() -> None:
    """What was chosen stays chosen; the rows stay to be read while nothing comes."""
    app = Top(feeding(fleet_of(9)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("down", "down")
        feed = fed(app)
        instances = dict(feed.fleet.instances)
        del instances["default", "i-0000"]
        feed.bring(evolve(changed(feed.fleet, "default", "i-0002", state="running"), instances=instances))
        await until(pilot, lambda: "1:instances (8)" in seen(app))
        await pilot.press("c")
        assert "cordon default/i-0002?" in seen(app)
        await pilot.press("escape")
        feed._lose("no daemon answers at /nowhere.sock")
        await until(pilot, lambda: "connection lost" in seen(app))
        assert "trying again" in seen(app)
        assert "i-0003" in seen(app)
        await pilot.resize_terminal(30, 8)
        await until(pilot, lambda: "this needs a terminal" in seen(app))
        await pilot.resize_terminal(140, 40)
        await until(pilot, lambda: "connection lost" in seen(app))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_mouse_and_a_paste_do_what_one_expects() -> None:
    """A click chooses, the wheel goes on; only what is being typed takes what is pasted, and one line of it."""
    app = Top(feeding(fleet_of(30)))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.click(offset=(3, 10))
        assert app._view.here.index == 2
        app.post_message(events.Paste("q"))
        await pilot.press("slash")
        app.post_message(events.Paste("i-000\nq"))
        await until(pilot, lambda: "filter: i-000" in seen(app))
        assert "10 with “i-000”" in seen(app)


def test_without_textual_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the way to do without."""
    monkeypatch.setattr("taskscaler.cli._top.find_spec", lambda _: None)
    with pytest.raises(Exception, match=r"pip install 'taskscaler\[top\]', or use --once"):
        _live(None)


# --- a real terminal --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_in_a_real_terminal_with_a_real_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows what runs, cordons after a yes, leaves the terminal as it was; elsewhere it prints once."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("TASKSCALER_SOCKET", raising=False)
    write(tmp_path, idle=0, most=1)  # of two, the job may get either, but what is chosen first is the older one
    with serving(tmp_path) as service:
        service.ask("POST", "/client", json={"ttl": 600})
        instance = service.ask("POST", "/acquire", json={"key": "job-1", "request": "1"})["instance"]
        service.ask("POST", "/retain", json={"instance": instance, "why": "a tester"})
        status, plain = command("top", "--once")
        assert status == 0
        assert re.search(rf"{instance}  default  ready +1/1 .*retained \(a tester\) · job-1", plain)
        assert "\x1b" not in plain
        assert command("top")[1].startswith(f"fleet        {tmp_path}/fleet.toml, serving")
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 140, 0, 0))
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "24"}
        with subprocess.Popen([*COMMAND, "top"], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
            os.close(theirs)
            try:
                shown = read_until(ours, b"", b"job-1")
                os.write(ours, b"c")
                shown = read_until(ours, shown, b"it gets no new work")
                os.write(ours, b"a disk\r")
                shown = read_until(ours, shown, b"cordoned (a disk), retained (a tester)")
                os.write(ours, b"q")
                shown = read_until(ours, shown, b"\x1b[?1049l")
                assert process.wait() == 0
            finally:
                process.kill()
        os.close(ours)
        assert b"\x1b[?1049h" in shown
        held = service.ask("GET", "/instances")["instances"]
        assert [each["cordoned"] for each in held if each["id"] == instance] == ["a disk"]
    assert command("top", "--once")[0] == 1


def read_until(ours: int, before: bytes, text: bytes) -> bytes:
    """Read what is written to a terminal until it has a text."""
    while text not in before:
        before += os.read(ours, 65536)
    return before


def test_top_imports_textual_only_to_draw() -> None:
    """Help, and one look, come without it."""
    program = "import sys, taskscaler.cli, taskscaler.cli._top._plain; print('textual' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
