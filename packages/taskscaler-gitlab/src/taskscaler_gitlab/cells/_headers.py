"""What of a call goes on to a cell, and of its answer comes back. Pure."""

from collections.abc import Iterable, Mapping

_OF_THE_CONNECTION = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
"""What is said between two ends of one connection [RFC 9110, 7.6.1]."""

_NOT_FORWARDED = _OF_THE_CONNECTION | {"accept-encoding", "cookie", "expect", "forwarded", "host", "x-forwarded-host"}
_NOT_RETURNED = _OF_THE_CONNECTION | {"date", "server", "set-cookie", "strict-transport-security", "alt-svc"}

TICKET = "x-gitlab-last-update"


def to_cell(headers: Iterable[tuple[str, str]], client: str, *, is_streamed: bool) -> dict[str, str]:
    """The headers that go on; *client* is where the call comes from, whatever it says itself."""
    kept = _kept(headers, _NOT_FORWARDED)
    if not is_streamed:
        kept.pop("content-length", None)
    if client:
        kept["x-forwarded-for"] = f"{kept['x-forwarded-for']}, {client}" if "x-forwarded-for" in kept else client
    return kept


def to_runner(headers: Mapping[str, str], ticket: str | None = None) -> dict[str, str]:
    """The headers that come back, with a ticket of ours in place of the cell's."""
    kept = _kept(headers.items(), _NOT_RETURNED)
    kept.pop(TICKET, None)
    return kept if ticket is None else {**kept, TICKET: ticket}


def _kept(headers: Iterable[tuple[str, str]], dropped: frozenset[str]) -> dict[str, str]:
    found = [(name.lower(), value) for name, value in headers]
    named = {each.strip().lower() for name, value in found if name == "connection" for each in value.split(",")}
    kept: dict[str, str] = {}
    for name, value in found:
        if name not in dropped and name not in named and not name.startswith("proxy-"):
            kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept
