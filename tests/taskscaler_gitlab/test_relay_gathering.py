"""Pieces of a file on their way to GitLab, in virtual time: few where many come, and none that waits for long."""

from collections.abc import AsyncGenerator, Sequence

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting.testing import virtual_backend, virtual_time
from taskscaler_gitlab.relay._routes import GATHERED, HELD_BACK, gathered

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time

PIECE = bytes(32 << 10)


async def coming(pieces: Sequence[tuple[float, bytes]]) -> AsyncGenerator[bytes, None]:
    """Give each piece so many seconds after the one before."""
    for pause, piece in pieces:
        await anyio.sleep(pause)
        yield piece


async def gone_on(pieces: Sequence[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """What goes on, and when."""
    began = anyio.current_time()
    return [(anyio.current_time() - began, piece) async for piece in gathered(coming(pieces))]


async def test_pieces_that_come_at_once_go_on_together() -> None:
    """A file that comes in 32 KiB costs a quarter of the calls."""
    went = await gone_on([(0.0, PIECE)] * 64)
    assert [len(piece) for _, piece in went] == [GATHERED] * 16


async def test_a_piece_that_comes_late_goes_on_at_once() -> None:
    """However small it is: GitLab, and what stands before it, see that the file still comes."""
    went = await gone_on([(1.0, b"a"), (1.0, b"b"), (1.0, b"c")])
    assert went == [(1.0, b"a"), (2.0, b"b"), (3.0, b"c")]


PAUSES = st.sampled_from([0.0, HELD_BACK / 3, 1.0])
SIZES = st.binary(max_size=40).map(lambda piece: piece * 4096)


@given(pieces=st.lists(st.tuples(PAUSES, SIZES), max_size=30))
def test_nothing_is_lost(pieces: list[tuple[float, bytes]]) -> None:
    """The file is the same; no piece that goes on is empty, or larger than what is gathered and one piece more."""
    backend, options = virtual_backend("trio")
    went = anyio.run(gone_on, pieces, backend=backend, backend_options=options)
    assert b"".join(piece for _, piece in went) == b"".join(piece for _, piece in pieces)
    assert all(0 < len(piece) < GATHERED + 40 * 4096 for _, piece in went)
