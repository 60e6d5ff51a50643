"""Where a service listens for sidecars: for those of its settings, and for those that were started with others."""

import errno
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from anyio.abc import SocketListener
from attrs import define, field

from fleeting.plugins import one_line
from taskscaler import TaskscalerError
from taskscaler.serve import listen_at
from taskscaler_gitlab.relay._places import OPTION, Place, is_covered, widest

_NO_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


@define(eq=False)
class Ears:
    """Places at which sidecars report, and those at which we listen: these may be wider."""

    own: Sequence[Place] = ()
    """Where the settings say."""

    others: dict[str, Sequence[Place]] = field(factory=dict)
    """Where sidecars report that were started earlier, by how that was written; until none does."""

    at: dict[Place, SocketListener] = field(factory=dict, init=False)
    """Where we listen."""

    _refused: dict[Place, TaskscalerError] = field(factory=dict, init=False)
    """Where we cannot, and why."""

    @property
    def wanted(self) -> Sequence[Place]:
        """Where we are to be heard at the moment."""
        return [*self.own, *(place for places in self.others.values() for place in places)]

    async def listen(self, stack: AsyncExitStack) -> None:
        """Listen until the stack is left, as far as that can be.

        Raises:
            SocketRefused: Not where the settings say. Of a name's addresses, those that this machine has are enough.
        """
        for place in widest(self.wanted):  # first: beside one of these, no other that it covers can be had
            await self._try(place, stack)
        for place in self.wanted:
            if place not in self._refused and not is_covered(place, self.at):
                await self._try(place, stack)
        deaf = [place for place in self.own if not is_covered(place, self.at)]
        if needed := deaf if len(deaf) == len(self.own) else [place for place in deaf if self._is_here(place)]:
            raise self._refused[needed[0]]

    def hears(self, listen: str) -> bool | None:
        """Whether we hear sidecars that report there, as it was written; None: that is not sure.

        Of several addresses, we may hear them at some: which of them a sidecar uses, nobody knows.
        """
        if not listen:  # it was not noted down
            return None if self.at else False
        places = [place for place in self.others.get(listen, self.own) if self._is_here(place)]
        if places and all(is_covered(place, self.at) for place in places):
            return True
        return None if any(place.covers(each) or each.covers(place) for place in places for each in self.at) else False

    def why_not(self, listen: str) -> str:
        """Why we do not, or not for sure."""
        refused = [self._refused[place] for place in self.others[listen] if place in self._refused]
        return one_line(str(refused[0])) if refused else "its name stands for no address any more"

    def lets_in(self, place: Place) -> bool:
        """Whether somebody may call there, as the socket of a connection has it: without an interface."""
        return is_covered(place.unscoped, (each.unscoped for each in self.wanted))

    def forget(self, listen: str) -> Mapping[Place, SocketListener]:
        """Have nobody report there any more; returns at which places there is nothing to hear now."""
        self.others.pop(listen)
        wanted = self.wanted
        return {place: self.at.pop(place) for place in [*self.at] if not any(map(place.covers, wanted))}

    async def _try(self, place: Place, stack: AsyncExitStack) -> None:
        try:
            self.at[place] = await listen_at("", place.port, place.address, stack, OPTION)
        except TaskscalerError as error:
            self._refused[place] = error

    def _is_here(self, place: Place) -> bool:
        """Whether it is an address of this machine, as far as we know: at others, nobody can call."""
        cause = self._refused[place].__cause__ if place in self._refused else None
        return not (isinstance(cause, OSError) and cause.errno in _NO_ADDRESS)
