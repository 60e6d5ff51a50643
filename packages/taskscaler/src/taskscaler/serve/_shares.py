"""How much one user may take of what a daemon has a bound for, such as connections. Pure.

The members of a group share a daemon with its own user, who has to be able to look, and to drain it, whatever they do.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, ip_address, ip_network

from taskscaler.serve._peers import Peer


def has_room(most: int, taken: Mapping[int, int], peer: Peer, wanted: int = 1) -> bool:
    """Whether a user may take some more.

    Args:
        most: How many there may be in all.
        taken: How many each user has, by the user's number.
        peer: Who wants some. One member gets half at most, all members together three quarters; a bound of one is for
            whoever comes first.
        wanted: How many.
    """
    if sum(taken.values()) + wanted > most:
        return False
    if peer.is_owner:
        return True
    members = sum(count for uid, count in taken.items() if not Peer(uid).is_owner)
    return taken.get(peer.uid, 0) + wanted <= max(1, most // 2) and members + wanted <= max(1, most - most // 4)


def network_of(address: str) -> str:
    """Say to which client an address belongs: of IPv6, everybody has a network of 64 bits to take addresses from."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((found, 64), strict=False))
