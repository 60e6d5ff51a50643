"""What a core answers: what must be durable first, then what to do.

A core is synchronous and does no I/O. It takes facts and `now` and returns a `Step`; what drives it
commits the writes, then performs the actions, and feeds every outcome back as a fact. Production, the
tests and the simulator drive the same cores this way.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Put(NamedTuple):
    """Store *record* under *key*, replacing what was there."""

    kind: str
    """Which table: ``intent``, ``instance``, ``lease``, …; each kind has one record class."""

    key: str
    record: Any
    """A frozen attrs value of plain data."""


class Drop(NamedTuple):
    """Forget what is stored under *key*, if anything is."""

    kind: str
    key: str


Write = Put | Drop


class Step(NamedTuple):
    """The answer of a core to one fact."""

    writes: Sequence[Write] = ()
    """Durable before any of the actions is performed; in order."""

    actions: Sequence[Any] = ()
    """For the shell to perform, in order."""

    events: Sequence[Any] = ()
    """What changed, for the core on top of this one; nothing to perform."""


NOTHING = Step()
