"""The story of a stock-out that the guide tells is what happens."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_guide_tells_what_happens() -> None:
    """Line for line: to the other pool within one decision of the problem, back with the capacity, and what it cost."""
    told = runpy.run_path(str(DOCS / "pictures" / "stock_out.py"))["timeline"]()
    assert f"<!-- story: docs/pictures/stock_out.py -->\n```\n{told}```" in (DOCS / "guides" / "pools.md").read_text()
    assert "02:32.0  pool spot: 1 withdrawn\n02:32.1  pool on-demand: 1 requested\n" in told
    assert told.count("on-demand, after") == 8
