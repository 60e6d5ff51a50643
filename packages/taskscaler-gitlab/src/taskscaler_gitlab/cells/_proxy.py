"""The router: GitLab's calls of runners and jobs, each passed on to the cell that it is for. Nothing of them is kept.

Who has which token decides; what is remembered only spares questions. After a restart, a runner's ticket says which
cells know it, and a job that no token names a cell for is found by asking the cells in turn.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any

import anyio
from anyio.abc import TaskGroup
from attrs import define, field, frozen
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from fleeting.plugins import one_line
from gitlab_jobs import GitLabJobsError, Refused
from gitlab_jobs.client import Passing
from gitlab_jobs.coordinator import MAX_BODY, Reply, body_of, job_token, object_in, refuse, runner_token
from taskscaler_gitlab.cells._cells import CALL, TRANSFER, Cell
from taskscaler_gitlab.cells._headers import to_cell, to_runner
from taskscaler_gitlab.cells._held import Answer
from taskscaler_gitlab.cells._polls import AWAY, Line, Poll, Polled, Polls
from taskscaler_gitlab.cells._registered import RegisteredRunners
from taskscaler_gitlab.cells._registry import is_of_a_router
from taskscaler_gitlab.cells._route import SURVEY, Memory, hashed, hint, in_order, is_away, is_foreign
from taskscaler_gitlab.cells._tickets import Ticket, Tickets
from taskscaler_gitlab.relay._routes import gathered

MOST_REMEMBERED = 100_000
"""Jobs whose cell is remembered, and runners: 32 bytes of hash each."""

MAX_ANSWER = 1 << 20
"""Bytes of a cell's answer to a call that asks for no job and no file."""

MOST_SAID = 64 << 10
"""Bytes of what a runner says of itself, which is kept for as long as its request is held, as objects: twenty times
that. GitLab's Workhorse refuses larger requests for jobs, too."""

_PREFIX = "/api/v4/"
_NUMBERS = 19
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_JSON = {"content-type": "application/json"}
_UNKNOWN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)

log = logging.getLogger("taskscaler.gitlab")


@define(eq=False)
class Router:
    """An ASGI application."""

    cells: Mapping[str, Cell]
    tickets: Tickets = field(repr=False)
    polls: Polls
    jobs: Memory[bytes, str]
    runners: Memory[bytes, Ticket]
    registered: RegisteredRunners | None = None
    """Those that have registered with us; None: none can."""

    wall: Callable[[], float] = field(default=lambda: datetime.now(tz=UTC).timestamp())
    """Seconds since 1970: tickets outlive the process."""

    active: int = field(default=0, init=False)
    """Calls under way, but for those that are held."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
            await response(scope, receive, send)
        except HTTPException as error:
            await (await refuse(request, error))(scope, receive, send)
        except ClientDisconnect:
            pass
        except (GitLabJobsError, OSError) as error:
            await _away(error)(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        method, path = request.method, request.scope["path"]
        parts = path.removeprefix(_PREFIX).split("/") if path.startswith(_PREFIX) else [""]
        if path == f"{_PREFIX}jobs/request" and method == "POST":
            return await self._poll(request)
        with self._counted():
            match parts:
                case ["runners", "router", "discovery"]:  # it would lead runners past us
                    return JSONResponse({"message": "501 Not Implemented"}, HTTPStatus.NOT_IMPLEMENTED)
                case ["runners", *rest] if all(_is_plain(each) for each in rest):
                    return await self._of_runner(request)
                case ["jobs", number, *rest] if _is_number(number) and all(_is_plain(each) for each in rest):
                    return await self._of_job(request, int(number))
        raise HTTPException(HTTPStatus.NOT_FOUND, "this router passes on calls of runners and jobs only")

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    # --- requests for jobs ----------------------------------------------------------------------------------------

    async def _poll(self, request: Request) -> Response:
        with self._counted():
            body = object_in(await body_of(request, MOST_SAID))
        token, system = runner_token(request, body), body.get("system_id")
        runner = hashed(token, system if isinstance(system, str) else "")
        headers = to_cell(request.headers.items(), _client(request), is_streamed=False)
        ours = self.registered if is_of_a_router(token) else None
        if ours is not None and (refusal := ours.refusal(token, int(self.wall()))) is not None:
            return _json(refusal)
        tokens = None if ours is None else ours.tokens
        poll = Poll(
            runner=runner, line=Line(partial(_gone, request.receive)), headers=headers, body=body, tokens=tokens
        )
        if ours is not None:
            await ours.seen(token, system, int(self.wall()))
        surveyed_at = 0

        async def ask() -> Polled:
            nonlocal surveyed_at
            polled, surveyed_at = await self._polled(poll, token)
            return polled

        polled = await self.polls.for_line(poll, ask)
        if polled is None:
            raise ClientDisconnect
        if ours is not None and polled.answer.status in _UNKNOWN:  # a token of ours is wrong: no fault of the runner
            log.warning("cells_refuse", extra={"cells": ", ".join(ours.tokens)})
            polled = Polled(answer=AWAY)
        sealed = None
        if polled.known is not None:
            ticket = Ticket(polled.known, surveyed_at)
            self.runners.remember(hashed(token), ticket)
            sealed = self.tickets.seal(ticket, token)
        return _response(polled.answer, sealed)

    async def _polled(self, poll: Poll, token: str) -> tuple[Polled, int]:
        """What came of it, and when all cells were asked last."""
        now = int(self.wall())
        if (taken := await self.polls.taken(poll)) is not None:
            return taken, now
        ticket = self.tickets.open(poll.body.get("last_update"), token)
        seen = {} if ticket is None else ticket.cells
        all_cells = [*(self.cells if poll.tokens is None else poll.tokens)]
        if poll.tokens is None and (named := hint(token, self.cells)) is not None:
            return await self.polls.at_one(poll, self.cells[named], seen.get(named, "")), now
        remembered = ticket or self.runners.recall(hashed(token))
        if remembered is not None and 0 <= now - remembered.surveyed_at < SURVEY:
            names = [each for each in remembered.cells if each in all_cells]
            if names:
                polled = await self._at(poll, names, ticket)
                if polled.answer.status not in _UNKNOWN:
                    return polled, remembered.surveyed_at
        return await self._at(poll, all_cells, ticket), now

    async def _at(self, poll: Poll, names: Sequence[str], ticket: Ticket | None) -> Polled:
        """Ask these cells. As GitLab does, we hold the request of who says what it has seen, and no other."""
        seen = {} if ticket is None else ticket.cells
        if len(names) == 1:
            return await self.polls.at_one(poll, self.cells[names[0]], seen.get(names[0], ""))
        return await self.polls.at_several(poll, names, seen, may_hold=ticket is not None)

    # --- calls of runners -----------------------------------------------------------------------------------------

    async def _of_runner(self, request: Request) -> Response:
        """Such as ``POST runners/verify``: of small bodies, which can be sent again."""
        raw = await body_of(request, MOST_SAID)
        body = _object_if_any(raw)
        token = runner_token(request, body)
        if self.registered is not None:
            path = request.scope["path"].removeprefix(_PREFIX)
            reply = await self.registered.answer(request.method, path, token, body, int(self.wall()))
            if reply is not None:
                return Response(status_code=reply.status) if reply.body is None else _json(reply)
        self.runners.forget(hashed(token))  # whatever is said about it, it is worth asking all cells again
        named = hint(token, self.cells)
        return _response((await self._in_turn(request, raw, [*self.cells] if named is None else [named]))[1])

    # --- calls of jobs --------------------------------------------------------------------------------------------

    async def _of_job(self, request: Request, number: int) -> Response:
        """Such as ``PATCH jobs/:id/trace``."""
        is_update = request.method == "PUT"
        raw = await body_of(request, MAX_BODY) if is_update else b""
        token = job_token(request, _object_if_any(raw))
        key = hashed(str(number), token)
        name = self.jobs.recall(key) or hint(token, self.cells)
        if request.method in ("GET", "HEAD"):
            return _Download(self, request, key, [*self._order()] if name is None else [name])
        if is_update:
            name, answer = await self._in_turn(request, raw, [*self._order()] if name is None else [name])
            if not is_away(answer.status) and not is_foreign(answer.status, answer.headers):
                self.jobs.remember(key, name)
            return _response(answer)
        if name is None:  # what is passed on while it comes can be sent once only
            name, answer = await self._find(number, token)
            if is_away(answer.status) or is_foreign(answer.status, answer.headers):
                return _response(answer)
            self.jobs.remember(key, name)
        return _response(await self._carry(request, self.cells[name]))

    async def _find(self, number: int, token: str) -> tuple[str, Answer]:
        """Ask the cells in turn whose job it is: who sends something of it says that it runs."""
        headers = {"Content-Type": "application/json", "JOB-TOKEN": token}
        content = json.dumps({"token": token, "state": "running"}).encode()
        call = _Sent("PUT", f"jobs/{number}", headers, content)
        return await self._first(call, self._order())

    async def _in_turn(self, request: Request, raw: bytes, names: Sequence[str]) -> tuple[str, Answer]:
        headers = to_cell(request.headers.items(), _client(request), is_streamed=False)
        return await self._first(_Sent(request.method, _path(request), headers, raw), names)

    async def _first(self, call: "_Sent", names: Sequence[str]) -> tuple[str, Answer]:
        """The answer of the first cell that does not take the call for another cell's.

        If none does, it is that of one that could not be asked, before a refusal: who is refused gives up.
        """
        others: dict[bool, tuple[str, Answer]] = {}
        for name in names:
            answer = await self._sent(call, self.cells[name])
            if not is_away(answer.status) and not is_foreign(answer.status, answer.headers):
                return name, answer
            others.setdefault(is_away(answer.status), (name, answer))
        return others[True] if True in others else others[False]

    async def _sent(self, call: "_Sent", cell: Cell) -> Answer:
        try:
            async with cell.client.pass_on(
                call.method, call.path, headers=call.headers, content=call.content, seconds=CALL
            ) as got:
                return await _answer(cell, got)
        except Refused as error:
            raise _unsendable(error) from error
        except GitLabJobsError as error:
            return _no_answer(cell, error)

    async def _carry(self, request: Request, cell: Cell) -> Answer:
        """Pass on a body as it comes, as fast as the cell takes it."""
        async with aclosing(gathered(request.stream())) as stream:
            headers = to_cell(request.headers.items(), _client(request), is_streamed=True)
            call = cell.client.pass_on(
                request.method, _path(request), headers=headers, content=stream, seconds=TRANSFER
            )
            try:
                async with call as got:
                    return await _answer(cell, got)
            except Refused as error:
                raise _unsendable(error) from error
            except GitLabJobsError as error:
                return _no_answer(cell, error)

    def _order(self) -> Sequence[str]:
        names = [*self.cells]
        return in_order(names, 0, [each for each in names if self.cells[each].is_away])


@frozen
class _Sent:
    """A call that can be made again at another cell."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(repr=False)


class _Download(Response):
    """A file that is passed on while it comes; where a cell sends the runner for it, that goes by itself."""

    def __init__(self, router: Router, request: Request, key: bytes, names: Sequence[str]) -> None:
        """Ask these cells in turn for it."""
        super().__init__()
        self._router, self._request, self._key, self._names = router, request, key, names
        self._has_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, until the other end hangs up."""
        failed: Response | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_end_with, receive, tasks)
                failed = await self._carry(send)
                tasks.cancel_scope.cancel()
        except* (GitLabJobsError, OSError) as group:
            if self._has_begun:  # what is cut short has to look like it
                raise
            failed = _away(group.exceptions[0])
        if failed is not None:
            await failed(scope, receive, send)

    async def _carry(self, send: Send) -> Response | None:
        """Pass on what the first cell answers that has it; returns what to answer if none has."""
        headers = to_cell(self._request.headers.items(), _client(self._request), is_streamed=False)  # without a body
        others: dict[bool, Response] = {}
        with self._router._counted():  # noqa: SLF001  (one thing with it)
            for name in self._names:
                cell = self._router.cells[name]
                call = cell.client.pass_on(
                    self._request.method, _path(self._request), headers=headers, seconds=TRANSFER
                )
                try:
                    async with call as got:
                        cell.note(answers=not is_away(got.status))
                        if is_away(got.status) or is_foreign(got.status, got.headers):
                            refused = await _answer(cell, got)
                            others.setdefault(is_away(refused.status), _response(refused))
                            continue
                        self._router.jobs.remember(self._key, name)
                        await self._send(got, send)
                        return None
                except Refused as error:
                    return JSONResponse({"message": _unsendable(error).detail}, HTTPStatus.BAD_REQUEST)
                except GitLabJobsError as error:
                    if self._has_begun:
                        raise
                    others.setdefault(True, _response(_no_answer(cell, error)))
        return others[True] if True in others else others[False]

    async def _send(self, got: Passing, send: Send) -> None:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in to_runner(got.headers).items()]
        self._has_begun = True
        await send({"type": "http.response.start", "status": got.status, "headers": raw})
        async with got.pieces() as pieces, aclosing(gathered(pieces)) as together:
            async for piece in together:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _answer(cell: Cell, got: Passing) -> Answer:
    """A whole answer; those with a job are longer, and come another way."""
    cell.note(answers=not is_away(got.status))
    try:
        body = await got.read(MAX_ANSWER)
    except Refused as error:
        log.warning("cell_says_too_much", extra={"cell": cell.name, "why": one_line(str(error))})
        why = f"502 cell {cell.name} answers with more than {MAX_ANSWER} bytes"
        return Answer(HTTPStatus.BAD_GATEWAY, _JSON, json.dumps({"message": why}).encode())
    if HTTPStatus.MULTIPLE_CHOICES <= got.status < HTTPStatus.BAD_REQUEST:
        log.warning("cell_redirects", extra={"cell": cell.name, "status": got.status})
        why = f"502 cell {cell.name} redirects; use the address that it leads to as its url"
        return Answer(HTTPStatus.BAD_GATEWAY, _JSON, json.dumps({"message": why}).encode())
    return Answer(got.status, dict(got.headers), body)


def _unsendable(error: Refused) -> HTTPException:
    """A header that cannot go on, such as a token: who sent it is wrong, and no cell."""
    return HTTPException(HTTPStatus.BAD_REQUEST, f"400 Bad Request - {one_line(str(error))}")


def _no_answer(cell: Cell, error: Exception) -> Answer:
    cell.note(answers=False)
    log.warning("cell_away", extra={"cell": cell.name, "why": one_line(str(error))})
    return Answer(
        HTTPStatus.BAD_GATEWAY, _JSON, json.dumps({"message": f"502 cell {cell.name} does not answer"}).encode()
    )


def _away(error: Exception) -> Response:
    log.debug("not_passed_on", extra={"why": one_line(str(error))})
    return JSONResponse({"message": "502 the cell does not answer"}, HTTPStatus.BAD_GATEWAY)


def _response(answer: Answer, ticket: str | None = None) -> Response:
    headers = to_runner(answer.headers, ticket)
    headers.pop("content-length", None)
    return Response(answer.body, answer.status, headers)


def _json(reply: Reply) -> Response:
    return JSONResponse(reply.body, reply.status, dict(reply.headers))


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end_with(receive: Receive, tasks: TaskGroup) -> None:
    await _gone(receive)
    tasks.cancel_scope.cancel()


def _object_if_any(raw: bytes) -> Mapping[str, Any]:
    """What a call says of itself, as far as it is an object: some send ``null``."""
    try:
        return object_in(raw)
    except HTTPException:
        return {}


def _client(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _path(request: Request) -> str:
    """The call, as a cell has it."""
    path: str = request.scope["path"]  # not of the URL, which some versions put together with the Host header
    rest, query = path.removeprefix(_PREFIX), request.scope["query_string"].decode("latin-1")
    return f"{rest}?{query}" if query else rest


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBERS


def _is_plain(text: str) -> bool:
    return bool(_PLAIN.fullmatch(text))
