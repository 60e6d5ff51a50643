"""A sorted sequence of which a snapshot costs little, however long it is. Pure.

The values stand in blocks that are replaced, never changed; so a snapshot is no more than the list of blocks, and all
snapshots share those that are the same in them.
"""

from bisect import bisect_left
from typing import Generic, TypeVar

MOST = 64
"""Values in a block: a change copies one block, a snapshot one reference a block."""

Key = tuple[float, int]

V = TypeVar("V")


class Blocks(Generic[V]):
    """Values in the order of their keys, no two of which are equal."""

    def __init__(self, most: int = MOST) -> None:
        """Start with none; *most*: values in a block, at least 2."""
        self._most = most
        self._blocks: list[tuple[V, ...]] = []
        self._keys: list[list[Key]] = []
        """Of each block."""

        self._last: list[Key] = []
        """The last of each block."""

    @property
    def first(self) -> Key | None:
        """The lowest key; None: there is none."""
        return self._keys[0][0] if self._keys else None

    def snapshot(self) -> tuple[tuple[V, ...], ...]:
        """All values in order, block by block."""
        return tuple(self._blocks)

    def add(self, key: Key, value: V) -> None:
        """Take in a value."""
        at = bisect_left(self._last, key)
        if at == len(self._last):  # it comes behind all others, as most do
            if not at or len(self._keys[-1]) >= self._most:
                self._blocks.append((value,))
                self._keys.append([key])
                self._last.append(key)
                return
            at -= 1
        keys, block = self._keys[at], self._blocks[at]
        place = bisect_left(keys, key)
        keys.insert(place, key)
        self._replace(at, (*block[:place], value, *block[place:]))
        if len(keys) > self._most:
            self._split(at)

    def remove(self, key: Key) -> None:
        """Take out the value of that key, which must be there."""
        at = bisect_left(self._last, key)
        keys, block = self._keys[at], self._blocks[at]
        place = bisect_left(keys, key)
        del keys[place]
        if keys:
            self._replace(at, block[:place] + block[place + 1 :])
        else:
            del self._blocks[at], self._keys[at], self._last[at]

    def _replace(self, at: int, block: tuple[V, ...]) -> None:
        """Its keys have changed already."""
        self._blocks[at] = block
        self._last[at] = self._keys[at][-1]

    def _split(self, at: int) -> None:
        """Make two of a block that has become too long."""
        keys, block = self._keys[at], self._blocks[at]
        half = len(keys) // 2
        self._blocks[at : at + 1] = block[:half], block[half:]
        self._keys[at : at + 1] = keys[:half], keys[half:]
        self._last[at : at + 1] = keys[half - 1], keys[-1]
