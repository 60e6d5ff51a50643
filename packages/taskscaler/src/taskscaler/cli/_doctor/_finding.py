"""What was found: a line for people, keys for programs; and what neither may show."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Final

from attrs import evolve, field, frozen

from fleeting import ProviderError
from fleeting.cli import EXPECTED, in_lines
from fleeting.errors import catalogue
from fleeting.plugins import one_line

VERSION: Final = 1
"""Of what ``--json`` prints; raised when a key changes its meaning or goes."""

HIDDEN: Final = "(hidden)"

SHORTEST, SHORTEST_OF_ENVIRONMENT = 4, 8
"""Characters of a secret in the file, and of one in the environment, which has much that only looks like one: what is
shorter stands in many words by chance."""

_SECRET_KEY = re.compile(r"pass|secret|token|credential|auth|apikey|api_key|private|cookie", re.IGNORECASE)
_SECRET_TABLE = re.compile(r"env|environment|headers|variables", re.IGNORECASE)
_NO_SECRET = re.compile(r"_(?:path|file|dir|name|id|url)$", re.IGNORECASE)
_USERINFO = re.compile(r"://[^/@\s]+@")
_ERROR = re.compile(r"error: (?P<found>.*?)(?:; (?P<do>.*))? \[(?P<code>[A-Z]+\d+)\]", re.DOTALL)

_DEFECT = "report this to the plugin's author: a plugin raises errors of fleeting's"


class Grade(Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@frozen(kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """What was looked at, in one word."""

    grade: Grade
    found: str
    """What was found; a clause."""

    do: str = ""
    """What to do about it; empty if there is nothing to do."""

    code: str = ""
    """The error's in the catalogue; empty if it has none."""

    pool: str = ""
    """Which pool it concerns, if there are several."""

    def __str__(self) -> str:
        """One line."""
        about = f"{self.check} ({self.pool})" if self.pool else self.check
        do = f"; {self.do}" if self.do else ""
        return f"{self.grade.value:<9}{about}: {self.found}{do}{f' [{self.code}]' if self.code else ''}"

    def as_dict(self) -> Mapping[str, str | None]:
        """For programs; null where there is nothing."""
        return {
            "check": self.check,
            "pool": self.pool or None,
            "grade": self.grade.value,
            "found": self.found,
            "do": self.do or None,
            "code": self.code or None,
        }


def of_error(check: str, error: BaseException, *, pool: str = "", about: str = "") -> list[Finding]:
    """Report an error as commands do, line by line, with what to do; one that no plugin may raise, by its kind.

    Args:
        check: Which check met it.
        error: Also a group of errors, and one that cannot even be printed.
        pool: Of several.
        about: What stands before it, such as ``i-1 cannot be dialled: ``.
    """
    if isinstance(error, BaseExceptionGroup):
        return [found for each in error.exceptions for found in of_error(check, each, pool=pool, about=about)]
    try:
        if isinstance(error, OSError) and not error.filename:  # of the network, not of a file
            error = ProviderError(f"{error.strerror or str(error) or type(error).__name__}; check network and proxy")
        if isinstance(error, EXPECTED):
            return [evolve(_of_line(check, line, about), pool=pool) for line in in_lines(error)]
        found = f"{about}{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # noqa: BLE001  (an error may do anything when it is printed)
        found = f"{about}{type(error).__name__}"
    return [Finding(check=check, grade=Grade.PROBLEM, found=found, do=_DEFECT, pool=pool)]


def _of_line(check: str, line: str, about: str) -> Finding:
    """Take a line apart that `in_lines` has written; one without a code belongs to the line before."""
    parts = _ERROR.fullmatch(line)
    if parts is None:
        return Finding(check=check, grade=Grade.PROBLEM, found=line.strip())
    remedy = catalogue()[parts["code"]].remedy.removesuffix(".")
    return Finding(
        check=check,
        grade=Grade.PROBLEM,
        found=f"{about}{parts['found']}",
        do=parts["do"] or f"{remedy[:1].lower()}{remedy[1:]}",
        code=parts["code"],
    )


@frozen
class Veil:
    """Takes out of what is printed whatever looks like a secret of the file or of the environment."""

    _secrets: frozenset[str] = field(default=frozenset(), repr=False)

    @classmethod
    def over(
        cls, file: Mapping[str, object], environment: Mapping[str, str], keys: Collection[str] = frozenset()
    ) -> "Veil":
        """Hide what stands under one of these *keys*, or under one that is called like a secret, at any depth."""
        of_file = {each for each in _secrets_in(file, keys, secret=False) if len(each) >= SHORTEST}
        values = (value for name, value in environment.items() if _is_secret(name))
        found = of_file | {each for each in values if len(each) >= SHORTEST_OF_ENVIRONMENT}
        found = {each for each in found if not (each.startswith("/") and os.path.exists(each))}  # noqa: PTH110  (nor a path)
        lines = {line.strip() for value in found for line in value.splitlines()}  # of a private key, say
        return cls(frozenset({*found, *(line for line in lines if len(line) >= SHORTEST)}))

    def __call__(self, finding: Finding) -> Finding:
        """Hide them, and make each text one line of a bounded length."""
        return Finding(
            check=finding.check,
            grade=finding.grade,
            found=self._without(finding.found),
            do=self._without(finding.do),
            code=finding.code,
            pool=self._without(finding.pool),
        )

    def _without(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return one_line(_USERINFO.sub(f"://{HIDDEN}@", text))


def _is_secret(name: str) -> bool:
    return bool(_SECRET_KEY.search(name)) and not _NO_SECRET.search(name)


def _secrets_in(value: object, keys: Collection[str], *, secret: bool) -> Iterator[str]:
    match value:
        case Mapping():
            for key, each in value.items():
                name = str(key)
                table = isinstance(each, Mapping) and _SECRET_TABLE.fullmatch(name) is not None
                yield from _secrets_in(each, keys, secret=secret or table or name in keys or _is_secret(name))
        case list() | tuple():
            for each in value:
                yield from _secrets_in(each, keys, secret=secret)
        case str() if secret:
            yield value


def worst(findings: list[Finding]) -> Grade:
    """The worst grade among them."""
    return max((finding.grade for finding in findings), key=list(Grade).index, default=Grade.OK)
