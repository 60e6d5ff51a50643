"""The picture of the frontier is what the committed code draws of the committed figures."""

import json
import re
from pathlib import Path
from runpy import run_path

DOCS = Path(__file__).parents[2] / "docs"
PICTURES = DOCS / "pictures"
GUIDE = (DOCS / "guides/simulate.md").read_text()
SCRIPT = run_path(str(PICTURES / "frontier.py"))


def test_the_picture_is_current() -> None:
    """Byte for byte: `nox -s pictures` draws it."""
    assert (PICTURES / "frontier.svg").read_text(encoding="utf-8") == SCRIPT["draw"]()


def test_the_figures_are_of_the_policies_that_are_drawn() -> None:
    """And the page's table of figures has them from there."""
    data = json.loads((PICTURES / "frontier.json").read_text())
    points = {each["policy"]: each for curve in data["curves"].values() for each in curve}
    assert [*points] == [policy for curve in SCRIPT["CURVES"].values() for policy in curve]
    rows = re.findall(r"^\| `([\w=,.]+)` \| ([\d.]+) \| ([\d.]+) s \| ([\d.]+) s \| ([\d,]+) \|", GUIDE, re.MULTILINE)
    assert len(rows) > 5
    for policy, times, p95, p99, bought in rows:
        point = points[policy]
        found = float(times), float(p95), float(p99), int(bought.replace(",", ""))
        expected = round(point["times"], 2), round(point["p95"], 1), round(point["p99"], 1), point["bought"]
        assert found == expected, policy
