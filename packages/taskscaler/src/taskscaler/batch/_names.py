"""Names that differ, and their numbers, in few bytes each. Pure.

A million strings in a dictionary take 180 MB. Here they are one text, and an index of their hashes is beside it, with
open addressing: some 30 bytes a name.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import overload

_ENCODING = ("utf-8", "surrogatepass")  # of whatever comes out of a file


class Names(Sequence[str]):
    """A sequence of names; which number one has is looked up as in a dictionary."""

    __slots__ = ("_ends", "_index", "_text")

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Take names over, in their order.

        Raises:
            ValueError: One comes twice; only found by the first look-up.
        """
        text = bytearray()
        self._ends = array("Q", [0])
        for name in names:
            text += name.encode(*_ENCODING)
            self._ends.append(len(text))
        self._text = bytes(text)
        self._index: array[int] | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[str]: ...
    def __getitem__(self, number: int | slice) -> str | Sequence[str]:
        """Give the name with a number, from 0."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        return self._text[self._ends[number] : self._ends[number + 1]].decode(*_ENCODING)

    def __iter__(self) -> Iterator[str]:
        """Give all of them, in order."""
        return (name.decode(*_ENCODING) for name in self._encoded())

    def __contains__(self, name: object) -> bool:
        """Whether there is such a name."""
        return isinstance(name, str) and self.number(name) is not None

    def __eq__(self, other: object) -> bool:
        """Whether the others are the same, in the same order."""
        if not isinstance(other, Names):
            return NotImplemented
        return (self._text, self._ends) == (other._text, other._ends)

    def __hash__(self) -> int:
        """Of what `__eq__` compares."""
        return hash(self._text)

    def __repr__(self) -> str:
        """Say how many there are, and not each."""
        return f"<{len(self)} names>"

    def number(self, name: str) -> int | None:
        """Which number a name has; None: there is none of that name.

        Raises:
            ValueError: Two names are the same.
        """
        index = self._indexed() if self._index is None else self._index
        place = self._place(index, name.encode(*_ENCODING))
        return index[place] - 1 if index[place] else None

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Give the numbers of names that are the same: of the first one, and of each later one."""
        index = self._empty_index()
        for number, name in enumerate(self._encoded(), 1):
            place = self._place(index, name)
            if index[place]:
                yield index[place] - 1, number - 1
            else:
                index[place] = number
        self._index = index

    def _indexed(self) -> "array[int]":
        """Make the index: at the place of each name its number and one more; where there is none, 0."""
        for _, number in self.repeated():
            raise ValueError(f"it has the job {self[number]!r} twice")
        return self._index or self._empty_index()

    def _empty_index(self) -> "array[int]":
        size = 4
        while size < 2 * len(self):
            size *= 2
        return array("I", bytes(size * array("I").itemsize))

    def _encoded(self) -> Iterator[bytes]:
        return (self._text[start:end] for start, end in pairwise(self._ends))

    def _place(self, index: "array[int]", name: bytes) -> int:
        """Find the place of a name in an index, or the free one where it would be."""
        mask, text, ends = len(index) - 1, self._text, self._ends
        place = hash(name) & mask
        while (number := index[place]) and text[ends[number - 1] : ends[number]] != name:
            place = (place + 1) & mask
        return place
