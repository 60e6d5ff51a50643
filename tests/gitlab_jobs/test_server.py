"""The coordinator's side: who may ask what."""

import errno
import zlib
from io import BytesIO
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Dependency, Job, Variable
from gitlab_jobs._server import ACKNOWLEDGEMENT, Reply, Server, State
from gitlab_jobs._stored_log import StoredLog

RUNNER = "glrt-runner"
FULL = {"two_phase_job_commit": True, "cancel_gracefully": True}


def server(**settings: Any) -> Server:  # noqa: ANN401  (the server's)
    """One with a runner, and a job that waits."""
    numbers = count(1)
    made = Server(lambda: f"secret{next(numbers)}", **settings)
    made.add_runner(RUNNER)
    made.enqueue(Job(id=0, token="", variables=(Variable(key="A", value="b"),)))
    return made


def final(log: bytes, state: str = "success") -> dict[str, object]:
    """The body of a final call."""
    return {"state": state, "output": {"checksum": f"crc32:{zlib.crc32(log):08x}", "bytesize": len(log)}}


def test_a_job_is_handed_out_once() -> None:
    """With a token of its own; the ticket says whether there may be another."""
    there = server()
    first, second = (there.request(RUNNER, {}, 0.0) for _ in range(2))
    assert (first.status, first.body.id, first.body.token, second.status) == (201, 1, "glcbt-secret1", 204)
    ticket = second.headers["X-GitLab-Last-Update"]
    assert not there.has_changed(ticket)
    there.enqueue(Job(id=0, token=""))
    assert there.has_changed(ticket)


@pytest.mark.parametrize("token", ["", "glrt-", "glrt-runner2", "glrt-runneé"])
def test_who_is_no_runner_gets_nothing(token: str) -> None:
    """Neither a job nor a look."""
    there = server()
    replies = [there.request(token, {}, 0.0), there.verify(token), there.unregister(token), there.reset(token)]
    assert [each.status for each in replies] == [403] * 4


def test_runners_come_and_go() -> None:
    """Registered, verified, reset and unregistered: the old token is good for nothing after each."""
    there = server()
    one = there.register().body
    assert there.verify(one["token"]).body["id"] == one["id"] == 2
    other = there.reset(one["token"]).body["token"]
    assert (there.verify(one["token"]).status, there.verify(other).body["id"]) == (403, 2)
    assert (there.unregister(other).status, there.verify(other).status) == (204, 403)


@pytest.mark.parametrize(("number", "token"), [(1, ""), (1, "glcbt-secret2"), (1, RUNNER), (2, "glcbt-secret1")])
def test_a_call_about_a_job_needs_its_token(number: int, token: str) -> None:
    """All refusals are alike: who guesses learns nothing."""
    there = server()
    there.request(RUNNER, {}, 0.0)
    replies = [
        there.update(number, token, {"state": "running"}, 0.0),
        there.append(number, token, "0-0", b"a", 0.0),
        there.may_upload(number, token),
        there.may_download(number, token),
    ]
    assert {each.status if each else None for each in replies} == {403}
    assert all("Job-Status" not in each.headers for each in replies if each)


def test_a_job_that_waits_has_no_token() -> None:
    """Nobody can speak for it, not even with an empty one."""
    assert server().update(1, "", final(b""), 0.0).status == 403


def test_the_log_is_kept_by_offset() -> None:
    """Only the start counts; what does not follow is refused with the number of bytes that are there."""
    there = server()
    token = there.request(RUNNER, {}, 0.0).body.token

    def append(content_range: str | None, body: bytes) -> tuple[int, str]:
        reply = there.append(1, token, content_range, body, 0.0)
        return reply.status, reply.headers["Range"]

    assert append("0-2", b"abc") == (202, "0-3")
    assert append("0-2", b"abc") == (416, "0-3")
    assert append("5-6", b"xy") == (416, "0-3")
    assert append("3-99", b"de") == (202, "0-5")
    for wrong in (None, "", "bytes 5-6/7", "5", "a-b", "5-" + "9" * 5000):
        assert append(wrong, b"f")[0] == 400
    assert bytes(there.jobs[1].trace) == b"abcde"


def test_a_job_ends_once() -> None:
    """With the log that the runner has; then every call is refused with how it ended."""
    there = server(accepts=1)
    token = there.request(RUNNER, {}, 0.0).body.token
    there.append(1, token, "0-2", b"abc", 0.0)
    assert there.update(1, token, final(b"abc"), 0.0).status == 202
    assert there.update(1, token, final(b"abx"), 0.0).status == 412
    assert there.append(1, token, "0-2", b"abc", 0.0).status == 202
    assert there.update(1, token, final(b"abc"), 0.0).status == 200
    for reply in (
        there.update(1, token, final(b"abc"), 0.0),
        there.update(1, token, {"state": "running"}, 0.0),
        there.append(1, token, "3-3", b"d", 0.0),
    ):
        assert (reply.status, reply.headers["Job-Status"]) == (403, "success")


def test_a_runner_without_a_checksum_is_believed() -> None:
    """There are such."""
    there = server(accepts=1)
    token = there.request(RUNNER, {}, 0.0).body.token
    reply = there.update(1, token, {"state": "failed", "failure_reason": "script_failure", "exit_code": 3}, 0.0)
    job = there.jobs[1]
    assert (reply.status, job.state, job.failure_reason, job.exit_code) == (200, State.FAILED, "script_failure", 3)


@pytest.mark.parametrize("body", [{}, {"state": "pending"}, {"state": None}, {"state": []}, {"state": "canceled"}])
def test_a_state_that_no_runner_sets_is_refused(body: dict[str, object]) -> None:
    """It changes nothing."""
    there = server()
    token = there.request(RUNNER, {}, 0.0).body.token
    assert there.update(1, token, body, 0.0).status == 400
    assert there.jobs[1].state is State.RUNNING


def test_a_job_stays_pending_until_it_is_acknowledged() -> None:
    """Keep-alive calls move the deadline; after it the job is another one, for somebody else."""
    there = server()
    token = there.request(RUNNER, FULL, 0.0).body.token
    assert there.jobs[1].state is State.PENDING
    assert there.request(RUNNER, FULL, 0.0).status == 204
    assert there.update(1, token, {"state": "success"}, 1.0).status == 400
    assert there.update(1, token, {"state": "pending"}, ACKNOWLEDGEMENT - 1).status == 200
    assert there.request(RUNNER, FULL, ACKNOWLEDGEMENT + 1).status == 204
    again = there.request(RUNNER, FULL, 2 * ACKNOWLEDGEMENT)
    assert (again.status, again.body.id, again.body.variables) == (201, 2, there.jobs[1].job.variables)
    assert (there.jobs[1].failure_reason, there.jobs[1].retried_as) == ("runner_provisioning_timeout", 2)
    assert there.update(1, token, {"state": "running"}, 2 * ACKNOWLEDGEMENT).status == 403
    assert there.update(2, again.body.token, {"state": "running"}, 2 * ACKNOWLEDGEMENT).status == 200
    assert there.jobs[2].state is State.RUNNING


def test_a_job_is_cancelled_gracefully_where_the_runner_can() -> None:
    """It is asked to end; whatever it reports, the job was cancelled. Without the feature it is over at once."""
    there = server()
    token = there.request(RUNNER, {"cancel_gracefully": True}, 0.0).body.token
    there.cancel(1)
    there.cancel(1)
    reply = there.append(1, token, "0-0", b"a", 0.0)
    assert (reply.status, reply.headers["Job-Status"]) == (202, "canceling")
    assert there.update(1, token, final(b"a"), 0.0).status == 200
    assert there.jobs[1].state is State.CANCELED
    for features in ({}, FULL):
        there.enqueue(Job(id=0, token=""))
        number, token = (job := there.request(RUNNER, features, 0.0).body).id, job.token
        there.cancel(number)
        reply = there.update(number, token, {"state": "running"}, 0.0)
        assert (reply.status, reply.headers["Job-Status"]) == (403, "canceled")
        there.tick(2 * ACKNOWLEDGEMENT)
    assert len(there.jobs) == 3


def test_artifacts_are_for_jobs_that_depend_on_them() -> None:
    """And for the job itself, also after its end."""
    there = server()
    first = there.request(RUNNER, {}, 0.0).body
    there.update(1, first.token, final(b""), 0.0)
    there.enqueue(Job(id=0, token="", dependencies=(Dependency(id=1),)))
    there.enqueue(Job(id=0, token=""))
    second, third = (there.request(RUNNER, {}, 0.0).body for _ in range(2))
    assert [there.may_download(1, each.token) is None for each in (first, second, third)] == [True, True, False]
    assert isinstance(there.may_upload(1, first.token), Reply)
    assert there.may_upload(2, second.token) is None


def test_a_log_has_a_limit() -> None:
    """The job fails beyond it."""
    there = server(trace_limit=3)
    token = there.request(RUNNER, {}, 0.0).body.token
    assert there.append(1, token, "0-2", b"abc", 0.0).status == 202
    assert there.append(1, token, "3-3", b"d", 0.0).status == 403
    assert (there.jobs[1].state, there.jobs[1].failure_reason) == (State.FAILED, "trace_size_exceeded")


class SmallDisk(BytesIO):
    """A file on a disk with room for four bytes."""

    def write(self, data: Any, /) -> int:  # noqa: ANN401  (what can be written)
        """Write what there is room for."""
        left = 4 - self.tell()
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[:left])


def test_a_log_on_a_full_disk_is_as_it_was() -> None:
    """The runner is told to come again, and nothing of the piece is kept."""
    disk = SmallDisk(b"of an earlier run")
    there = server(spool=lambda _: disk)
    token = there.request(RUNNER, {}, 0.0).body.token
    assert there.append(1, token, "0-2", b"abc", 0.0).status == 202
    reply = there.append(1, token, "3-4", b"de", 0.0)
    assert (reply.status, reply.headers["Range"], disk.getvalue()) == (500, "0-3", b"abc")
    assert there.append(1, token, "3-3", b"d", 0.0).status == 202
    assert there.update(1, token, final(b"abcd"), 0.0).status == 200


@given(st.lists(st.one_of(st.binary(min_size=1, max_size=9), st.integers(0, 20))))
def test_a_stored_log_is_what_was_stored(steps: list[bytes | int]) -> None:
    """With the checksum of that, whatever was cut off in between."""
    log, model = StoredLog(), b""
    for step in steps:
        if isinstance(step, bytes):
            log.append(step)
            model += step
        else:
            log.cut(step)
            model = model[:step]
        assert (bytes(log), len(log), log.checksum) == (model, len(model), f"crc32:{zlib.crc32(model):08x}")
