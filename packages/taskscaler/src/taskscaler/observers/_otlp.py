"""Spans over HTTP, by OpenTelemetry's own exporter, which knows the environment's variables.

Of what a receiver answers nothing is read that is long, or slow, and what the library would log each time is kept for
whoever says it once.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.cookiejar import DefaultCookiePolicy
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from attrs import define
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.util.re import parse_env_headers

LONGEST_ANSWER: Final = 1 << 16
"""Bytes of an answer that are received, so that the connection can be used again; a longer one costs the connection."""

PATIENCE: Final = 2.0
"""Seconds that receiving them may take once they have begun to come."""

TALKATIVE: Final = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.util.re",
)
"""Loggers of what sends, and of what reads headers, which shows those that it cannot read."""


_TROUBLES: Final[Mapping[type[Exception], str]] = {
    requests.exceptions.SSLError: "TLS with the receiver failed",
    requests.Timeout: "the receiver did not answer in time",
    requests.ConnectionError: "the connection to the receiver failed",
}
"""What each error of ``requests`` means; the first one that fits."""


@define
class Said:
    """What the library would have logged."""

    why: str = ""
    """Why spans were not accepted, without anything that the receiver said."""


class _Quiet(threading.local):
    """Whether this thread is at sending ours: others in this program may send theirs."""

    said: Said | None = None


_QUIET: Final = _Quiet()


class _Filter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Keep what is logged while we send."""
        del record
        return _QUIET.said is None


_FILTER: Final = _Filter()


@contextmanager
def silent() -> Iterator[Said]:
    """Have the library log nothing in this thread while the body runs, and note why something failed."""
    for name in TALKATIVE:
        logging.getLogger(name).addFilter(_FILTER)  # nothing happens to one that has it
    before, _QUIET.said = _QUIET.said, Said()
    try:
        yield _QUIET.said
    finally:
        _QUIET.said = before


class _Session(requests.Session):
    """Reads little of what is answered, goes nowhere else, and keeps nothing."""

    def __init__(self) -> None:
        """Take no cookies: each answer may have others."""
        super().__init__()
        self.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))

    def get_redirect_target(self, resp: requests.Response) -> None:
        """Find none: `requests` reads all of an answer that has one, however long, even if it is not to go there."""

    def request(self, *args: Any, **named: Any) -> requests.Response:  # noqa: ANN401  (as the class it derives from)
        """See `requests.Session.request`."""
        said = _QUIET.said or Said()
        try:
            response = super().request(*args, **{**named, "stream": True})
        except requests.RequestException as error:
            said.why = next((why for kind, why in _TROUBLES.items() if isinstance(error, kind)), type(error).__name__)
            raise
        if is_redirect := HTTPStatus.MULTIPLE_CHOICES <= response.status_code < HTTPStatus.BAD_REQUEST:
            said.why = f"the receiver answers {response.status_code}, a redirect, which is not followed"
        elif not response.ok:
            said.why = f"the receiver answers {response.status_code}"
        _receive(response)
        if is_redirect:  # else the library would count the spans as accepted
            raise requests.TooManyRedirects(said.why)
        return response


def _receive(response: requests.Response) -> None:
    """Receive an answer that is short and comes soon; else hang up."""
    until, left = monotonic() + PATIENCE, LONGEST_ANSWER
    try:
        while left > 0 and monotonic() < until:
            piece = response.raw.read1(left)
            if not piece:
                response.raw.release_conn()
                return
            left -= len(piece)
    except Exception:  # noqa: BLE001, S110  (whatever is wrong with it: it was accepted or not before)
        pass
    response.close()


class OtlpExporter(OTLPSpanExporter):
    """Sends spans to a receiver."""

    def __init__(self, endpoint: str | None) -> None:
        """Prepare. *endpoint*: where to; None: where the environment says."""
        with silent():
            super().__init__(endpoint=endpoint, session=_Session())
        place = urlsplit(self._endpoint)
        self.place = f"{place.scheme}://{place.hostname}{f':{place.port}' if place.port else ''}{place.path}"
        """Where the receiver is, without what may be a secret."""


def are_headers(text: str) -> bool:
    """Whether the library can read all of the headers that a variable has."""
    with silent():
        return all(parse_env_headers(each, liberal=True) for each in text.split(",") if each.strip())


def exporter(endpoint: str | None) -> OtlpExporter:
    """Make one."""
    return OtlpExporter(endpoint)
