"""Time limits that stand still while somebody looks at a run."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import anyio


@contextmanager
def standing_still(limit: "anyio.CancelScope | None") -> Iterator[None]:
    """Have a time limit stand still meanwhile."""
    if limit is None:
        yield
        return
    left = limit.deadline - anyio.current_time()
    limit.deadline = math.inf
    try:
        yield
    finally:
        limit.deadline = anyio.current_time() + left
