"""Makes a play come out the same each time: nothing in it may depend on where objects lie in memory.

Both backends keep tasks and scopes in sets, whose order follows the objects' addresses: in which order several tasks
are cancelled would differ from run to run, and with it what a story comes to. Trio can order them by itself; for
asyncio, anyio's scopes are given sets that keep the order in which things were put into them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import TypeVar

T = TypeVar("T")


class InOrder(dict[T, None]):
    """As much of a set as cancel scopes use; it is gone through in the order in which things came."""

    __slots__ = ()

    add = dict.setdefault
    """Put an item last, unless it is there."""

    remove = dict.__delitem__
    """Take it out; raises `KeyError` if it is not there."""

    def discard(self, item: T) -> None:
        """Take it out if it is there."""
        self.pop(item, None)


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
    """Let asyncio's tasks be cancelled in the order in which they came into their scopes.

    The scopes' own function makes the sets, to which another `set` is given: a story makes 5,000 scopes.
    """
    from anyio._backends._asyncio import CancelScope

    init = CancelScope.__init__
    in_order = FunctionType(init.__code__, {**init.__globals__, "set": InOrder}, argdefs=init.__defaults__)
    CancelScope.__init__ = in_order  # type: ignore[method-assign]
    try:
        yield
    finally:
        CancelScope.__init__ = init  # type: ignore[method-assign]
