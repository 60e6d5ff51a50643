"""What a cloud is like as people write it: on a command line, for all pools or for one."""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from attrs import evolve

from fleeting import ConfigError
from fleeting.config import did_you_mean, parse_duration
from taskscaler.simulation._distributions import parse_distribution
from taskscaler.simulation._environment import Environment, PoolEnvironment, Preemptions, StockOuts

STOCK_OUTS = "every=exp(24h),lasts=exp(10m)"
PREEMPTIONS = "after=exp(24h),notice=2m"

DRAWN = 100
"""Times of preemptions that are looked at; if all are nought, no instance lasts."""

_COMMA = re.compile(r",(?![^()]*\))")


def parse_share(text: str) -> float:
    """Read a share such as ``0.05`` or ``5%``. Raises ValueError with what may stand there."""
    number, is_percent = text.strip(), text.strip().endswith("%")
    try:
        share = float(number.removesuffix("%")) / (100 if is_percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"expected a share such as 0.05 or 5%, found {text!r}")
    return share


def parse_stock_outs(text: str) -> StockOuts:
    """Read ``every=exp(24h),lasts=exp(10m)``. Raises ValueError with what may stand there."""
    given = _pairs(text, ("every", "lasts"), STOCK_OUTS)
    if given.keys() != {"every", "lasts"}:
        raise ValueError(f"expected such as {STOCK_OUTS}, found {text!r}")
    return StockOuts(every=parse_distribution(given["every"]), lasts=parse_distribution(given["lasts"]))


def parse_preemptions(text: str) -> Preemptions:
    """Read ``after=exp(24h),notice=2m``; the notice may be left out. Raises ValueError with what may stand there."""
    given = _pairs(text, ("after", "notice"), PREEMPTIONS)
    if "after" not in given:
        raise ValueError(f"expected such as {PREEMPTIONS}, found {text!r}")
    try:
        notice = parse_duration(given.get("notice", "0"))
    except ConfigError as error:
        raise ValueError(f"notice: {error}") from error
    after, random = parse_distribution(given["after"]), Random(0)  # noqa: S311  (no secret)
    if not any(after.sample(random) for _ in range(DRAWN)):
        raise ValueError(f"after: expected more than 0 s, since nothing could ever run, found {given['after']!r}")
    return Preemptions(after=after, notice=notice)


def _pairs(text: str, keys: Sequence[str], example: str) -> Mapping[str, str]:
    given: dict[str, str] = {}
    for part in _COMMA.split(text):
        key, is_there, value = (each.strip() for each in part.partition("="))
        if not is_there or key not in keys:
            hint = did_you_mean(key, keys)
            raise ValueError(f"expected such as {example}, found {part.strip()!r}{f'; {hint}' if hint else ''}")
        given[key] = value
    return given


READERS: Mapping[str, Callable[[str], object]] = {
    "boot": parse_distribution,
    "ready": parse_distribution,
    "delete": parse_distribution,
    "suspend": parse_distribution,
    "resume": parse_distribution,
    "clean": parse_distribution,
    "answer": parse_distribution,
    "boot_failure": parse_share,
    "ready_failure": parse_share,
    "stock_outs": parse_stock_outs,
    "preemptions": parse_preemptions,
}
"""By the fields of `PoolEnvironment`."""


def with_given(environment: Environment, given: Mapping[str, Sequence[str]], pools: Sequence[str]) -> Environment:
    """Change what somebody has given.

    Args:
        environment: What holds otherwise.
        given: By the fields of `PoolEnvironment`, values as `READERS` read them: each for all pools, or with the name
            of a pool and a colon before it, for that one. Later ones win, and those of a pool over those of all.
        pools: The names of all pools.

    Raises:
        ValueError: With the option that is wrong, what was expected and what was found.
    """
    for_all: dict[str, object] = {}
    for_pool: dict[str, dict[str, object]] = {name: {} for name in pools}
    for field, texts in given.items():
        for text in texts:
            name, colon, rest = text.partition(":")
            if colon and name.strip() not in for_pool:
                hint = did_you_mean(name, pools) or f"the pools are {', '.join(pools)}"
                raise ValueError(f"{_option(field)}: there is no pool {name.strip()!r}; {hint}")
            try:
                value = READERS[field](rest if colon else text)
            except ValueError as error:
                raise ValueError(f"{_option(field)}: {error}") from error
            (for_pool[name.strip()] if colon else for_all)[field] = value
    everywhere = {name: _evolved(environment.of(name), {**for_all, **for_pool[name]}) for name in pools}
    return Environment(pools=everywhere, default=_evolved(environment.default, for_all))


def _evolved(environment: PoolEnvironment, changes: Mapping[str, Any]) -> PoolEnvironment:
    return evolve(environment, **changes)


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def in_words(environment: PoolEnvironment) -> str:
    """Say what a cloud is like; what takes no time and does not happen is left out."""
    times = {
        "boot": environment.boot,
        "ready": environment.ready,
        "deletion": environment.delete,
        "answer": environment.answer,
        "clean-up": environment.clean,
    }
    parts = [f"{what} {time}" for what, time in times.items() if str(time) != "0s"]
    parts += [f"{environment.boot_failure:.3g} of instances fail to boot"] if environment.boot_failure else []
    parts += [f"{environment.ready_failure:.3g} never become ready"] if environment.ready_failure else []
    if environment.stock_outs is not None:
        parts.append(f"a stock-out every {environment.stock_outs.every} for {environment.stock_outs.lasts}")
    if environment.preemptions is not None:
        notice = f", announced {environment.preemptions.notice:g} s before" if environment.preemptions.notice else ""
        parts.append(f"instances are taken after {environment.preemptions.after}{notice}")
    return ", ".join(parts) or "nothing takes any time"
