"""What a runner brings back to a router: only what the router has sealed, for this runner, is read."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskscaler_gitlab.cells._tickets import LONGEST_OF_CELL, Ticket, Tickets, key_in

OURS, THEIRS = Tickets(b"k" * 32), Tickets(b"o" * 32)
SEALED = OURS.seal(Ticket({"1": "7", "2": ""}, 1_800_000_000), "glrt-a")


@given(
    cells=st.dictionaries(st.from_regex(r"[0-9]{1,5}|[a-z]{1,9}", fullmatch=True), st.text(max_size=30), max_size=20),
    at=st.integers(0, 2**40),
    token=st.text(),
)
def test_a_ticket_is_read_as_it_was_sealed(cells: dict[str, str], at: int, token: str) -> None:
    """Whatever cells put into theirs, and always in the same words."""
    ticket = Ticket(cells, at)
    sealed = OURS.seal(ticket, token)
    assert OURS.open(sealed, token) == ticket
    assert sealed == OURS.seal(Ticket(dict(reversed(cells.items())), at), token)
    assert sealed.isascii()
    assert sealed.isprintable()


@given(at=st.integers(0, len(SEALED) - 1), other=st.characters())
def test_a_forged_ticket_is_none(at: int, other: str) -> None:
    """Any other character, anywhere; but for bits of base64 that stand for nothing."""
    changed = SEALED[:at] + other + SEALED[at + 1 :]
    if OURS.open(changed, "glrt-a") is not None:
        assert at == len(SEALED) - 1


@pytest.mark.parametrize(
    "text",
    ["", "7", "cells1.", "cells1.AAAA", "cells1." + "A" * 9_000, "cells2." + SEALED[7:], None, 7.5, [SEALED]],
)
def test_anything_else_is_none(text: object) -> None:
    """A cell's own, those of other versions, and what is no text."""
    assert OURS.open(text, "glrt-a") is None


def test_a_ticket_of_another_router_or_runner_is_none() -> None:
    """Each router has a key of its own, and each runner its tickets."""
    assert THEIRS.open(SEALED, "glrt-a") is None
    assert OURS.open(SEALED, "glrt-b") is None
    assert OURS.open(SEALED, "glrt-a") == Ticket({"1": "7", "2": ""}, 1_800_000_000)


def test_a_ticket_of_a_cell_that_is_too_long_is_left_out() -> None:
    """The cell is asked as if the runner had none."""
    sealed = OURS.seal(Ticket({"1": "x" * (LONGEST_OF_CELL + 1), "2": "y"}, 0), "t")
    assert OURS.open(sealed, "t") == Ticket({"1": "", "2": "y"}, 0)


def test_tickets_of_many_cells_have_room_in_a_header() -> None:
    """Which cells know the runner is said in any case; what it has seen of them costs an answer too early at most."""
    cells = {str(each): "x" * 200 for each in range(64)}
    sealed = OURS.seal(Ticket(cells, 5), "t")
    assert len(sealed) < 8192
    assert OURS.open(sealed, "t") == Ticket(dict.fromkeys(cells, ""), 5)


def test_the_key_stays_and_is_for_our_user_alone(tmp_path: Path) -> None:
    """Also if its file was damaged: then there is a new one."""
    first = key_in(tmp_path / "router")
    path = tmp_path / "router" / "key"
    assert (key_in(tmp_path / "router"), len(first)) == (first, 32)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_bytes(b"short")
    assert key_in(tmp_path / "router") != first
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="it is a link"):
        key_in(tmp_path / "router")
