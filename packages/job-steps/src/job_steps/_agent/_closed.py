"""Which requests to run a job are late: sent before the job was closed, for all that the agent can know. Pure.

A connection that is given up may still bring what was sent through it. If its job was closed meanwhile, through another
connection, the job would begin after whoever wanted it has ended it, or once more. So a connection that was open when a
job was closed runs that job no more; only the one through which that came does, since requests on it come in order. An
id is free for whoever connects later, as with GitLab's service.
"""

from itertools import takewhile
from typing import Final

from attrs import define, field, frozen

MOST_REMEMBERED: Final = 10_000
"""Jobs that were closed, of which the latest count."""


@frozen
class _Close:
    """That a job was closed."""

    number: int
    """Among all, from 1 on."""

    connection: int
    """Through which one."""

    connected: int
    """How many connections there had been by then: these, and no others, may bring what was sent before."""


@define
class Closed:
    """Connections, by their numbers, and the jobs that were closed while they were open."""

    _connected: int = field(init=False, default=0)
    """How many there have been."""

    _open: "dict[int, None]" = field(init=False, factory=dict)
    """The oldest first."""

    _closes: int = field(init=False, default=0)
    _last: "dict[str, _Close]" = field(init=False, factory=dict)
    """How each job was closed last, the earliest first; no longer than there is a connection which that matters to."""

    def connect(self) -> int:
        """Note that somebody connects; returns the connection's number."""
        self._connected += 1
        self._open[self._connected] = None
        return self._connected

    def disconnect(self, connection: int) -> None:
        """Note that nothing more comes through a connection, and that all that came was dealt with."""
        del self._open[connection]
        oldest = next(iter(self._open), self._connected + 1)
        matters_no_more = takewhile(lambda job: self._last[job].connected < oldest, self._last)
        for job in [*matters_no_more]:
            del self._last[job]

    def close(self, job: str, connection: int) -> None:
        """Note that a job was closed through a connection, whether there was one or not."""
        self._closes += 1
        self._last.pop(job, None)
        self._last[job] = _Close(self._closes, connection, self._connected)
        if len(self._last) > MOST_REMEMBERED:
            del self._last[next(iter(self._last))]

    def last(self, job: str) -> int:
        """How many had been closed when a job was closed last; 0 if it was not, or that matters to nobody any more."""
        found = self._last.get(job)
        return found.number if found else 0

    def is_late(self, job: str, connection: int) -> bool:
        """Whether a request to run a job that comes through a connection now may have been sent before its close."""
        found = self._last.get(job)
        return found is not None and connection <= found.connected and connection != found.connection
