"""Makes the pictures of the documentation anew, the same ones each time: ``nox -s pictures``."""

import logging
import re
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import frontier
from _play import MONDAY, Cloud, Play
from attrs import evolve
from click.testing import CliRunner
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI
from rich.text import Text

from fleeting.cli import folded
from taskscaler import Policy
from taskscaler.batch import Results
from taskscaler.batch._pace import Pace
from taskscaler.cli import main
from taskscaler.cli._progress import Picture, paint
from taskscaler.cli._summary import print_summary
from taskscaler.cli._timeline import print_figures
from taskscaler.cli._top._fleet import Fleet, Instance, Job
from taskscaler.cli._top._paint import Scene, room_of
from taskscaler.cli._top._paint import paint as paint_top
from taskscaler.cli._top._view import View, settled
from taskscaler.report import figure_out, lay_out
from taskscaler.report._draw import draw

HERE = Path(__file__).parent
WIDTH, HEIGHT = 96, 24
"""Of the terminal, in characters."""

TOP_HEIGHT = 17
"""Of the one that `top` fills: so many lines as there is something on."""

NO_FONTS = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
"""Rich's own frame, less the fonts that it would fetch from elsewhere."""

MISTAKES = """\
[autoscaler]
plugin = "local"
max_instance = 4

[[jobs]]
name = "hello"
script = "echo hello"
timeout = 90
"""


def small(looks: list[RenderableType]) -> Play:
    """Five instances at once, one of which is lost; a job that fails; growth that the cloud refuses for a while."""
    random = Random(7)

    async def keep_a_look(play: Play) -> None:
        looks.append(await look(play))

    return Play(
        name="nightly",
        cloud=Cloud(boot_time=45, delete_time=10),
        capacity=2,
        most=5,
        policy=Policy(idle_time=60),
        jobs={f"build-{number:02}": random.uniform(60, 300) for number in range(1, 37)},
        failing=frozenset({"build-07"}),
        happens=[
            (350, lambda play: play.cloud.run_out("no capacity for m5.large in zone-a")),
            (400, lambda play: play.lose_one()),
            (425, keep_a_look),
            (430, lambda play: play.cloud.restock()),
        ],
    )


def large() -> Play:
    """Two hundred instances, a few of which are lost."""
    random = Random(8)
    return Play(
        name="render",
        cloud=Cloud(boot_time=70, delete_time=20),
        capacity=1,
        most=200,
        policy=Policy(idle_time=120),
        jobs={f"frame-{number:04}": random.lognormvariate(5.2, 0.5) for number in range(1, 1501)},
        failing=frozenset({"frame-0077", "frame-0500", "frame-0501", "frame-0901"}),
        happens=[(at, lambda play: play.lose_one()) for at in (500, 700, 900)],
    )


async def look(play: Play) -> RenderableType:
    """What the live display shows at this moment."""
    picture = Picture(
        title=f"taskscaler run {play.name}.toml",
        time=play.clock.now() - MONDAY,
        state=play.state,
        instances=await play.scaler.instances(),
        ceiling=play.most,
        left=str(Pace.of(play.state).estimate(play.state, play.clock.now()) or ""),
        why=(await play.scaler.explain()).answer,
    )
    return paint(picture, WIDTH, HEIGHT)


def screen(name: str, show: Callable[[Console], object]) -> None:
    """Make a picture of a terminal on which something is shown."""
    with Path("/dev/null").open("w", encoding="utf-8") as nowhere:
        console = Console(
            record=True, width=WIDTH, height=HEIGHT, file=nowhere, force_terminal=True, _environ={"TERM": "xterm"}
        )
        show(console)
        console.print()  # else the last line's descenders are cut off
    svg = console.export_svg(title="", theme=MONOKAI, code_format=NO_FONTS, unique_id=name)
    (HERE / f"{name}.svg").write_text(svg, encoding="utf-8")


def show_summary(play: Play, ended: float, console: Console) -> None:
    """Show what is printed at the end of a run, the log of the failed job included."""
    with TemporaryDirectory() as directory, chdir(directory):
        results = Results(Path("taskscaler-results", f"{play.name}-20260302-100000"))
        results.prepare()
        results.begin(len(play.state.records))
        for job in play.failing:
            results.log(job).write_text("linking\nld: cannot find -lfoo\n", encoding="utf-8")
        print_summary(console, play.state, results, now=ended, timeline=str(results.timeline("svg")))


def show_errors(console: Console) -> None:
    """Show what is said of a file with mistakes."""
    with TemporaryDirectory() as directory, chdir(directory):
        Path("jobs.toml").write_text(MISTAKES, encoding="utf-8")
        console.print("$ taskscaler run jobs.toml", highlight=False)
        for line in CliRunner().invoke(main, ["run", "jobs.toml"]).stderr.splitlines():
            console.print(Text(folded(line, console.width)))


def show_top(console: Console) -> None:
    """Show a fleet at its ceiling, as `top` does."""
    instances = [
        Instance(
            pool="default",
            id=f"i-0{number}f3a{number}c",
            state="running",
            since=MONDAY - 700 + 60 * number,
            slots=(f"build-{2 * number:02}", f"build-{2 * number + 1:02}"),
        )
        for number in range(1, 6)
    ]
    instances[3] = evolve(instances[3], slots=("build-08", None), cordoned="a disk fails")
    instances.append(Instance(pool="default", id="i-06f3a6c", state="creating", since=MONDAY - 20))
    why = "the limit of 6 instances (max_instances) is reached: 5 ready, 1 booting"
    fleet = Fleet(
        name="fleet.toml",
        state="serving",
        answer=f"5 jobs are waiting: {why}",
        capacity={"acquired": 9, "unavailable": 1, "pending": 5, "unready": 2},
        pools={"default": "5 ready, 1 booting"},
        cost="0.95 instance-hours, 0.11 EUR at 0.12 an hour",
        ceilings={"default": 6},
        instances={each.place: each for each in instances},
        running={key: Job(key=key, state="running") for each in instances for key in each.slots if key},
        waiting=[Job(key=f"build-{number}", state="waiting") for number in range(12, 17)],
        waiting_in_all=5,
    )
    rows = View().list.rows(fleet, View().order, "")
    view = settled(View(), rows, room_of(fleet, HEIGHT))
    for line in paint_top(Scene(fleet=fleet, view=view, rows=rows, now=MONDAY), WIDTH, TOP_HEIGHT):
        console.print(Text.assemble(*line), no_wrap=True, highlight=False)


def make() -> None:
    """Make all of them."""
    frontier.make()
    logging.disable()  # that instances are lost is meant to be
    looks: list[RenderableType] = []
    play = small(looks)
    run = play.run()
    timeline = lay_out(run)
    figures = figure_out(run, timeline, price_per_hour=0.12)
    for format_, picture in draw(timeline, figures).items():
        (HERE / f"timeline-5.{format_}").write_bytes(picture)
    screen("progress", lambda console: console.print(looks[0]))
    screen("summary", lambda console: show_summary(play, timeline.ended, console))
    screen("report", lambda console: print_figures(console, figures, Path("taskscaler-results/nightly/timeline.svg")))
    screen("error", show_errors)
    screen("top", show_top)
    run = large().run()
    timeline = lay_out(run)
    for format_, picture in draw(timeline, figure_out(run, timeline)).items():
        (HERE / f"timeline-200.{format_}").write_bytes(picture)


if __name__ == "__main__":
    make()
