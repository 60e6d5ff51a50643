"""For how long jobs may wait, as people write it: ``p95=10s``, ``mean=2s``. Pure."""

from collections.abc import Sequence

from attrs import frozen

from fleeting import ConfigError
from fleeting.config import parse_duration
from fleeting.plugins import span
from taskscaler.simulation._outcome import Waits

EXAMPLE = "a target such as p95=10s, p99=1m or mean=2s"


@frozen
class Target:
    """One of the things that waiting must be."""

    percent: float | None
    """So many of 100 jobs wait no longer; None: it is the mean that counts."""

    seconds: float

    @property
    def name(self) -> str:
        """``p95``, or ``mean``."""
        return "mean" if self.percent is None else f"p{self.percent:g}"

    def of(self, waits: Waits) -> float:
        """What it is of these, in seconds."""
        return waits.mean if self.percent is None else waits.quantile(self.percent / 100)

    def missed_by(self, found: float) -> float:
        """How much too long that is, as a multiple of what may be; 0: it is not. Below a second, a second counts."""
        return max(0.0, found - self.seconds) / max(self.seconds, 1.0)

    def in_words(self) -> str:
        """Say what is asked for."""
        if self.percent is None:
            return f"jobs wait at most {span(self.seconds)} on average"
        if self.percent == 100:  # noqa: PLR2004  (per cent)
            return f"no job waits longer than {span(self.seconds)}"
        return f"{self.percent:g}% of the jobs wait at most {span(self.seconds)}"


def parse_target(text: str) -> Target:
    """Read one. Raises ValueError with a sentence that says what may stand there."""
    name, _, limit = (part.strip() for part in text.partition("="))
    try:
        percent = None if name == "mean" else float(name.removeprefix("p")) if name.startswith("p") else -1.0
        seconds = parse_duration(limit)
    except (ConfigError, ValueError):
        percent, seconds = -1.0, 0.0
    if percent is not None and not 0 < percent <= 100:  # noqa: PLR2004  (per cent)
        raise ValueError(f"expected {EXAMPLE}, found {text!r}")
    return Target(percent, seconds)


def parse_targets(texts: Sequence[str]) -> tuple[Target, ...]:
    """Read several, of which all must be met. Raises ValueError if one is none, or two say the same."""
    targets = tuple(map(parse_target, texts))
    names = [target.name for target in targets]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice; give each once")
    return targets
