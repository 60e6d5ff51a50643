"""Launching: how much is asked for where, under which client token, and what an answer means.

A launch is one request for each 100 instances and zone. Each request has a token of its own, and is repeated under that
token only: what was asked for once may come at any time, so another token would ask for it twice.

Source: AWS's guide, "Launch instances synchronously" and "Launching instances with synchronous provisioning".
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256

from attrs import frozen

from fleeting import CapacityUnavailable, Clock, OutcomeUnknown, ProviderError
from fleeting_aws._translate import Json, Launching, NotSupported, refusal, room_in

BATCH = 100
"""Instances that one request launches, at most."""

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each repetition of a request that AWS is still working on."""


@frozen
class Answer:
    """What came of one request."""

    launched: int
    refused: ProviderError | None
    """Why not all came; None: all did."""

    @classmethod
    def read(cls, answer: Json, asked: int) -> "Answer":
        """Take an answer apart.

        Raises:
            Launching: It accounts for fewer than were asked for, as one with the token only does; the rest may come.
        """
        lots = answer.get("Instances") or []
        launched = len({instance for lot in lots for instance in lot.get("InstanceIds") or []})
        refused = [refusal(each, "a launch") for each in answer.get("Errors") or []]
        if launched >= asked:
            return cls(launched, None)
        if not refused:
            raise Launching(f"AWS has confirmed the launch of {launched} of {asked} instances so far")
        # one that another zone does not cure says more than any number of those that it may
        gravest = next((each for each in refused if not isinstance(each, CapacityUnavailable)), refused[0])
        return cls(launched, gravest)


@frozen
class Launcher:
    """Launches into one group."""

    _group: str
    _clock: Clock
    _ask: Callable[..., Awaitable[Json]]
    """Sends a request to launch, with the parameters that AWS has for it but for the group's name."""

    async def launch(self, count: int, intent: str, group: Json) -> int:
        """Launch, each time in the zone with the fewest instances of those that are not full.

        Raises:
            OutcomeUnknown, NotSupported: Some may have been launched, or still be.
            ProviderError: Nothing was launched.
        """
        used = Counter(each["AvailabilityZone"] for each in group["Instances"])
        zones, wanted, launched, sent = list(group["AvailabilityZones"]), min(count, room_in(group)), 0, 0
        refused: ProviderError | None = None
        while zones and launched < wanted:
            zone = min(zones, key=used.__getitem__)
            answer = await self._launch_in(zone, min(BATCH, wanted - launched), f"{intent}/{sent}")
            launched, sent = launched + answer.launched, sent + 1
            used[zone] += answer.launched
            if isinstance(answer.refused, CapacityUnavailable):
                zones.remove(zone)
            refused = answer.refused or refused
            if answer.refused and zone in zones:
                break
        if refused and (isinstance(refused, OutcomeUnknown | NotSupported) or not launched):
            raise refused
        return launched

    async def _launch_in(self, zone: str, count: int, name: str) -> Answer:
        """Launch in a zone; a request that AWS is still working on is repeated a few times."""
        token = sha256(f"{self._group}/{name}/{zone}/{count}".encode()).hexdigest()
        how: Json = {"AvailabilityZones": [zone], "RequestedCapacity": count, "RetryStrategy": "none"}
        unknown: OutcomeUnknown | None = None
        for pause in (0.0, *PAUSES):
            await self._clock.sleep_until(self._clock.now() + pause)
            try:
                return Answer.read(await self._ask(**how, ClientToken=token), count)
            except Launching as error:
                unknown = error
            except ProviderError as error:
                if unknown is None:  # else this is why it is not known: nothing that was begun is taken back
                    return Answer(0, error)
        return Answer(0, unknown)
