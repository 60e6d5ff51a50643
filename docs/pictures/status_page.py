"""Makes the pictures of the status page anew, in Debian's Chromium: ``python docs/pictures/status_page.py``.

The fleets are those of the page's tests: real scalers over clouds in memory, in virtual time. Letters come out as the
fonts of the system have them, so that these pictures are not made along with the others.
"""

import io
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, expect

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # the tests have the fleets, and what shows them

from tests.e2e.browsers import chromium, window
from tests.taskscaler.page_moments import Moment, at_the_ceiling, busy, cordoned, many, out_of_stock
from tests.taskscaler.paged import staged

HERE = Path(__file__).parent
COLOURS = 192
"""Of a picture: the page has few, and letters' edges need the rest."""

Scheme = Literal["light", "dark"]

SHOTS: Sequence[tuple[str, Callable[[], Moment], tuple[int, int], Scheme]] = (
    ("page-busy", busy, (1200, 1000), "light"),
    ("page-ceiling", at_the_ceiling, (1200, 700), "light"),
    ("page-stock-out", out_of_stock, (1200, 700), "light"),
    ("page-cordoned", cordoned, (1200, 700), "light"),
    ("page-many", many, (1200, 800), "dark"),
    ("page-phone", busy, (360, 780), "dark"),
)


def shoot(browser: Browser, name: str, moment: Moment, size: tuple[int, int], scheme: Scheme) -> None:
    """Take a picture of a moment."""
    scale = 2 if size[0] < size[1] else 1
    with staged(moment) as stage, window(browser, size, scheme=scheme, scale=scale) as opened:
        opened.page.clock.set_fixed_time(datetime.fromtimestamp(moment.now, UTC))
        opened.page.goto(stage.link())
        expect(opened.page.locator("#timeline-words")).not_to_be_empty()  # which comes last
        taken = Image.open(io.BytesIO(opened.page.screenshot()))
    taken.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(HERE / f"{name}.png", optimize=True)


def main(wanted: Sequence[str]) -> None:
    """Make those that are named, or all."""
    with chromium() as browser:
        for name, moment, size, scheme in SHOTS:
            if not wanted or name in wanted:
                shoot(browser, name, moment(), size, scheme)


if __name__ == "__main__":
    main(sys.argv[1:])
