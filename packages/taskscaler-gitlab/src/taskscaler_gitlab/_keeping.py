"""What is kept on this machine of what is not needed any more, and for how long: logs of jobs, and caches. Pure."""

from collections.abc import Iterable, Sequence

from attrs import frozen


@frozen(kw_only=True)
class Kept:
    """Something that lies on the disk."""

    name: str
    used: float
    """When it was made or used last, in seconds since the epoch."""

    size: int
    """Bytes."""

    in_use: bool = False
    """Whether it has to stay for now; it counts all the same."""


@frozen(kw_only=True)
class Limits:
    """How much may be kept."""

    age: float
    """Seconds without use after which something goes."""

    size: int
    """Bytes of all together."""

    most: int | None = None
    """How many there may be; None: any number."""


def outdated(kept: Iterable[Kept], limits: Limits, now: float) -> Sequence[str]:
    """Choose what goes: what is too old, and then what was used least recently, until the rest is within the limits.

    What is in use stays, and takes the place of others: only that can exceed the limits.
    """
    latest_first = sorted(kept, key=lambda each: (not each.in_use, -each.used, each.name))
    size, number, chosen, is_full = 0, 0, [], False
    for each in latest_first:
        if not each.in_use:
            too_many = limits.most is not None and number + 1 > limits.most
            is_full = is_full or too_many or size + each.size > limits.size
            if is_full or now - each.used >= limits.age:
                chosen.append(each.name)
                continue
        size, number = size + each.size, number + 1
    return chosen[::-1]
