"""Lengths of time, for people."""


def in_words(seconds: float) -> str:
    """Write seconds as `90 s`, `10 min` or `2 h`, in the biggest unit that leaves no rest, rounded to seconds."""
    whole = max(1, round(seconds))
    for unit, length in (("h", 3600), ("min", 60)):
        if whole % length == 0:
            return f"{whole // length} {unit}"
    return f"{whole} s" if whole < 600 else f"{round(whole / 60)} min"  # noqa: PLR2004  (ten minutes)
