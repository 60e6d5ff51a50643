"""What a command reads, whole or as it comes: the same to a connector."""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from inspect import isasyncgen

from attrs import define, field

from fleeting._protocols import Source


def arriving(stdin: Source | None) -> AsyncIterable[bytes]:
    """Let all of it arrive in chunks; what is there already is one chunk.

    Raises:
        TypeError: It is text.
    """
    if isinstance(stdin, str):
        raise TypeError("stdin must be bytes, not a string; encode it")
    return _Whole(stdin or b"") if isinstance(stdin, bytes | None) else stdin


@asynccontextmanager
async def reading(source: AsyncIterable[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Read a command's input, perhaps not to its end: leaving the context closes a generator.

    A command may end before it has read all; a loop that is left then would leave the generator, and what it holds
    open, to the garbage collector.

    Args:
        source: What `arriving` returned; it is read once.
    """
    chunks = aiter(source)
    try:
        yield chunks
    finally:
        if isasyncgen(chunks) or isinstance(chunks, _Preceded):
            await chunks.aclose()


def preceded(first: bytes, stdin: Source | None) -> Source | None:
    """Let *first* arrive before all else.

    Raises:
        TypeError: As `arriving`.
    """
    return _Preceded(first, arriving(stdin)) if first else stdin


@define
class _Preceded:
    """Arrives after something else; no generator, as `_Whole`."""

    _first: bytes
    _rest: AsyncIterable[bytes]
    _arriving: AsyncIterator[bytes] | None = field(default=None, init=False)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._arriving is None:
            self._arriving = aiter(self._rest)
            return self._first
        return await anext(self._arriving)

    async def aclose(self) -> None:
        if isasyncgen(self._arriving):
            await self._arriving.aclose()


@define
class _Whole:
    """Arrives at once. No generator: one that is not read to its end has to be closed by somebody."""

    _rest: bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._rest:
            raise StopAsyncIteration
        data, self._rest = self._rest, b""
        return data
