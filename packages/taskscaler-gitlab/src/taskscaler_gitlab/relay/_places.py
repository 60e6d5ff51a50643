"""Where a service listens, however that is written: an address is the same as its name, and a wildcard covers others.

Pure but for names, which are looked up.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address

from attrs import frozen

from fleeting.plugins import place_to_listen
from taskscaler import TaskscalerError
from taskscaler.serve import addresses_of

OPTION = "`listen`"
"""Where an address comes from, for people."""


@frozen
class Place:
    """An address of this machine, and a port."""

    address: str
    port: int

    @property
    def unscoped(self) -> "Place":
        """It without the interface of a link-local address (``fe80::1%eth0``), which sockets do not name."""
        return Place(self.address.partition("%")[0], self.port)

    def covers(self, other: "Place") -> bool:
        """Whether who listens here hears all that comes there: here is the same, or all addresses of its family."""
        if self == other:
            return True
        mine, others = ip_address(self.address), ip_address(other.address)
        return self.port == other.port and mine.version == others.version and mine.is_unspecified


def places_of(listen: str) -> Sequence[Place]:
    """All places that an ``address:port`` stands for, at least one, without repeats; blocks if it is a name.

    Raises:
        TaskscalerError: It stands for none.
    """
    try:
        host, port = place_to_listen(listen)
    except ValueError as error:  # noted down by an earlier release, which took an address of IPv6 without brackets
        raise TaskscalerError(str(error)) from error
    return [Place(address, port) for address in addresses_of(host, port, OPTION)]


def is_covered(place: Place, by: Iterable[Place]) -> bool:
    """Whether who listens at all of these hears what comes to a place."""
    return any(each.covers(place) for each in by)


def widest(places: Iterable[Place]) -> Sequence[Place]:
    """Where to listen to hear what comes to any of them, without repeats: two that overlap cannot both be had."""
    distinct = [*dict.fromkeys(places)]
    return [each for each in distinct if not is_covered(each, (other for other in distinct if other != each))]
