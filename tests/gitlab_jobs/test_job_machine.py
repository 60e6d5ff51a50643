"""A runner's side of a job against the coordinator's, with a network between them that may do anything.

Requests and answers are lost, come late, come twice, and are replaced by those of something in between; either side is
started again at any moment, the coordinator without the end of a log, the runner without what it had not written down
and with a character in its log of which only a part is there. In the end each job has ended exactly once, its log is
as it was written, and every checksum was that of the log.
"""

import zlib
from io import BytesIO
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gitlab_jobs import Answer, End, Job, Outcome, Patch, Phase, Report, Trace
from gitlab_jobs._job import CLAIM_PATIENCE, NO_ANSWER, SUMS, Request
from gitlab_jobs._server import ACKNOWLEDGEMENT, Server, State

RUNNER = "glrt-runner"
FOR_PATCHES = [400, 404, 408, 413, 429, 500, 503]
"""What may stand between says about a patch."""

FOR_UPDATES = [400, 408, 429, 500, 503]
"""What it says about other calls; 404 would be the coordinator's word that there is no such job."""

FOR_ENDS = [*FOR_UPDATES, 202, 412]
"""What it says about a final state."""


class JobMachine(RuleBasedStateMachine):
    """One job, or as many as it takes until one is acknowledged."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        super().__init__()
        self.now = 0.0
        self.numbers = count(1)
        self.wire: list[tuple[int, Request, int, str]] = []
        self.answers: list[tuple[int, Answer]] = []
        self.current: int | None = None
        self.ends: list[State] = []
        self.was_cancelled = False
        self.said_of_log = 0  # so often somebody gave cause to send it again

    @initialize(
        two_phase=st.booleans(),
        graceful=st.booleans(),
        counts=st.tuples(st.integers(0, 2), st.integers(0, 2)),
        unheard=st.sampled_from([0, 1, 2, 5]),
        damage=st.booleans(),
        rude=st.lists(st.tuples(st.integers(0, 99), st.booleans(), st.integers(0, 30)), max_size=6),
    )
    def begin(
        self,
        two_phase: bool,  # noqa: FBT001  (hypothesis calls it)
        graceful: bool,  # noqa: FBT001
        counts: tuple[int, int],
        unheard: int,
        **later: Any,  # noqa: ANN401  (what happens in the end)
    ) -> None:
        """The job is handed out; if it is acknowledged later, answers that have it may be lost before."""
        accepts, unseen = counts
        self.unheard = unheard
        self.damage, self.rude = later["damage"], later["rude"]
        numbers = count(1)
        self.server = Server(lambda: f"token{next(numbers)}", accepts=accepts)
        self.server.add_runner(RUNNER)
        self.number = self.server.enqueue(Job(id=0, token=""))
        self.features = {"two_phase_job_commit": two_phase, "cancel_gracefully": graceful}
        for _ in range(unseen if two_phase else 0):
            assert self.server.request(RUNNER, self.features, self.now).status == 201
            self.now += ACKNOWLEDGEMENT
        self.take()

    def take(self) -> None:
        """Ask for a job, and get one."""
        reply = self.server.request(RUNNER, self.features, self.now)
        assert reply.status == 201
        self.job: Job = reply.body
        self.spool = BytesIO()
        self.report = Report(Trace(spool=self.spool), self.now, two_phase=self.features["two_phase_job_commit"])
        self.report.trace.write(b"taken\n")
        self.current = None
        self.end: End | None = None
        self.note()

    def note(self) -> None:
        """Write down what has to outlive the process."""
        self.noted: dict[str, Any] = {
            "phase": self.report.phase,
            "outcome": self.report.outcome,
            "is_canceling": self.report.is_canceling,
        }

    # the runner

    @rule(data=st.binary(min_size=1, max_size=12))
    def write(self, data: bytes) -> None:
        """The job prints something; after its end it cannot."""
        if self.report.outcome is None:
            self.report.trace.write(data)

    @rule()
    def start(self) -> None:
        """The job's place is ready."""
        self.report.start(self.now)

    @rule(success=st.booleans(), dice=st.integers(0, 5))
    def finish(self, success: bool, dice: int) -> None:  # noqa: FBT001  (hypothesis calls it)
        """The job ends; not often, so that something can happen before."""
        if dice != 5:
            return
        outcome = Outcome(is_success=success, failure_reason=None if success else "script_failure", exit_code=3)
        self.report.finish(outcome, self.now)

    @rule(forgets=st.booleans(), torn=st.sampled_from([b"", b"\xe2\x82", b"\xf0"]))
    def restart_runner(self, forgets: bool, torn: bytes) -> None:  # noqa: FBT001  (hypothesis calls it)
        """The process dies, perhaps as it writes; what it had written down is all that is left."""
        self.current = None
        if self.report.phase is Phase.OVER:
            return
        if not forgets:
            self.note()
        self.spool.seek(0, 2)
        self.spool.write(torn)
        trace = Trace(spool=self.spool)
        self.report = Report(trace, self.now, **self.noted)

    # the network

    @precondition(lambda self: self.current is None)
    @rule()
    def send(self) -> None:
        """Send what there is to send, and write down before where the job is."""
        self.note()
        request = self.report.request(self.now)
        if request is not None:
            self.current = next(self.numbers)
            self.wire.append((self.current, request, self.job.id, self.job.token))

    @precondition(lambda self: self.wire)
    @rule(which=st.integers(0, 99), again=st.booleans())
    def deliver(self, which: int, again: bool) -> None:  # noqa: FBT001  (hypothesis calls it)
        """A request arrives, in any order, and perhaps once more later."""
        which %= len(self.wire)
        number, request, job, token = self.wire[which] if again else self.wire.pop(which)
        stored = self.server.jobs[job]
        before = stored.state
        if not isinstance(request, Patch) and request.checksum is not None:
            log = self.spool.getvalue()[: request.size] if job == self.job.id else b""
            assert job != self.job.id or request.checksum == f"crc32:{zlib.crc32(log):08x}"
        if isinstance(request, Patch):
            reply = self.server.append(job, token, request.content_range, request.body, self.now)
        else:
            body: dict[str, Any] = {
                "state": request.state,
                "output": {"checksum": request.checksum, "bytesize": request.size},
                "failure_reason": request.failure_reason,
                "exit_code": request.exit_code,
            }
            reply = self.server.update(job, token, body, self.now)
        if stored.state.is_final and not before.is_final:
            self.ends.append(stored.state)
        self.answers.append((number, Answer.of(reply.status, reply.headers)))

    @precondition(lambda self: self.answers)
    @rule(which=st.integers(0, 99))
    def answer(self, which: int) -> None:
        """An answer arrives; if it is not that of the request under way, nobody listens."""
        number, answer = self.answers.pop(which % len(self.answers))
        if number == self.current:
            self.current = None
            self.report.answered(answer, self.now)

    @precondition(lambda self: self.current is None)
    @rule(arrives=st.sampled_from([1, 1, 1, 2, 0]), is_heard=st.sampled_from([True, True, False]))
    def exchange(self, arrives: int, is_heard: bool) -> None:  # noqa: FBT001  (hypothesis calls it)
        """A request as it should be, or almost: it arrives at once, or twice, or not, and is answered, or not."""
        self.send()
        if self.current is None:
            return
        number, request, job, token = self.wire.pop()
        for _ in range(arrives):
            self.wire.append((number, request, job, token))
            self.deliver(len(self.wire) - 1, again=False)
        answers = [each for each in self.answers if each[0] == number]
        self.answers = [each for each in self.answers if each[0] != number]
        self.current = None
        self.report.answered(answers[-1][1] if answers and is_heard else NO_ANSWER, self.now)

    @precondition(lambda self: self.current is None)
    @rule(which=st.integers(0, 99), arrives=st.booleans(), held=st.integers(0, 30))
    def interfere(self, which: int, arrives: bool, held: int) -> None:  # noqa: FBT001  (hypothesis calls it)
        """Something in between answers a call instead, whether or not that arrives: it is busy, broken, or lies."""
        self.send()
        if self.current is None:
            return
        self.answer_instead(which, held, arrives=arrives)

    def answer_instead(self, which: int, held: int, *, arrives: bool) -> None:
        """Answer the last request on the wire."""
        number, request, *_ = self.wire[-1]
        if arrives:
            self.deliver(len(self.wire) - 1, again=False)
            self.answers = [each for each in self.answers if each[0] != number]
        else:
            self.wire.pop()
        if isinstance(request, Patch):
            status = [*FOR_PATCHES, 416][which % (len(FOR_PATCHES) + 1)]
        else:
            statuses = FOR_ENDS if request.state in ("success", "failed") else FOR_UPDATES
            status = statuses[which % len(statuses)]
        if status == 412:
            self.said_of_log += 1
            status = 412 if self.said_of_log < SUMS // 2 else 503
        headers = {"Range": f"0-{held}", "X-GitLab-Trace-Update-Interval": str(held)} if held % 2 else {}
        self.current = None
        self.report.answered(Answer.of(status, headers), self.now)

    @precondition(lambda self: self.wire)
    @rule(which=st.integers(0, 99))
    def lose(self, which: int) -> None:
        """A request is lost."""
        self.wire.pop(which % len(self.wire))

    @precondition(lambda self: self.current is not None)
    @rule()
    def time_out(self) -> None:
        """The runner waits no longer; request or answer may still be on their way."""
        self.current = None
        self.report.answered(NO_ANSWER, self.now)

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0, 31.0]))
    def wait(self, seconds: float) -> None:
        """Time passes, but not so much that a claim or a log is given up; what happens then is tested by itself."""
        is_bounded = self.report.phase in (Phase.CLAIMING, Phase.FINISHING)
        if not is_bounded or self.now - self.report._since < CLAIM_PATIENCE / 2:
            self.now += seconds

    # the coordinator

    @rule(lost=st.integers(1, 20))
    def restart_coordinator(self, lost: int) -> None:
        """It comes back without the end of a log that is still written."""
        trace = self.server.jobs[self.job.id].trace
        self.said_of_log += 1
        if not self.server.jobs[self.job.id].state.is_final and self.said_of_log < SUMS // 2:
            trace.cut(max(0, len(trace) - lost))

    @rule(dice=st.integers(0, 9))
    def cancel(self, dice: int) -> None:
        """Somebody clicks; seldom."""
        if dice != 9:
            return
        self.was_cancelled = True
        self.server.cancel(self.job.id)

    # what holds

    @invariant()
    def the_stored_log_is_a_beginning_of_ours(self) -> None:
        """Whatever was lost or came twice."""
        if hasattr(self, "job"):
            assert self.spool.getvalue().startswith(bytes(self.server.jobs[self.job.id].trace))

    @invariant()
    def what_we_run_is_ours(self) -> None:
        """Nothing is taken for a claim but the answer to one."""
        if hasattr(self, "job") and self.report.is_claimed:
            stored = self.server.jobs[self.job.id]
            assert State.RUNNING in (*stored.history, stored.state)

    @invariant()
    def nothing_ends_twice(self) -> None:
        """Nor goes on after it has ended."""
        if hasattr(self, "job"):
            for stored in self.server.jobs.values():
                assert sum(state.is_final for state in [*stored.history, stored.state]) <= 1

    @invariant()
    def a_report_ends_once(self) -> None:
        """And says nothing after that."""
        if hasattr(self, "job") and self.report.phase is Phase.OVER:
            self.end = self.end or self.report.end
            assert self.end is self.report.end is not None
            assert (self.report.request(self.now), self.report.wake) == (None, None)

    def teardown(self) -> None:
        """The network is well again, almost: some answers to the last calls are lost, and one log is damaged."""
        if not hasattr(self, "job"):
            return
        self.wire, self.answers = [], []
        if self.current is not None:
            self.time_out()
        for _ in range(400):
            self.report.start(self.now)
            if self.report.is_claimed and self.report.outcome is None:
                self.finish(success=True, dice=5)
            if self.report.phase is Phase.OVER:
                if self.server.jobs[self.job.id].retried_as is None:
                    break
                self.take()  # nobody had acknowledged it in time
            self.send()
            if self.wire:
                self.arrive()
            elif self.report.wake is not None:
                self.now = max(self.now, self.report.wake)
        self.check()

    def arrive(self) -> None:
        """The only request there is arrives; the answer to a final one may be lost."""
        _, request, *_ = self.wire[0]
        if self.rude and self.report.phase is Phase.FINISHING:
            which, arrives, held = self.rude.pop()
            self.answer_instead(which, held, arrives=arrives)
            return
        self.deliver(0, again=False)
        stored = self.server.jobs[self.job.id]
        if self.damage and isinstance(request, Patch) and (trace := stored.trace) and not stored.state.is_final:
            kept = bytes(trace)
            trace.cut(0)
            trace.append(bytes([kept[0] ^ 1]) + kept[1:])
            self.damage = False
        if self.unheard and not isinstance(request, Patch) and request.state != "running":
            self.unheard -= 1
            self.answers.clear()
            self.time_out()
        else:
            self.answer(0)

    def check(self) -> None:
        """One job ended, once, with its log; the others were taken back before anybody ran them."""
        *earlier, last = self.server.jobs.values()
        assert all(each.failure_reason == "runner_provisioning_timeout" for each in earlier)
        assert last.state.is_final
        if last.state is State.CANCELED:
            assert self.was_cancelled
            assert self.report.end in (End.REPORTED, End.REVOKED)
            if not self.features["cancel_gracefully"] or self.report.end is End.REVOKED:
                return
        assert self.report.end is End.REPORTED
        assert self.report.outcome
        if last.state is not State.CANCELED:
            assert last.state.value == self.report.outcome.state
        if not self.ends or State.CANCELED not in last.history:
            assert bytes(last.trace) == self.spool.getvalue()
            assert f"crc32:{zlib.crc32(bytes(last.trace)):08x}" == self.report.trace.checksum


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = settings(max_examples=200, stateful_step_count=60)
