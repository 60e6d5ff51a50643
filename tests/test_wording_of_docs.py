"""Words that read as translated do not come back: in pages, in READMEs, and in the strings that programs print.

Docstrings and comments are not looked at, but for those that are printed in a page.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BANNED = (
    ("anew", r"anew", "again"),
    ("whoever", r"whoever", "anybody who; or name them: the manager, the user"),
    ("as ever", r"as ever", "as before, as usual"),
    ("by then", r"by then", "first, sooner, before that"),
    ("set back", r"(?:is|are|was|were) set back", "deprioritised, asked later"),
    (" on with", r"g(?:o|oes|oing|one) on with", "resume, continue, keep using"),
    ("is none", r"(?<!there )is (?-i:none)(?! of)", "is not one"),
    ("is no ", r"(?<!there )is no (?!longer|more|good|error)", "is not a"),
    (" told", r"(?:is|are|be|was|were|been) told", "learns; or say who reports, logs or prints it"),
    ("tell", r"tells? of", "reports, describes"),
    ("dear", r"dear(?:er)?", "expensive"),
    ("see", r"see(?:s|n)? to", "check, make sure"),
    ("own", r"(?:one's own|of (?:its|their|your) own accord)", "your own, by itself"),
    ("bear", r"bears?", "has, carries, copes with"),
    ("stand", r"may(?: not)? stand", "is allowed"),
    ("begun", r"(?:is|are|was|were|be|been|has|have|had) begun", "started"),
    ("to be had", r"to be had", "available"),
    ("for want of", r"for want of", "because there is no"),
    ("become", r"(?:what|which) becomes? of", "what happens to"),
    ("a known key", r"expected a known key", "name the keys"),
    ("those on top", r"those on top", "the consumer"),
    ("in whatever", r"in whatever", "in any"),
    ("need be", r"nothing need be", "do nothing"),
    ("that lacks", r"that lacks", "without, the missing"),
    ("no use", r"(?:is|are|of) (?:of )?no use", "unusable, not needed"),
    ("asked later", r"(?:is|are) asked later", "deprioritised"),
    ("nobody waits", r"nobody waits(?=[,;:])", "nothing is waiting,"),
    ("in vain", r"in vain", "without success"),
    ("nobody expects", r"nobody expects", "unexpectedly"),
    ("breaks off", r"breaks? off", "is truncated, ends early"),
    ("shall be", r"shall be", "should be, is to be"),
    ("asked of", r"asked of", "requested from"),
    (" us in", r"lets? us", "refuses the login"),
    ("came of", r"(?:came|comes?) of", "the outcome, the result"),
    ("none of", r"holds? none of", "contains no"),
    ("to become of", r"to become of", "what happens to"),
    ("takes no data", r"takes no (?:data|input)", "accepts no"),
    ("on this side", r"closed on this side", "closed locally"),
    ("left it within", r"that left it within", "that ended in"),
    ("tried again", r"(?:was|will be) tried again", "retried"),
)
"""What not to write: a part of it in lower case, by which it is found quickly; whole words; what to write instead."""

_BANNED = [(part, re.compile(rf"\b{words}\b", re.IGNORECASE), instead) for part, words, instead in BANNED]

PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "examples/**/*.md",
        "packages/*/README.md",
        "packages/*/changelog.d/*.md",
        "packages/*/CHANGELOG.md",
    )
    for page in ROOT.glob(pattern)
)
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))


def mistakes(text: str) -> Iterator[str]:
    """The banned words in a text, each with what to write instead."""
    lower = text.lower()
    for part, words, instead in _BANNED:
        if part in lower:
            yield from (f"{found[0]!r}: write {instead}" for found in words.finditer(text))


def strings(source: Path) -> Iterator[tuple[int, str]]:
    """The string literals of a file that are not docstrings, with their lines."""
    tree = ast.parse(source.read_text())
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def test_pages_read_as_written_by_a_native() -> None:
    """Every line of them, examples included."""
    assert [
        f"{page.relative_to(ROOT)}:{number}: {what}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        for what in mistakes(line)
    ] == []


def test_strings_read_as_written_by_a_native() -> None:
    """All that programs print is among them."""
    assert [
        f"{source.relative_to(ROOT)}:{number}: {what}"
        for source in SOURCES
        for number, text in strings(source)
        for what in mistakes(text)
    ] == []


@pytest.mark.parametrize(
    ("text", "number"),
    [("Try anew.", 1), ("Whoever asks", 1), ("it is no file", 1), ("there is no file", 0), ("exit is None", 0)],
)
def test_a_banned_word_is_found(text: str, number: int) -> None:
    """A slip in a pattern would let everything through."""
    assert len(list(mistakes(text))) == number
