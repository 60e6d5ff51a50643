"""Prose that users read, pinned word for word in one file, so that rewording it is one command and one diff.

Tests assert structure (codes, fields, numbers) where they are, and hand the sentences to the fixture ``golden``.
``pytest --golden-update`` writes what it is given into the file; review the diff.
"""

import fcntl
import re
from collections.abc import Callable, Collection
from pathlib import Path

from attrs import frozen

FILE = Path(__file__).with_name("prose.txt")
_ENTRY = re.compile(r"^=== (.+)\n((?:(?!=== ).*\n)*)", re.MULTILINE)


@frozen
class Golden:
    """The file, to compare with or to update."""

    update: bool

    def __call__(self, name: str, text: str) -> None:
        """Assert that *text* is what the file has under *name*, such as ``bad_inputs/file: empty``."""
        text = "".join(f"{line}\n" for line in text.splitlines())
        if self.update:
            _rewrite(lambda entries: {**entries, name: text})
        else:
            assert text == _read().get(name, ""), "if the new wording is better: pytest --golden-update"

    def text(self, name: str) -> str:
        """What the file has under *name*, for pages that show it."""
        return _read()[name]

    def has_only(self, prefix: str, names: Collection[str]) -> None:
        """Assert that nothing else begins with *prefix*, such as the prose of a test that is gone."""
        wanted = {f"{prefix}{name}" for name in names}
        if self.update:
            _rewrite(lambda entries: {k: v for k, v in entries.items() if k in wanted or not k.startswith(prefix)})
        else:
            assert {name for name in _read() if name.startswith(prefix)} == wanted


def _read() -> dict[str, str]:
    return dict(_ENTRY.findall(FILE.read_text()))


def _rewrite(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    with FILE.open("r+") as file:  # several workers may update it
        fcntl.flock(file, fcntl.LOCK_EX)
        entries = change(dict(_ENTRY.findall(file.read())))
        file.seek(0)
        file.truncate()
        file.write("".join(f"=== {name}\n{entries[name]}" for name in sorted(entries)))
