"""What answers have in common, whoever was asked: a sentence, what led to it, what comes next; and how it is shown."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar

from attrs import frozen

from taskscaler._wording import iso
from taskscaler.diagnose._forecast import Upcoming

SCHEMA_VERSION = 1
"""Of all answers as JSON; raised when a key changes its meaning or goes."""

Row = tuple[str, str]
"""A label, and what is said under it."""


@frozen(kw_only=True)
class Answer(ABC):
    """An answer; `str()` of it is for people."""

    about: ClassVar[str]
    """What was asked about, as JSON has it."""

    at: float
    """When it was asked, in seconds since the epoch."""

    @property
    @abstractmethod
    def answer(self) -> str:
        """All that matters, in one sentence."""

    @abstractmethod
    def rows(self) -> Iterator[Row]:
        """All there is to say, under labels; the answer first."""

    @abstractmethod
    def data(self) -> Mapping[str, object]:
        """What `as_dict` has besides the keys that every answer has."""

    def sentences(self) -> Iterator[str]:
        """All there is to say, one thought each; the answer first."""
        return (text for _, text in self.rows())

    def __str__(self) -> str:
        """All sentences, a line each."""
        return "\n  ".join(self.sentences())

    def as_dict(self) -> dict[str, object]:
        """Plain data, as docs/reference/explain-json.md describes it."""
        asked = {"version": SCHEMA_VERSION, "about": self.about, "at": iso(self.at)}
        return {**asked, "answer": self.answer, **self.data()}


@frozen(kw_only=True)
class ScalerAnswer(Answer):
    """An answer about a scaler that runs."""

    next: tuple[Upcoming, ...] = ()
    """What time alone will bring, soonest first."""

    @abstractmethod
    def details(self) -> Iterator[str]:
        """What led to the answer, one thought each."""

    def rows(self) -> Iterator[Row]:
        """See `Answer.rows`."""
        yield self.about, self.answer
        yield from (("details", line) for line in self.details())
        yield from (("next", str(each)) for each in self.next)

    def as_dict(self) -> dict[str, object]:
        """See `Answer.as_dict`."""
        return {**super().as_dict(), "details": [*self.details()], "next": [each.as_dict() for each in self.next]}
