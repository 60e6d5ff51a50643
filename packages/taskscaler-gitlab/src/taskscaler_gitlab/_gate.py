"""Where jobs wait whose rule has a ceiling, until fewer run by it."""

import anyio
from attrs import define, field

from taskscaler import Taskscaler
from taskscaler_gitlab._dispatch import Ceilings


@define(eq=False)
class Gate:
    """All jobs of a runner that count, or wait, by the keys of their leases."""

    ceilings: Ceilings = field(factory=Ceilings)
    _turns: dict[str, anyio.Event] = field(factory=dict, init=False)
    """Those that wait, and what is set when they need not any more."""

    async def turn(self, rule: str, key: str, scaler: Taskscaler) -> None:
        """Wait until one more job may run by a rule; a slot that was reserved for it is for others meanwhile."""
        if not rule or self.ceilings.enter(rule, key):
            return
        event = self._turns[key] = anyio.Event()
        try:
            await scaler.unreserve(key)
            await event.wait()
        finally:
            del self._turns[key]

    def resume(self, rule: str, key: str) -> None:
        """Count a job that has its slot from an earlier process."""
        if rule:
            self.ceilings.resume(rule, key)

    def leave(self, key: str) -> None:
        """A job is over; whose turn it is goes on."""
        for each in self.ceilings.leave(key):
            self.wake(each)

    def wake(self, key: str) -> None:
        """Have a job wait no more, whatever the reason."""
        if (event := self._turns.get(key)) is not None:
            event.set()

    def why(self, rule: str, key: str) -> str:
        """What a job waits for; empty: not here."""
        if key not in self._turns:
            return ""
        most = self.ceilings.most.get(rule, 0)
        return f"waits because {self.ceilings.running(rule)} of at most {most} jobs run by the rule {rule!r}"
