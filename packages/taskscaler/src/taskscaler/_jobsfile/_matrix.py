"""Matrices: a job for each combination of values, as users of GitHub Actions know them. Pure.

``matrix = { size = [1, 2], lang = ["a", "b"] }`` has four combinations; the last key varies fastest. Then,

1. each table of ``exclude`` takes away the combinations that have all its values;
2. each table of ``include``, in turn, adds its values to the combinations that agree with it in the keys that the
   matrix has, or is a combination of its own if there is none.

Combinations are made when somebody looks: a matrix of a million takes as many bytes as it has values, and four bytes a
combination if something is excluded.
"""

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from operator import mul
from typing import overload

from attrs import frozen

from fleeting.config import did_you_mean, quoted
from fleeting.errors import ConfigProblem
from fleeting.plugins import describe

Values = Mapping[str, str]
"""Values by their keys, as text: an integer as its digits, a boolean as ``true`` or ``false``."""

MOST_ENTRIES = 1000
"""Tables in ``include``, and in ``exclude``: each is compared with combinations."""

MOST_COMPARISONS = 20_000_000
"""Of combinations with these tables, in one file: some ten seconds."""

KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""What may be a key: it is the name of a variable."""

_REFERENCE = re.compile(r"\$\{\{\s*matrix\.([^}\s]*)\s*\}\}")
_SPECIAL = ("include", "exclude")


@frozen(kw_only=True)
class Matrix:
    """A matrix as it is written."""

    axes: Mapping[str, Sequence[str]]
    include: Sequence[Values] = ()
    exclude: Sequence[Values] = ()

    @property
    def bound(self) -> int:
        """How many combinations it has at the most; known without making one."""
        return self.product + len(self.include)

    @property
    def comparisons(self) -> int:
        """How often a combination is compared with an entry at the most, until all combinations are known."""
        return self.product * (len(self.include) + len(self.exclude))

    @property
    def keys(self) -> frozenset[str]:
        """All keys that a combination may have."""
        return frozenset(self.axes).union(*self.include)

    @property
    def product(self) -> int:
        """How many combinations its axes have."""
        return prod(map(len, self.axes.values())) if self.axes else 0


class Combinations(Sequence[Values]):
    """All combinations of a matrix, in their order."""

    def __init__(self, matrix: Matrix) -> None:
        """See which are excluded, and which are added; takes as long as they are many."""
        self._matrix = matrix
        self._size = matrix.product
        self._kept: Sequence[int] = range(self._size)
        excluded = bytearray(self._size)
        for values in matrix.exclude:
            for place in self._places(values):
                excluded[place] = True
        if any(excluded):
            self._kept = array("I", (place for place in range(self._size) if not excluded[place]))
        self.added = [
            values for values in matrix.include if all(excluded[place] for place in self._places(self._own(values)))
        ]
        """What ``include`` has that no combination of the axes agrees with."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self._kept) + len(self.added)

    @overload
    def __getitem__(self, number: int) -> Values: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Values]: ...
    def __getitem__(self, number: int | slice) -> Values | Sequence[Values]:
        """Give the combination with a number, from 0."""
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        if number >= len(self._kept):
            return self.added[number - len(self._kept)]
        values = self.on_axes(number)
        for more in self._matrix.include:
            own = self._own(more)
            if own.items() <= values.items():
                values |= {key: value for key, value in more.items() if key not in own}
        return values

    def on_axes(self, number: int) -> dict[str, str]:
        """Give the values of a combination that is not an added one, without what ``include`` adds to it."""
        place, indices = self._kept[number], []
        for values in reversed([*self._matrix.axes.values()]):
            place, index = divmod(place, len(values))
            indices.append(index)
        axes = self._matrix.axes.items()
        return {key: values[index] for (key, values), index in zip(axes, reversed(indices), strict=True)}

    def named_by(self, number: int) -> Values:
        """Give the values that distinguish a combination from the others."""
        return self.on_axes(number) if number < len(self._kept) else self[number]

    def _own(self, values: Values) -> dict[str, str]:
        """Give those values whose keys are axes."""
        return {key: value for key, value in values.items() if key in self._matrix.axes}

    def _places(self, values: Values) -> Iterator[int]:
        """Give the places, in the product of the axes, of the combinations that have some values."""
        axes, stride, strides, choices = self._matrix.axes, self._size, [], []
        for key, all_values in axes.items():
            stride //= len(all_values)
            strides.append(stride)
            wanted = values.get(key)
            choices.append([index for index, value in enumerate(all_values) if wanted in (None, value)])
        if axes:
            yield from (sum(map(mul, strides, indices)) for indices in product(*choices))


def references(text: str) -> Iterator[str]:
    """Give the keys that a text refers to, by ``${{ matrix.key }}``."""
    return (match[1] for match in _REFERENCE.finditer(text))


def filled_in(text: str, values: Values) -> str:
    """Put values in the places of the references to them; nothing where a combination has none, as on GitHub."""
    return _REFERENCE.sub(lambda match: values.get(match[1], ""), text)


def matrix_of(table: Mapping[str, object], path: str, problems: list[ConfigProblem]) -> Matrix:
    """Read a matrix; what is wrong with it is appended to *problems*, and left out."""
    axes = {
        key: _axis(values, f"{path}.{key}", problems)
        for key, values in table.items()
        if key not in _SPECIAL and _is_key(key, path, problems)
    }
    include, exclude = (_entries(table.get(key, []), f"{path}.{key}", problems) for key in _SPECIAL)
    for index, entry in enumerate(exclude):
        if strange := entry.keys() - axes.keys():
            found, hint = f"{quoted(min(strange))}, which is not a key of the matrix", did_you_mean(min(strange), axes)
            problems.append(ConfigProblem(path=f"{path}.exclude[{index}]", found=found, hint=hint))
    if not axes and not include:
        problems.append(ConfigProblem(path=path, found="an empty table", expected="keys with arrays of values"))
    return Matrix(
        axes={key: values for key, values in axes.items() if values},
        include=include,
        exclude=[entry for entry in exclude if entry and entry.keys() <= axes.keys()],
    )


def _is_key(key: str, path: str, problems: list[ConfigProblem]) -> bool:
    if KEY.fullmatch(key):
        return True
    expected = "letters, digits and underscores that do not start with a digit: each key is the name of a variable"
    problems.append(ConfigProblem(path=path, found=quoted(key), expected=expected))
    return False


def _axis(values: object, path: str, problems: list[ConfigProblem]) -> Sequence[str]:
    if not isinstance(values, list) or not values:
        problems.append(ConfigProblem(path=path, found=describe(values), expected="an array of at least one value"))
        return ()
    texts = [
        text for index, each in enumerate(values) if (text := _text(each, f"{path}[{index}]", problems)) is not None
    ]
    seen = set[str]()
    for text in texts:
        if text in seen:
            problems.append(ConfigProblem(path=path, found=f"{quoted(text)} twice", expected="each value once"))
            return ()
        seen.add(text)
    return texts


def _entries(entries: object, path: str, problems: list[ConfigProblem]) -> Sequence[Values]:
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        found = f"{len(entries)} tables" if isinstance(entries, list) else describe(entries)
        problems.append(ConfigProblem(path=path, found=found, expected=f"an array of at most {MOST_ENTRIES} tables"))
        return ()
    return [_entry(entry, f"{path}[{index}]", problems) for index, entry in enumerate(entries)]


def _entry(entry: object, path: str, problems: list[ConfigProblem]) -> Values:
    if not isinstance(entry, Mapping) or not entry:
        problems.append(ConfigProblem(path=path, found=describe(entry), expected="a table of keys and values"))
        return {}
    texts = {key: _text(each, f"{path}.{key}", problems) for key, each in entry.items() if _is_key(key, path, problems)}
    return {key: text for key, text in texts.items() if text is not None}


def _text(value: object, path: str, problems: list[ConfigProblem]) -> str | None:
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float() if "\0" not in str(value):
            return str(value)
    expected = "a string, a number, true or false"
    problems.append(ConfigProblem(path=path, found=describe(value), expected=expected))
    return None
