"""Asks a daemon from the command line, and shows its answer to people or as JSON."""

import json
import os
import socket as sockets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fleeting.cli import SUCCEEDED, outcome
from fleeting.errors import WrongArguments
from taskscaler._errors import NoDaemon
from taskscaler._socket import Place, find_socket
from taskscaler._span import carried
from taskscaler._url import DaemonUrl, trusting_nobody
from taskscaler.cli._console import PatientConsole
from taskscaler.cli._paragraphs import Paragraphs, Row

if TYPE_CHECKING:
    import httpx

LONG = 10.0
"""Seconds that a daemon may take to answer what needs no waiting."""


def check_installed() -> None:
    """See that what speaks to a daemon is installed.

    Raises:
        WrongArguments: It is not.
    """
    if missing := [name for name in ("httpx", "cattrs") if find_spec(name) is None]:
        raise WrongArguments(f"this needs {missing[0]}, which is not installed; install taskscaler[remote]")


def ask(
    socket: Place | None, method: str, path: str, *, timeout: float | None = LONG, **sent: object
) -> dict[str, Any]:
    """Ask a daemon.

    Args:
        socket: Where it listens. None: where `find_socket` finds it.
        method: HTTP's.
        path: Below the API's root.
        timeout: Seconds to wait for the answer; None: for ever.
        sent: What goes along: ``json``, ``params``, ``content`` or ``headers``.

    Raises:
        NoDaemon: None answers.
        FleetingError: It refuses.
    """
    from taskscaler._wire import error_of

    place = find_socket(socket)
    with answered(place, method, path, timeout=timeout, **sent) as answer, _reaching(place):
        answer.read()
        data = answer.json()
    if not isinstance(data, dict):
        raise error_of(None)
    return data


@contextmanager
def answered(
    place: Place, method: str, path: str, *, timeout: float | None = LONG, **sent: object
) -> Iterator["httpx.Response"]:
    """Ask the daemon at a place for what is read as it comes. The other arguments, and errors, are those of `ask`."""
    check_installed()
    import httpx

    from taskscaler._wire import error_of

    refusal = None
    with ExitStack() as stack:
        with _reaching(place):
            http = stack.enter_context(_client(place, httpx.Timeout(LONG, read=timeout)))
            answer = stack.enter_context(http.stream(method, path, **sent))  # type: ignore[arg-type]
            if answer.is_error:
                answer.read()
                data = answer.json()
                refusal = error_of(data.get("error") if isinstance(data, dict) else None)
        if refusal is not None:
            raise refusal
        yield answer


def _client(place: Place, times: "httpx.Timeout") -> "httpx.Client":
    """Make what asks the daemon at a place.

    Raises:
        OSError: There is no such socket, or nobody answers on it.
        WrongArguments: There is no token.
    """
    import httpx

    if isinstance(place, DaemonUrl):
        transport = httpx.HTTPTransport(verify=place.context())
        return httpx.Client(
            transport=transport,
            timeout=times,
            base_url=f"{place}/v1",
            headers={**carried(os.environ), **place.headers()},
        )
    with closing(sockets.socket(sockets.AF_UNIX)) as first:  # httpcore leaves one open that nobody answers on
        first.settimeout(LONG)
        first.connect(str(place))
    transport = httpx.HTTPTransport(verify=trusting_nobody(), uds=str(place))
    return httpx.Client(transport=transport, timeout=times, base_url="http://localhost/v1", headers=carried(os.environ))


def pieces_of(answer: "httpx.Response", place: Place) -> Iterator[bytes]:
    """Give what comes from the daemon at a place, as it comes.

    Raises:
        NoDaemon: The daemon has gone away meanwhile.
    """
    with _reaching(place):
        yield from answer.iter_raw()


def lines_of(answer: "httpx.Response", place: Place) -> Iterator[dict[str, Any]]:
    """Give the JSON objects that come from the daemon at a place, one a line. Raises as `pieces_of`."""
    with _reaching(place):
        for line in answer.iter_lines():
            yield json.loads(line)


@contextmanager
def _reaching(place: Place) -> Iterator[None]:
    import httpx

    try:
        yield
    except (httpx.HTTPError, OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NoDaemon(f"no daemon answers at {place} ({why}); is it running?") from error


def show(
    asked: Callable[[], dict[str, Any]], rows: Callable[[Mapping[str, Any]], Iterable[Row]], *, as_json: bool
) -> int:
    """Show an answer, and return the exit status."""

    def run() -> int:
        data = asked()
        shown = [*rows(data)]
        console = PatientConsole()
        if as_json:
            text = json.dumps(data, indent=2, allow_nan=False)
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            Paragraphs(console).add(*shown)
        return SUCCEEDED

    return outcome(run)
