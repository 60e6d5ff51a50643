"""Carries a switch out, from where it stands to its end; the runtime around `take_turn`."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

import anyio
from attrs import define, evolve, field

from fleeting import ProviderError
from fleeting.plugins import one_line, span
from taskscaler.serve import Canary, NoDaemon
from taskscaler_gitlab.switching._switch import (
    Act,
    Service,
    Step,
    Stuck,
    Switch,
    Turn,
    said_of,
    said_of_act,
    take_turn,
    tried,
)

POLL = 0.5
"""Seconds between two looks at what is waited for."""

SAID_AGAIN = 10.0
"""Seconds after which what is waited for is said again, if it has changed."""

MOST_STARTS = 3
"""How often a colour is started at most, before somebody has to look why it ends."""


class Colour(Protocol):
    """One of the two services."""

    async def look(self, *, thoroughly: bool) -> Service:
        """See how it is; *thoroughly*: with what it has left if it is away, and what it retains if it is done.

        Raises:
            ProviderError: Its cloud does not show its fleet, for now.
            FleetingError, OSError: Its fleet cannot be opened.
            Refused: Another service is in its place.
        """
        ...

    async def start(self) -> None:
        """Have it run, paused; returns once it answers.

        Raises:
            Stuck: It does not; says why, and what to do.
        """
        ...

    async def fly_canary(self) -> Canary:
        """Run a job through it. Raises as `taskscaler.serve.ask`."""
        ...

    async def pause(self) -> None:
        """Have it ask for no more jobs. Raises as `taskscaler.serve.ask`."""
        ...

    async def unpause(self) -> None:
        """Have it ask for jobs. Raises as `taskscaler.serve.ask`."""
        ...

    async def delete(self) -> None:
        """Have it end with its last lease, and delete its instances. Raises as `taskscaler.serve.ask`."""
        ...

    async def tidy(self) -> None:
        """Leave no mark that it was paused.

        Raises:
            OSError: That cannot be done.
        """
        ...


@define(eq=False)
class Carrying:
    """A switch that is being carried out."""

    colours: Mapping[str, Colour]
    keep: Callable[[Switch], object]
    """Writes it down; what is raised ends the switch where it stands."""

    say: Callable[[str], object]
    """Prints a line."""

    now: Callable[[], float]
    """Seconds since the epoch."""

    patience: float
    """Seconds for anything but jobs."""

    poll: float = POLL
    _starts: Counter[str] = field(factory=Counter, init=False)
    _done: str = field(default="", init=False)
    """What was done last, if nothing has changed since."""

    _since: float = field(default=0.0, init=False)
    """When something changed last."""

    _said: str = field(default="", init=False)
    """What it last said that it waits for, if it has said nothing else since."""

    _said_at: float = field(default=0.0, init=False)

    async def carry_out(self, switch: Switch) -> Switch:
        """Go on until it is over.

        Raises:
            Stuck: It cannot go on; says what to do.
            FleetingError, OSError: Likewise.
        """
        self._since = anyio.current_time()
        while switch.step is not Step.OVER:
            turn = await self._turn(switch)
            if turn.switch != switch:
                switch = self._write(turn.switch)
            elif turn.act is Act.FLY_CANARY:
                switch = self._write(await self._fly(switch))
            elif turn.act is not None:
                await self._act(turn, turn.act)
            else:
                await self._wait(turn)
        return switch

    async def _turn(self, switch: Switch) -> Turn:
        kept = await self.colours[switch.kept].look(thoroughly=False)
        try:
            retired = await self.colours[switch.retired].look(thoroughly=True)
        except ProviderError as error:
            return Turn(switch=switch, waits=f"the cloud of {switch.retired} to answer ({one_line(str(error))})")
        return take_turn(switch, kept, retired)

    def _write(self, switch: Switch) -> Switch:
        switch = evolve(switch, changed_at=self.now())
        self.keep(switch)
        self._note_change(said_of(switch))
        return switch

    def _note_change(self, said: str, *, done: str = "") -> None:
        self.say(said)
        self._since, self._done, self._said = anyio.current_time(), done, ""

    async def _fly(self, switch: Switch) -> Switch:
        self._note_change(said_of_act(Act.FLY_CANARY, switch.kept))
        try:
            canary = await self.colours[switch.kept].fly_canary()
        except NoDaemon as error:
            why = f"{switch.kept} has gone while it ran a canary"
            raise Stuck(f"{why}; see its log, and run this again with --to {switch.new}, or with --abort") from error
        if not canary.passed:
            for line in canary.log:
                self.say(f"  {line}")
            again = f"mend {switch.kept} and run this again with --to {switch.new}, or go back with --abort"
            raise Stuck(f"{canary.says}; its log ends as above; {again}")
        self.say(canary.says)
        return tried(switch)

    async def _act(self, turn: Turn, act: Act) -> None:
        """Do it; what the service does not do because it is away is found by the next turn."""
        said = said_of_act(act, turn.colour)
        if self._done == said:
            await self._bide(turn.switch, said)
        else:
            self._note_change(said, done=said)
        colour = self.colours[turn.colour]
        try:
            match act:
                case Act.START:
                    self._starts[turn.colour] += 1
                    if self._starts[turn.colour] > MOST_STARTS:
                        why = f"{turn.colour} was started {MOST_STARTS} times and has ended each time"
                        raise Stuck(f"{why}; see its log, and run this again with {turn.switch.command}")
                    await colour.start()
                case Act.PAUSE:
                    await colour.pause()
                case Act.UNPAUSE:
                    await colour.unpause()
                case Act.DELETE:
                    await colour.delete()
                case _:
                    await colour.tidy()
        except NoDaemon:
            await self._bide(turn.switch, said)

    async def _wait(self, turn: Turn) -> None:
        now = anyio.current_time()
        if turn.waits != self._said and (not self._said or now >= self._said_at + SAID_AGAIN):
            self.say(f"waiting for {turn.waits}")
            self._said, self._said_at = turn.waits, now
        if turn.is_work:
            self._since = now
        await self._bide(turn.switch, f"waiting for {turn.waits}")

    async def _bide(self, switch: Switch, said: str) -> None:
        """Give it time.

        Raises:
            Stuck: It has had enough.
        """
        if anyio.current_time() > self._since + self.patience:
            back = ", or go back with --abort" if switch.can_be_aborted else ""
            why = f"{said}: nothing has changed for {span(self.patience)}"
            raise Stuck(f"{why}; see both colours with --status, then run this again with {switch.command}{back}")
        await anyio.sleep(self.poll)
