"""Looking back on a batch: its timeline and its figures, made from its results."""

from taskscaler.report._figures import Figures, Spread, figure_out
from taskscaler.report._timeline import Bar, Phase, Row, Span, Timeline, lay_out

__all__ = [
    "Bar",
    "Figures",
    "Phase",
    "Row",
    "Span",
    "Spread",
    "Timeline",
    "figure_out",
    "lay_out",
]
