"""Looks for notices of a cloud that gives them to its instances only: by a command on each, again and again."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import TYPE_CHECKING

import anyio
from attrs import define, field

from fleeting._errors import FleetingError, ProviderError
from fleeting._protocols import Connection
from fleeting._setting_command import SettingCommand
from fleeting._types import Clock
from fleeting.connectors._collect import Beginning
from fleeting.core import messages
from fleeting.runtime._bounded import Bounded
from fleeting.runtime._notices import READ, ProbeOutput, parse_notices
from fleeting.runtime._outcomes import log, words

if TYPE_CHECKING:  # importing anyio.abc costs 20 ms more than all that a bare ``import fleeting`` needs of anyio
    from anyio.abc import TaskGroup

PROBE_TIMEOUT = 10.0
"""Seconds after which a probe for notices, which ends by itself within 5, counts as failed."""

SAME_NOTICE = 1.0
"""Seconds by which two probes may differ on the end of an instance and still mean the same notice."""

PROBES = 50
"""Looks for notices at once in a pool: each makes a connection for a command of a second or less."""


@define
class _Probed:
    """What was heard of notices on an instance."""

    passed_on: float = inf
    """The soonest end that was passed on."""

    failing: bool = False
    """Whether the last look failed."""


@define(eq=False)
class NoticeProbes:
    """The instances of a pool on which notices are looked for."""

    _connected: Callable[[str], AbstractAsyncContextManager[Connection]]
    """Opens a connection to an instance."""

    _command: str
    _interval: float
    """Seconds between two looks at one instance."""

    _pool: str
    _clock: Clock
    _feed: Callable[[messages.Fact], None]
    _probes: Bounded = field(init=False)
    _probed: dict[str, _Probed] = field(factory=dict, init=False)

    def start(self, tasks: "TaskGroup") -> None:
        """From now on, the command is run on instances."""
        self._probes = Bounded(self._probe, PROBES, tasks, self._feed, f"notices of {self._pool}")
        tasks.start_soon(self._probe_in_rounds, name=f"rounds of {self._pool}")

    def add(self, instance: str) -> None:
        """Look at the instance, now and in every round."""
        self._probed[instance] = _Probed()
        self._probes.add(instance)

    def forget(self, instance: str) -> None:
        """Look at it no more."""
        self._probed.pop(instance, None)
        self._probes.forget(instance)

    async def _probe_in_rounds(self) -> None:
        while True:
            await anyio.sleep(self._interval)
            for instance in self._probed:
                self._probes.add(instance)

    async def _probe(self, instance: str) -> None:
        """Look for notices on the instance, over a connection for just that; that this fails is no news of it."""
        probed = self._probed[instance]
        try:
            async with self._connected(instance) as connection:
                heard = await self._run_probe(connection)
            probed.passed_on = self._pass_on(instance, heard, probed.passed_on)
            if heard.strange:
                raise ProviderError(f"the probe printed {heard.strange[0][:100]!r}, not KIND SECONDS")
        except (FleetingError, OSError) as error:
            if not probed.failing:
                about = {"pool": self._pool, "instance": instance, "error": words(error)}
                log.warning("notice_probe_failed", extra=about)
            probed.failing = True
        else:
            probed.failing = False

    async def _run_probe(self, connection: Connection) -> ProbeOutput:
        """Run the probe once."""
        printed = Beginning(READ + 1)
        with anyio.fail_after(PROBE_TIMEOUT):
            await SettingCommand("notice_probe", self._command).run(connection, stdout=printed)
        return parse_notices(bytes(printed.data))

    def _pass_on(self, instance: str, heard: ProbeOutput, before: float) -> float:
        """Pass on the soonest end that was heard of, if it comes before *before*; returns the soonest passed on."""
        if not heard.notices:
            return before
        kind, seconds = min(heard.notices, key=lambda each: each.seconds)
        deadline = self._clock.now() + seconds
        if deadline >= before - SAME_NOTICE:
            return before
        self._feed(messages.Noticed(instance, deadline, kind))
        return deadline
