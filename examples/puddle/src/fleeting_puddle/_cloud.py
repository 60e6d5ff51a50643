"""The cloud's API: one method per request, and one error class for each thing to do about it."""

import json
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    InstanceNotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from fleeting.plugins import Offload

from fleeting_puddle._config import Config

_ERRORS = {"unauthorized": AuthFailed, "no_stock": CapacityUnavailable, "quota": QuotaExceeded}
"""The API's error codes; any other code is a plain `ProviderError`."""


class Cloud:
    """Talks to the API in worker threads, because ``http.client`` blocks."""

    def __init__(self, config: Config) -> None:
        """Open no connection yet."""
        self._config = config
        self._offload = Offload()

    async def call(self, method: str, path: str, body: object = None, *, key: str = "") -> Any:
        """Make a request and return what the API answers.

        Args:
            method: GET, POST or DELETE.
            path: Starts with a slash.
            body: Sent as JSON.
            key: A repeat with the same key gets the first answer again, and does nothing.
        """
        return await self._offload(self._call, method, path, json.dumps(body), key)

    def _call(self, method: str, path: str, body: str, key: str) -> Any:
        url = urlsplit(self._config.url)
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        headers = {"Authorization": f"Bearer {self._config.token}", "Idempotency-Key": key}
        with closing(kind(url.netloc, timeout=self._config.timeout)) as connection:
            try:
                connection.connect()
            except OSError as error:  # nothing was sent, so nothing was done
                raise ProviderError(f"Puddle cannot be reached at {url.netloc}: {error}") from error
            try:
                connection.request(method, url.path.rstrip("/") + path, body, headers)
                response = connection.getresponse()
                answer = json.loads(response.read(1 << 24), object_hook=_Answer)
                code = str(answer.get("code", "nothing"))
            except (OSError, HTTPException, ValueError, AttributeError) as error:  # it may have been done
                raise OutcomeUnknown(f"Puddle's answer to {method} {path} makes no sense") from error
        if response.status >= 400:
            raise _error_for(code, path, response.getheader("Retry-After", ""))
        return answer


class _Answer(dict[str, Any]):
    """An object from the API: a missing field is an answer that makes no sense, not a `KeyError`."""

    def __missing__(self, key: str) -> Any:
        raise OutcomeUnknown(f"Puddle's answer lacks {key!r}")


def _error_for(code: str, path: str, wait: str) -> ProviderError:
    """Choose by the code, and leave the API's message out: it repeats the token."""
    if code == "not_found":
        return InstanceNotFound(path.rpartition("/")[2])
    if code == "too_many_requests":
        return RateLimited("Puddle was asked too often", retry_after=float(wait) if wait.isdigit() else None)
    return _ERRORS.get(code, ProviderError)(f"Puddle says {code} to {path}")
