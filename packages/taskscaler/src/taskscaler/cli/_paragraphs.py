"""Paragraphs of labelled texts, for people to read."""

from attrs import define
from rich.console import Console
from rich.text import Text

from fleeting.config import harmless
from taskscaler.cli._text import broken

Row = tuple[str, str]
"""A label, and what is to be said under it; of several rows in a row with one label, the first shows it."""

LABEL = 13
"""Columns that labels take."""

ALARMING = frozenset({"unsupported", "problem"})
"""Labels that must not be missed."""


@define
class Paragraphs:
    """Shows them; on a terminal, texts are wrapped beside their labels."""

    console: Console
    begun: bool = False

    def add(self, *rows: Row) -> None:
        """Show a paragraph."""
        if self.begun:
            self.console.print()
        self.begun = True
        self.go_on(*rows)

    def add_if(self, *rows: Row) -> None:
        """Show a paragraph if there is anything in it."""
        if rows:
            self.add(*rows)

    def go_on(self, *rows: Row) -> None:
        """Show more rows of the same paragraph."""
        before = ""
        for label, text in rows:
            self._show("" if label == before else label, harmless(text), "yellow" if label in ALARMING else "dim")
            before = label

    def _show(self, label: str, text: str, style: str) -> None:
        room = max(self.console.width - LABEL, LABEL)
        for line in broken(text, room) if self.console.is_terminal else [text]:
            self.console.print(Text.assemble((f"{label:<{LABEL}}", style), line), soft_wrap=True)
            label = ""
