"""Makes a play come out the same each time: nothing in it may depend on where objects lie in memory.

Both backends keep tasks and scopes in sets, whose order follows the objects' addresses: in which order several tasks
are cancelled would differ from run to run, and with it what a story comes to. Trio can order them by itself; for
asyncio, anyio's scopes are given sets that keep the order in which things were put into them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class InOrder(dict[T, None]):
    """As much of a set as cancel scopes use; it is gone through in the order in which things came."""

    __slots__ = ()

    def add(self, item: T) -> None:
        """Put it last, unless it is there."""
        self.setdefault(item)

    def discard(self, item: T) -> None:
        """Take it out if it is there."""
        self.pop(item, None)

    def remove(self, item: T) -> None:
        """Take it out; raises `KeyError` if it is not there."""
        del self[item]


@contextmanager
def repeatable(backend: str, seed: int) -> Iterator[None]:
    """Let all that runs in here come out the same each time; where there is a choice, the seed makes it."""
    with _trio_in_order(seed) if backend == "trio" else _scopes_in_order():
        yield


@contextmanager
def _trio_in_order(seed: int) -> Iterator[None]:
    """Let trio choose the order of tasks by the seed, as hypothesis does."""
    from trio._core import _run

    before = _run._ALLOW_DETERMINISTIC_SCHEDULING
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r.seed(seed)
    try:
        yield
    finally:
        _run._ALLOW_DETERMINISTIC_SCHEDULING = before  # type: ignore[misc]


@contextmanager
def _scopes_in_order() -> Iterator[None]:
    """Let asyncio's tasks be cancelled in the order in which they came into their scopes."""
    from anyio._backends._asyncio import CancelScope

    init = CancelScope.__init__

    def init_in_order(self: CancelScope, *args: float, **kwargs: float) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        self._tasks = InOrder()  # type: ignore[assignment]
        self._child_scopes = InOrder()  # type: ignore[assignment]

    CancelScope.__init__ = init_in_order  # type: ignore[method-assign]
    try:
        yield
    finally:
        CancelScope.__init__ = init  # type: ignore[method-assign]
