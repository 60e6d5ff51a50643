"""Where a service listens, however that is written: overlaps are found, and nothing that is asked for is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler import TaskscalerError
from taskscaler_gitlab.relay._ears import Ears
from taskscaler_gitlab.relay._places import Place, is_covered, places_of, widest

PLACES = st.builds(
    Place,
    st.sampled_from(["127.0.0.1", "10.0.0.5", "0.0.0.0", "::1", "::", "fe80::1%eth0"]),  # noqa: S104  (nobody listens)
    st.sampled_from([8930, 8931]),
)


@given(st.lists(PLACES))
def test_the_widest_places_cover_all_and_none_covers_another(places: list[Place]) -> None:
    """So whoever listens at those hears everything, and can have each of them."""
    found = widest(places)
    assert set(found) <= set(places)
    assert all(is_covered(each, found) for each in places)
    assert not [(one, other) for one in found for other in found if one is not other and one.covers(other)]


@given(PLACES, PLACES)
def test_a_wildcard_covers_its_family_at_its_port(one: Place, other: Place) -> None:
    """And any place covers itself; two different ones never cover each other."""
    assert one.covers(one)
    assert one == other or not (one.covers(other) and other.covers(one))
    is_wild = one.address in ("0.0.0.0", "::")  # noqa: S104  (nobody listens)
    alike = one.port == other.port and (":" in one.address) == (":" in other.address)
    assert one.covers(other) is (one == other or (is_wild and alike))


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:8930", [Place("127.0.0.1", 8930)]),
        ("[::1]:8930", [Place("::1", 8930)]),
        ("[0:0::1]:8930", [Place("::1", 8930)]),
        ("[::]:8930", [Place("::", 8930)]),
    ],
)
def test_an_address_of_ipv6_has_brackets(listen: str, found: list[Place]) -> None:
    """As everywhere; without, nobody could say where the port begins."""
    assert places_of(listen) == found
    with pytest.raises(TaskscalerError, match=r"'::1:8930' is not HOST:PORT, such as .* or \[::1\]:8443"):
        places_of("::1:8930")


def test_who_calls_at_a_link_local_address_is_let_in_whatever_its_interface() -> None:
    """Sockets do not name it; nevertheless, one address on two interfaces is two places to listen at."""
    there = [Place("fe80::1%eth0", 8930), Place("fe80::1%eth1", 8930)]
    assert Ears(own=there[:1]).lets_in(Place("fe80::1", 8930))
    assert not Ears(own=there).lets_in(Place("fe80::1", 8931))
    assert widest(there) == there


def test_a_name_stands_for_its_addresses() -> None:
    """That of this machine has one that others use too; one that is none is an error which says where it comes from."""
    assert Place("127.0.0.1", 8930) in places_of("localhost:8930")
    with pytest.raises(TaskscalerError, match=r"is not a name or an address .*; name one with `listen`"):
        places_of(f"{'x' * 64}:8930")
