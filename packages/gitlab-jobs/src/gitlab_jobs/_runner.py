"""A runner that asks one GitLab for jobs, at the times that `Polling` says."""

import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import anyio

from gitlab_jobs._client import Asked, GitLabClient, Registered
from gitlab_jobs._errors import PayloadInvalid
from gitlab_jobs._job import Outcome
from gitlab_jobs._payload import Job
from gitlab_jobs._polling import Polling
from gitlab_jobs._reporting import reporting

REFUSAL = 60.0
"""Seconds that it may take to report a job as failed that cannot be understood."""

_log = logging.getLogger("gitlab_jobs")


class Runner:
    """Asks for jobs with one token.

    Several tasks may use it at a time: how many requests are open, and when the next one is due, is decided here.
    """

    def __init__(
        self,
        client: GitLabClient,
        token: str,
        *,
        info: Mapping[str, Any],
        system_id: str = "",
        polling: Polling | None = None,
    ) -> None:
        """Ask with a runner's token; *info* says what it can do, and *system_id* which of its managers this is."""
        self.client = client
        self.info = info
        self.polling = polling or Polling(anyio.current_time())
        self._token = token
        self._system_id = system_id
        self._changed = anyio.Event()
        self._trouble: str | None = None
        self._troubled_since = 0.0

    @property
    def trouble(self) -> str:
        """Why the last request brought no answer that could be used; empty: it did."""
        return self._trouble or ""

    async def turn(self) -> None:
        """Wait until a request is due; then is the time to reserve what a job would need."""
        while not self.polling.may_ask(now := anyio.current_time()):
            changed, wake = self._changed, self.polling.wake
            with anyio.move_on_after(None if wake is None else wake - now):
                await changed.wait()

    async def ask(self, *, asked: Callable[[], object] | None = None, may_hold: bool = True) -> Job | None:
        """Ask once, when it is due; what is reserved can be given back if there is no job.

        A job that cannot be understood is reported as failed: GitLab would wait for its end otherwise.

        Args:
            asked: Called once, without arguments, when the request is on its way and `turn` waits for the next.
            may_hold: Whether GitLab may hold the request while it has nothing new; else it answers at once.
        """
        await self.turn()
        self.polling.asked()
        if asked is not None:
            asked()
        got, token, ticket = None, self._token, self.polling.ticket if may_hold else None
        since = anyio.current_time() if may_hold else None
        try:
            got = await self.client.ask(
                token,
                system_id=self._system_id,
                info=self.info,
                ticket=ticket,
                is_repeated=not self.polling.is_eager,
            )
        finally:
            refused = got is not None and got.polled.status == HTTPStatus.FORBIDDEN
            is_outdated = refused and self._token != token  # it was replaced while GitLab held the request
            if got is None or is_outdated:
                self.polling.cancelled()
            else:
                self.polling.answered(got.polled, anyio.current_time(), asked_at=since)
            self._note_change()
        if is_outdated:
            return None
        self._note_trouble(got)
        if isinstance(got.problem, PayloadInvalid):
            with anyio.move_on_after(REFUSAL, shield=True):
                await self._refuse(got.problem)
        return got.job

    async def reset_token(self) -> Registered:
        """Have GitLab replace the token, and ask with the new one from now on; keep it for the next start.

        Raises:
            Refused: GitLab does not know the token.
            Unreachable: GitLab does not answer. It may have replaced the token all the same.
        """
        registered = await self.client.reset_token(self._token)
        self.use_token(registered.token)
        return registered

    def use_token(self, token: str) -> None:
        """Ask with another token from now on: a runner that was refused too often with the old one asks again."""
        self._token = token
        self.polling.renewed(anyio.current_time())
        self._note_change()

    def _note_trouble(self, got: Asked) -> None:
        """Log what is wrong once, not at each request, and that it is over."""
        trouble = None if got.problem is None else str(got.problem)
        now, before, self._trouble = anyio.current_time(), self._trouble, trouble
        if trouble is None and before is not None:
            _log.info("gitlab_answers_again", extra={"after_s": round(now - self._troubled_since, 1)})
        elif trouble is not None and trouble != before:
            self._troubled_since = now if before is None else self._troubled_since
            _log.warning("no_job", extra={"reason": trouble, "status": got.polled.status})

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _refuse(self, problem: PayloadInvalid) -> None:
        if problem.job_id is None or problem.token is None:
            return
        job = Job(id=problem.job_id, token=problem.token)
        async with reporting(self.client, job, info=self.info) as report:
            report.log(f"The runner cannot understand the job: {problem}\n".encode())
            if await report.claim():
                await report.finish(Outcome(is_success=False, failure_reason="runner_system_failure"))
