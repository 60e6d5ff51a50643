"""``taskscaler-gitlab switch``: one colour of a service takes the other's place, while jobs run."""

from collections.abc import Callable, Mapping
from pathlib import Path
from signal import SIGINT

import anyio
import click

from fleeting import LoopClock, PluginNotFound
from fleeting.cli import FAILED, SIGNALLED, SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.plugins import span
from taskscaler.serve import say
from taskscaler_gitlab.switching._carry_out import Carrying
from taskscaler_gitlab.switching._daemons import DaemonColour
from taskscaler_gitlab.switching._file import SwitchFile, read_switch_file
from taskscaler_gitlab.switching._kept import KeptSwitch
from taskscaler_gitlab.switching._switch import Refused, Step, Stuck, Switch, abort, begin, resume, said_of


def switch(path: Path, *, to: str | None, aborts: bool) -> int:
    """Switch to a colour, or back; returns the exit status."""
    try:
        file = read_switch_file(path)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    kept = KeptSwitch(file.directory)

    def run() -> int:
        with kept.alone():
            anyio.run(_switch, file, kept, to, aborts)
        return SUCCEEDED

    return _outcome(run)


def show(path: Path) -> int:
    """Say how far a switch is, and how both colours are; returns the exit status. Nothing is changed."""
    try:
        file = read_switch_file(path)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)

    def run() -> int:
        anyio.run(_show, file, KeptSwitch(file.directory))
        return SUCCEEDED

    return _outcome(run)


def _outcome(run: Callable[[], int]) -> int:
    try:
        status = outcome(run)
    except (Refused, Stuck) as error:
        click.echo(f"error: {error}", err=True)
        return FAILED
    if status == SIGNALLED + SIGINT:
        click.echo("interrupted: both colours stay as they are, and the same command continues from there", err=True)
    return status


async def _switch(file: SwitchFile, kept: KeptSwitch, to: str | None, aborts: bool) -> None:  # noqa: FBT001  (anyio.run has no keywords)
    """Begin, or go on with what is under way.

    Raises:
        Refused: There is nothing to be done, or something else is under way.
        Stuck: It cannot go on.
        FleetingError, OSError: Likewise.
    """
    clock, colours = LoopClock(), _colours(file)
    before = kept.read()
    if before is not None and before.step is not Step.OVER and dict(before.configs) != file.configs:
        were = ", ".join(f"{name} had {path}" for name, path in before.configs.items())
        raise Refused(f"the configurations have changed since the switch began ({were}); put them back to finish it")
    if aborts or to is None:
        state = abort(before, clock.now())
        colours[state.new].may_be_unseen = state.reached is Step.BEGUN
    elif before is not None and before.step is not Step.OVER:
        state = resume(before, to)
        say(f"resuming: {said_of(state)}")
    else:
        state = await _begun(file, colours, to, clock.now())
    if state != before:
        kept.write(state)
        say(said_of(state))
    began = state.begun_at
    carrying = Carrying(colours, kept.write, say, clock.now, file.patience)
    state = await carrying.carry_out(state)
    say(f"it took {span(max(0.0, state.changed_at - began))} in all")


async def _begun(file: SwitchFile, colours: Mapping[str, DaemonColour], to: str, now: float) -> Switch:
    """Begin, if there is something to switch."""
    blue, green = [await each.identities() for each in colours.values()]
    if shared := sorted(blue & green):
        why = f"both colours have the group {shared[0]}, which is to be deleted with the old one"
        raise Refused(f"{why}; give each a fleet of its own")
    there = {name: await each.look(thoroughly=False) for name, each in colours.items()}
    return begin(to, there, now, file.configs)


async def _show(file: SwitchFile, kept: KeptSwitch) -> None:
    state, clock = kept.read(), LoopClock()
    if state is None:
        say("no switch was made")
    else:
        say(f"{said_of(state)} (for {span(max(0.0, clock.now() - state.changed_at))})")
    for colour in _colours(file).values():
        say(await colour.status())
    if state is not None and state.step is not Step.OVER:
        back = ", or --abort" if state.can_be_aborted else ""
        say(f"next: taskscaler-gitlab switch {file.path} {state.command}{back}")


def _colours(file: SwitchFile) -> dict[str, DaemonColour]:
    return {
        name: DaemonColour(each, file.directory / f"{name}.log", file.patience, say)
        for name, each in file.colours.items()
    }
