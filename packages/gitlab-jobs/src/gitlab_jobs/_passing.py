"""A call that somebody else wants made, for who stands between a runner and GitLab: nothing of it is kept."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from http import HTTPStatus

import httpx
from attrs import frozen

from gitlab_jobs._errors import Refused, Unreachable
from gitlab_jobs._http import MAX_ANSWER, Http, pieces, read
from gitlab_jobs._job import Answer, is_page


@frozen
class Passing:
    """An answer that begins to come."""

    _response: httpx.Response
    _name: str

    @property
    def status(self) -> int:
        """Of HTTP."""
        return self._response.status_code

    @property
    def headers(self) -> Mapping[str, str]:
        """Its headers; their names in any case."""
        return self._response.headers

    @property
    def answer(self) -> Answer:
        """What of it matters for a job's report."""
        return Answer.of(self.status, self.headers)

    def pieces(self) -> "aclosing[AsyncGenerator[bytes, None]]":
        """The body as it comes, which may be left at any piece: ``async with`` it, then iterate."""
        return pieces(self._response)

    async def read(self, most: int = MAX_ANSWER) -> bytes:
        """The whole body.

        Raises:
            Refused: It has more bytes than that.
            Unreachable: The connection ended.
        """
        return await read(self._response, most, self._name)


@asynccontextmanager
async def passing(
    http: Http,
    method: str,
    path: str,
    headers: Mapping[str, str],
    content: bytes | AsyncIterable[bytes] | None,
    *,
    seconds: float,
) -> AsyncIterator[Passing]:
    """Make a call once, and give its answer; see `GitLabClient.pass_on`."""
    name = f"{method} {path.partition('?')[0]}"
    try:
        url = http.base.join(path)
    except httpx.InvalidURL:
        raise Refused(f"{name}: no address can be like this one", status=HTTPStatus.BAD_REQUEST) from None
    async with http.open(method, url, headers, content, seconds=seconds, name=name) as response:
        if is_page(response.headers):
            raise Unreachable(f"{name}: found a page for a browser instead of an answer")
        response.headers.encoding = "latin-1"  # a letter for each byte, whatever it stands for: it goes on as it came
        yield Passing(response, name)
