"""One job between its GitLab and a sidecar: what is allowed, what is written down, what is done next. Pure.

A *delivery* is one try at a job in one slot: a sidecar of its own, with a token that is good for one job. A method
tells what has happened, and answers with a `Step`: first its record is on disk, then its actions are done, in order.

========  =============================================  ====================================================
standing  begins                                         a sidecar or its slot that is lost
========  =============================================  ====================================================
taken     GitLab has handed the job out                  the job waits for another slot
starting  the sidecar is about to be started             the job is placed again, a few times
offered   its first poll, with its token                 the same
at work   its first call about the job, which claims it  the job has failed, and GitLab and its log are told why
over      GitLab has the end, or wants no more           the slot is given back
========  =============================================  ====================================================

A sidecar before 18.5 claims nothing: it begins as soon as it has the job, and calls about it seconds later. So its job
is at work, and claimed, before it is offered.

What a later manager can still do depends on what outlives this one. The job's description does not: so one that nobody
has been offered is given up. Its token does only if the operator wants that: without it, GitLab cannot be told.
"""

from collections.abc import Mapping
from enum import Enum
from hashlib import sha256
from hmac import compare_digest

from attrs import evolve, field, frozen

from gitlab_jobs import Answer, Outcome
from taskscaler_gitlab._record import Stage

_FINAL = ("success", "failed")


class Standing(Enum):
    """How far a job has come."""

    TAKEN = "taken"
    STARTING = "starting"
    OFFERED = "offered"
    AT_WORK = "at work"
    OVER = "over"


class How(Enum):
    """How a job came to be over."""

    REPORTED = "reported"
    """GitLab has its end, from the sidecar."""

    REVOKED = "revoked"
    """GitLab wants no more of it."""

    FAILED = "failed"
    """It cannot be seen to its end here, and GitLab is to be told."""

    HANDED_BACK = "handed back"
    """Nobody has claimed it: GitLab gives it to another runner."""

    UNREPORTED = "unreported"
    """It has failed, and nobody here has the token any more that GitLab could be told with."""


class Action(Enum):
    """What is to be done."""

    ACQUIRE = "acquire"
    """Wait for a slot."""

    START = "start"
    """Start the sidecar."""

    FOLLOW = "follow"
    """Go on with a sidecar that an earlier manager has started."""

    OFFER = "offer"
    """Answer a poll with the job."""

    NOTHING = "nothing"
    """Answer a poll without one."""

    REFUSE = "refuse"
    """Answer a call with 403."""

    CLAIM = "claim"
    """Tell GitLab that the job runs, before anything is passed on."""

    PASS = "pass"  # noqa: S105  (no password)
    """Pass a call on to GitLab."""

    TELL = "tell"
    """Say in the answers to the sidecar that the job is to end."""

    EXPECT_END = "expect end"
    """Wait for the sidecar to end by itself; end it if it does not."""

    END = "end"
    """End the sidecar now."""

    RELEASE = "release"
    """Give the slot back."""

    DETACH = "detach"
    """Leave the slot, and the sidecar in it, to the next manager."""

    FAIL = "fail"
    """Tell GitLab that the job has failed, with the reason as the last line of its log."""

    CANCELED = "canceled"
    """Tell GitLab that the job ended because it wanted that."""

    HAND_BACK = "hand back"
    """Say no more about the job, so that GitLab gives it to another runner; or that it failed, if it is claimed."""


@frozen(kw_only=True)
class Record:
    """What is on disk of a job."""

    job: int
    """Its number."""

    name: str
    """Its name in the pipeline."""

    project: str
    """Its project's path."""

    key: str
    """Under which it waits for its slot, or has it."""

    prefix: str
    """Stands for GitLab and the runner, and begins the names of its sidecars."""

    taken_at: float
    """When GitLab handed it out, in seconds since the epoch."""

    token_hash: str
    """Of its token, which is not here."""

    token: str = field(default="", repr=False)
    """The token itself, if it is to be kept."""

    dependencies: Mapping[str, str] = field(factory=dict)
    """The jobs whose artifacts it starts with, by their numbers: hashes of their tokens."""

    rule: str = ""
    """The name of the rule of ``[[dispatch]]`` that says where it runs; empty: none does."""

    dispatched: str = ""
    """What became of it by the rules, as a sentence without its end; empty: there are none."""

    pools: tuple[str, ...] = ()
    """The pools that it may use, in order of preference; empty: any."""

    standing: Standing = Standing.TAKEN
    """How far it has come."""

    tries: int = 1
    """How often it was placed."""

    is_two_phase: bool = False
    """Whether GitLab has said that it keeps it for us until it is claimed."""

    delivery: str = ""
    """Names the try that is under way."""

    secret_hash: str = ""
    """Of the token that its sidecar asks with."""

    port: int = 0
    """Where the sidecar reaches us on its instance; 0: by the address that is advertised."""

    listen: str = ""
    """Where we listen for it then, as ``address:port``."""

    how: How | None = None
    """How it came to be over."""

    why: str = ""
    """Why it has failed."""

    is_success: bool | None = None
    """How it ended, if that is known."""

    traceparent: str = ""
    """What the job says that it is a part of; empty: nothing."""

    tracestate: str = ""
    """The same, as W3C has it."""

    failure_reason: str | None = None
    """Why it failed, in GitLab's words."""

    exit_code: int | None = None
    """What its script exited with."""

    is_canceling: bool = False
    """Whether GitLab wants it to end."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None: that is not known."""
        if self.is_success is None:
            return None
        return Outcome(is_success=self.is_success, failure_reason=self.failure_reason, exit_code=self.exit_code)

    @property
    def stage(self) -> Stage:
        """The same as of jobs that we run ourselves."""
        if self.is_success is not None:
            return Stage.ENDED
        return Stage.CLAIMED if self.standing in (Standing.AT_WORK, Standing.OVER) else Stage.TAKEN


@frozen
class Step:
    """What follows from something."""

    relay: "Relay"
    """How it stands then."""

    record: Record | None = None
    """What is written down before anything else; None: nothing new."""

    actions: tuple[Action, ...] = ()
    """What is done then."""


@frozen(kw_only=True)
class Relay:
    """A job, and where it stands."""

    record: Record
    placements: int = 3
    """How often it is placed at most."""

    has_payload: bool = True
    """Whether its description is at hand: not after a restart."""

    has_token: bool = True
    """Whether its token is."""

    has_slot: bool = False
    is_running: bool = False
    """Whether a sidecar may run."""

    is_due: bool = False
    """Whether it is at work, and its sidecar, which has asked for it, is to get it once it is claimed."""

    # --- the fleet ---------------------------------------------------------------------------------------

    def got_slot(self) -> Step:
        """There is a slot for it."""
        if self.record.standing is not Standing.TAKEN:
            return _to(self, Action.RELEASE)
        return Step(evolve(self, has_slot=True))

    def got_no_slot(self, why: str, *, is_draining: bool) -> Step:
        """There will be none."""
        if self.record.standing is Standing.OVER:
            return Step(self)
        if is_draining:
            return _over(self, How.HANDED_BACK, why, Action.HAND_BACK)
        return _failed(self, why)

    def starts(self, delivery: str, secret_hash: str, port: int, listen: str = "") -> Step:
        """Its slot is ready for a sidecar, which is to ask with this token at that port, or where we listen."""
        if self.record.standing is not Standing.TAKEN or not self.has_slot:
            return _to(self, Action.RELEASE) if self.has_slot else Step(self)
        record = evolve(
            self.record,
            standing=Standing.STARTING,
            delivery=delivery,
            secret_hash=secret_hash,
            port=port,
            listen=listen,
        )
        return _written(evolve(self, record=record, is_running=True), Action.START)

    def slot_lost(self, why: str) -> Step:
        """The slot is gone, with what ran there."""
        return _bereft(evolve(self, has_slot=False, is_running=False), why)

    def sidecar_ended(self, why: str) -> Step:
        """The sidecar has ended, or could not be started."""
        return _bereft(evolve(self, is_running=False), why)

    def cannot_run(self, why: str) -> Step:
        """It cannot be run there, nor anywhere else."""
        relay = evolve(self, is_running=False)
        if self.record.standing is Standing.OVER:
            return _to(relay, *_given_back(relay))
        return _failed(relay, why)

    # --- the sidecar -------------------------------------------------------------------------------------

    def polled(self, delivery: str, secret: str, *, claims: bool) -> Step:
        """Somebody asks for the job. One that was offered to its sidecar is offered to nobody else, and never again.

        Args:
            delivery: Where they ask.
            secret: What they ask with.
            claims: Whether they say of themselves that they begin only once the job is claimed.
        """
        record = self.record
        if not (record.delivery and _equal(record.delivery, delivery) and _equal(record.secret_hash, hashed(secret))):
            return _to(self, Action.REFUSE)
        if record.standing is Standing.STARTING and self.has_payload:
            if claims:
                return _written(evolve(self, record=evolve(record, standing=Standing.OFFERED)), Action.OFFER)
            due = evolve(self, record=evolve(record, standing=Standing.AT_WORK), is_due=True)
            return _written(due, Action.CLAIM)
        if self.is_due and record.standing is Standing.AT_WORK:  # it asks again while GitLab does not answer
            return _to(self, Action.CLAIM)
        if record.standing in (Standing.TAKEN, Standing.STARTING):
            return _to(self, Action.NOTHING)
        return _to(self, Action.NOTHING, Action.END)  # the answer was lost on its way, or it has done its work

    def gives(self, delivery: str) -> Step:
        """GitLab has answered to the claim that came with a poll."""
        record = self.record
        if self.is_due and record.standing is Standing.AT_WORK and _equal(record.delivery, delivery):
            return _to(evolve(self, is_due=False), Action.OFFER)
        return _to(self, Action.NOTHING)

    def called(self, delivery: str, job: int, token: str) -> Step:
        """Somebody makes a call about the job; the first one claims it."""
        record = self.record
        is_right = _equal(record.delivery, delivery) and record.job == job and _equal(record.token_hash, hashed(token))
        if not is_right or self.is_due or record.standing not in (Standing.OFFERED, Standing.AT_WORK):
            return _to(self, Action.REFUSE)
        known = evolve(self, has_token=True)
        if record.standing is Standing.AT_WORK:
            return _to(known, Action.PASS)
        at_work = evolve(record, standing=Standing.AT_WORK)
        return _written(evolve(known, record=at_work), Action.CLAIM, Action.PASS)

    def fetches(self, delivery: str, job: int, token: str) -> Step:
        """Somebody wants what another job has left: one of those that it depends on, or itself."""
        record = self.record
        wanted = record.token_hash if job == record.job else record.dependencies.get(str(job), "")
        if not (wanted and _equal(record.delivery, delivery) and _equal(wanted, hashed(token))):
            return _to(self, Action.REFUSE)
        return self.called(delivery, record.job, token) if job == record.job else _as_dependency(self)

    # --- GitLab ------------------------------------------------------------------------------------------

    def kept(self) -> Step:
        """GitLab has said that it keeps the job for us until it is claimed."""
        if self.record.is_two_phase or self.record.standing is Standing.OVER:
            return Step(self)
        return _written(evolve(self, record=evolve(self.record, is_two_phase=True)))

    def claimed(self, *, is_ours: bool) -> Step:
        """GitLab has answered to the claim."""
        if is_ours or self.record.standing is Standing.OVER:
            return Step(self)
        return _over(self, How.REVOKED, "", Action.EXPECT_END)

    def answered(self, answer: Answer, said: Outcome | None, *, is_update: bool) -> Step:
        """GitLab has answered to a call that was passed on.

        Args:
            answer: What it says.
            said: How the job ended, if the call was about that.
            is_update: Whether the call was ``PUT jobs/:id``; 404 to another one may come from a proxy.
        """
        if self.record.standing is not Standing.AT_WORK:
            return Step(self)
        if said is not None and answer.status == 200:  # noqa: PLR2004  (HTTP's)
            return _ended(self, said)
        if answer.status == 403 and answer.job_status in _FINAL:  # noqa: PLR2004  (an earlier answer was lost)
            known = said if said is not None and said.state == answer.job_status else None
            return _ended(self, known or Outcome(is_success=answer.job_status == "success"))
        is_refused = answer.status == 403 or (is_update and answer.status in (404, 409))  # noqa: PLR2004
        if is_refused or answer.job_status in ("canceled", "failed"):
            return _over(self, How.REVOKED, "", Action.EXPECT_END)
        if answer.job_status == "canceling" and not self.record.is_canceling:
            record = evolve(self.record, is_canceling=True)
            return _written(evolve(self, record=record))
        return Step(self)

    def unwanted(self, *, is_canceling: bool) -> Step:
        """GitLab, which was told that the job is prepared, wants no more of it, or wants it to end."""
        if self.record.standing in (Standing.AT_WORK, Standing.OVER):
            return Step(self)
        after = _aftermath(self)
        if not is_canceling:
            return _over(self, How.REVOKED, "", *after)
        failed = evolve(self.record, is_success=False, failure_reason="job_canceled", is_canceling=True)
        return _over(evolve(self, record=failed), How.FAILED, "", *after, Action.CANCELED)

    # --- the operator ------------------------------------------------------------------------------------

    def interrupted(self, why: str, *, is_hasty: bool) -> Step:
        """Somebody here wants the job to end, at once or as its after_script allows."""
        match self.record.standing:
            case Standing.OVER:
                return Step(self)
            case Standing.AT_WORK if is_hasty:
                return _to(self, Action.END)
            case Standing.AT_WORK:
                return _to(self, Action.TELL, Action.EXPECT_END)
        return _failed(self, why, "runner_interrupted", *_aftermath(self))

    def left(self, *, outlives: bool) -> Step:
        """This manager ends."""
        match self.record.standing:
            case Standing.OVER:
                return _to(self, *_aftermath(self))
            case Standing.OFFERED | Standing.AT_WORK if outlives and self.has_slot:
                return _to(self, Action.DETACH)
            case Standing.AT_WORK:
                return _to(self, Action.END)
        return _over(self, How.HANDED_BACK, "the runner was stopped", *_aftermath(self), Action.HAND_BACK)

    # --- after a restart ---------------------------------------------------------------------------------

    @classmethod
    def found(cls, record: Record, *, placements: int) -> "Relay":
        """What is known at first of what an earlier manager has written down: its token, if that was kept."""
        return cls(record=record, placements=placements, has_payload=False, has_token=bool(record.token))

    def resumed(self, *, has_slot: bool, is_running: bool, why: str) -> Step:
        """Go on with what an earlier manager has written down, once it is known what became of it.

        Args:
            has_slot: Whether the slot was there to take up again.
            is_running: Whether a sidecar runs there.
            why: What became of the slot or the sidecar, if they are not there.
        """
        relay, record = evolve(self, has_slot=has_slot, is_running=is_running), self.record
        match record.standing:
            case Standing.OVER if record.how is How.FAILED or (
                record.how is How.HANDED_BACK and not record.is_two_phase
            ):  # GitLab may not have been told
                return _failed(relay, record.why, record.failure_reason, *_aftermath(relay))
            case Standing.OVER:
                return _to(relay, *_aftermath(relay))
            case Standing.OFFERED | Standing.AT_WORK if is_running:
                return _to(relay, Action.FOLLOW)
            case Standing.AT_WORK:
                return _failed(relay, why)
        return _given_up(relay, why)


def _bereft(relay: Relay, why: str) -> Step:
    back = _given_back(relay)
    match relay.record.standing:
        case Standing.OVER:
            return _to(relay, *back)
        case Standing.AT_WORK:
            return _failed(relay, why)
        case _ if not relay.has_payload:
            return _given_up(relay, why)
        case _ if relay.record.tries >= relay.placements:
            return _failed(relay, f"{relay.record.tries} sidecars or instances were lost before it could run ({why})")
    record = evolve(
        relay.record,
        standing=Standing.TAKEN,
        tries=relay.record.tries + 1,
        delivery="",
        secret_hash="",
        port=0,
        listen="",
    )
    return _written(evolve(relay, record=record), *back, Action.ACQUIRE)


def _given_back(relay: Relay) -> tuple[Action, ...]:
    return (Action.RELEASE,) if relay.has_slot else ()


def _as_dependency(relay: Relay) -> Step:
    match relay.record.standing:
        case Standing.AT_WORK if not relay.is_due:
            return _to(relay, Action.PASS)
        case Standing.OFFERED:
            at_work = evolve(relay.record, standing=Standing.AT_WORK)
            return _written(evolve(relay, record=at_work), Action.CLAIM, Action.PASS)
    return _to(relay, Action.REFUSE)


def _ended(relay: Relay, outcome: Outcome) -> Step:
    record = evolve(
        relay.record,
        is_success=outcome.is_success,
        failure_reason=outcome.failure_reason,
        exit_code=outcome.exit_code,
    )
    return _over(evolve(relay, record=record), How.REPORTED, "", Action.EXPECT_END)


def _given_up(relay: Relay, why: str) -> Step:
    """End with a job that is not claimed, and that nobody knows the description of any more."""
    if relay.record.is_two_phase:
        return _over(relay, How.HANDED_BACK, why, *_aftermath(relay))
    return _failed(relay, why, None, *_aftermath(relay))


def _aftermath(relay: Relay) -> tuple[Action, ...]:
    """What is left to do for the slot."""
    return (Action.END,) if relay.is_running else _given_back(relay)


def _failed(relay: Relay, why: str, reason: str | None = None, *actions: Action) -> Step:
    record = evolve(relay.record, is_success=False, failure_reason=reason or "runner_system_failure")
    after = actions or _aftermath(relay)
    if not relay.has_token:
        return _over(evolve(relay, record=record), How.UNREPORTED, why, *after)
    return _over(evolve(relay, record=record), How.FAILED, why, *after, Action.FAIL)


def _over(relay: Relay, how: How, why: str, *actions: Action) -> Step:
    record = evolve(relay.record, standing=Standing.OVER, how=how, why=why)
    return _written(evolve(relay, record=record), *actions)


def _to(relay: Relay, *actions: Action) -> Step:
    return _step(relay, None, actions)


def _written(relay: Relay, *actions: Action) -> Step:
    return _step(relay, relay.record, actions)


def _step(relay: Relay, record: Record | None, actions: tuple[Action, ...]) -> Step:
    if Action.RELEASE in actions or Action.DETACH in actions:
        relay = evolve(relay, has_slot=False)
    return Step(relay, record, actions)


def hashed(secret: str) -> str:
    """What is kept of a token."""
    return sha256(secret.encode(errors="replace")).hexdigest()


def _equal(known: str, given: str) -> bool:
    return bool(known) and compare_digest(known.encode(), given.encode(errors="replace"))
