"""What a `GroupInfo.notice_probe` prints, read. Pure."""

from math import isfinite
from typing import NamedTuple

from fleeting._types import NoticeKind

READ = 1 << 16
"""Bytes of the output that are looked at, as far as lines are whole: a job may have the instance print any number."""

_KINDS = {kind.value: kind for kind in NoticeKind}


class Announced(NamedTuple):
    """What the cloud announces on an instance."""

    kind: NoticeKind
    seconds: float
    """How long the instance has left, at least 0."""


class ProbeOutput(NamedTuple):
    """What a probe printed."""

    notices: tuple[Announced, ...]
    strange: tuple[str, ...]
    """Lines that are no notices, as they are."""


def parse_notices(output: bytes) -> ProbeOutput:
    """Read lines ``KIND SECONDS``; a line that is something else keeps no other from being understood."""
    notices, strange = [], []
    whole = output if len(output) <= READ else output[:READ].rpartition(b"\n")[0]
    for line in whole.decode(errors="replace").splitlines():
        notice = _parse(line)
        if notice is not None:
            notices.append(notice)
        elif line.strip():
            strange.append(line)
    return ProbeOutput(tuple(notices), tuple(strange))


def _parse(line: str) -> Announced | None:
    match line.split():
        case [kind, seconds] if kind in _KINDS:
            try:
                left = float(seconds)
            except ValueError:
                return None
            return Announced(_KINDS[kind], max(0.0, left)) if isfinite(left) else None
    return None
