"""The calls to groups and their instances, as whoever follows them learns of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import define, field

from fleeting._types import Clock
from fleeting.runtime._outcomes import class_of


@define(kw_only=True)
class CloudCall:
    """One call, once it has ended."""

    pool: str
    """Whose group was called."""

    name: str
    """``update``, ``increase``, ``decrease``, ``suspend``, ``resume``, ``withdraw``, ``connect_info``, ``prepare``,
    ``heartbeat`` or ``clean``."""

    identity: str
    """Of the group, as it says itself; empty: it has not said so yet."""

    plugin: str
    """The package that its class is in."""

    began: float
    """When, in seconds since the epoch."""

    ended: float = field(init=False, default=0.0)
    """Likewise."""

    instance: str = ""
    """The one that it was about; empty: it was about several, or the group."""

    asked: int | None = None
    """How many instances something was asked for; None: that is no question of numbers."""

    accepted: int | None = None
    """For how many of them that was accepted, or how many the view has; None: none, or it failed."""

    error: str = ""
    """The class of the error with which it failed, as `class_of` has it; empty: it did not."""


OnCall = Callable[[CloudCall], None]
"""Hears of each call that has ended; must be quick."""


@define(eq=False)
class Calls:
    """Reports the calls to one group, if anybody wants to know."""

    _pool: str
    _clock: Clock
    _on_call: OnCall | None = None
    plugin: str = ""
    identity: str = field(default="", init=False)

    @contextmanager
    def made(self, name: str, *, instance: str = "", asked: int | None = None) -> Iterator[CloudCall]:
        """Follow a call that the body makes. One that is cancelled has not ended, and is not reported."""
        began = 0.0 if self._on_call is None else self._clock.now()
        call = CloudCall(
            pool=self._pool,
            name=name,
            identity=self.identity,
            plugin=self.plugin,
            began=began,
            instance=instance,
            asked=asked,
        )
        try:
            yield call
        except Exception as error:
            self._report(call, class_of(error))
            raise
        self._report(call, call.error)

    def _report(self, call: CloudCall, error: str) -> None:
        if self._on_call is not None:
            call.ended, call.error = self._clock.now(), error
            self._on_call(call)
