"""How every benchmark prints what it measured: one JSON line per figure."""

import json
from collections.abc import Callable


def best_of(times: int, measure: Callable[[], float]) -> float:
    """The highest of several measurements of a rate: what disturbs a machine only ever slows it down."""
    return max(measure() for _ in range(times))


def report(name: str, value: float, unit: str, target: float | None, *, conditions: str = "") -> None:
    """Print one figure; *conditions*: what else must be known to read it, in a line."""
    figure = {"name": name, "value": float(f"{value:.4g}"), "unit": unit, "target": target}
    print(json.dumps(figure | ({"conditions": conditions} if conditions else {})), flush=True)
