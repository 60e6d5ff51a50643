"""The values of a job's variables: which of two with one name counts, and what references stand for: pure."""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from attrs import define, evolve, field

from gitlab_jobs import Variable
from taskscaler_gitlab.runner._expansion import Budget

TEMPORARY = "RUNNER_TEMP_PROJECT_DIR"
"""The directory that the files of variables are in."""

_SURROGATES = re.compile(r"[\ud800-\udfff]")


@define
class Variables:
    """The variables of a job in their order, and their values once references are replaced.

    All values are replaced together: each refers to the others as they were before.
    """

    before: list[Variable]
    sent: list[Variable]
    after: list[Variable]
    _last: dict[str, Variable] = field(init=False, repr=False)
    _values: list[tuple[Variable, str]] = field(init=False, repr=False)
    _value: dict[str, str] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Replace the references."""
        self._last = {each.key: each for each in self._all}
        self._values = list(self._expanded())
        self._value = {each.key: value for each, value in self._values}

    def __contains__(self, name: object) -> bool:
        return name in self._last

    @property
    def names(self) -> Iterable[str]:
        """All of them."""
        return self._last

    @property
    def public(self) -> Mapping[str, str]:
        """Those that services have too: what the job's author calls public, and what the runner says."""
        own = {id(each) for each in (*self.before, *self.after)}
        shared = ((each, value) for each, value in self._values if each.public or id(each) in own)
        return {each.key: self._path(each.key) if each.file else value for each, value in shared}

    @property
    def masked(self) -> Iterator[str]:
        """Values that no log may show, those of variables that are overridden too."""
        return (value for each, value in self._values if each.masked)

    def is_file(self, name: str) -> bool:
        """Whether the value is written to a file."""
        return self._last[name].file

    def get(self, name: str) -> str:
        """The value, or the path of the file that has it; empty if there is no such variable."""
        return self._path(name) if name in self._last and self._last[name].file else self.content(name)

    def content(self, name: str) -> str:
        """The value, be it in a file or not."""
        return self._value.get(name, "")

    @property
    def _all(self) -> Iterator[Variable]:
        return chain(self.before, self.sent, self.after)

    def _expanded(self) -> Iterator[tuple[Variable, str]]:
        budget = Budget()
        for each in self._all:
            yield each, each.value if each.raw else budget.expand(each.value, self._unexpanded)

    def _unexpanded(self, name: str) -> str:
        found = self._last.get(name)
        if found is None:
            return ""
        return self._path(name) if found.file else found.value

    def _path(self, name: str) -> str:
        return posixpath.join(self._last[TEMPORARY].value, name)


def said(name: str, value: str) -> Variable:
    """What the runner says."""
    return Variable(key=name, value=value, raw=True)


def cleaned(variable: Variable) -> Variable:
    """A variable with a value that a shell can have, see `whole`."""
    return variable if variable.value.isascii() else evolve(variable, value=whole(variable.value))


def whole(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can have and a shell cannot: as GitLab Runner reads it."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
