"""A job, its sidecars, its GitLab and its managers, in any order: whatever is lost, killed, repeated or forged.

The world here does what it is told, late or never, and managers are killed between any two things. Whatever happens,
no two sidecars have a job at a time, nobody but its sidecar gets it, each slot is given back or left, and each job
comes to an end that GitLab knows, will find out by itself, or that a person is told of.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gitlab_jobs import Answer, Job, Outcome
from taskscaler_gitlab.relay._deliveries import decoded, encoded, record_of
from taskscaler_gitlab.relay._relay import Action, How, Record, Relay, Standing, Step, hashed

TOKEN = "glcbt-job"
ANSWERS = st.builds(
    Answer,
    status=st.sampled_from([None, 200, 202, 400, 403, 404, 409, 412, 416, 500, 502]),
    job_status=st.sampled_from([None, "running", "pending", "canceling", "canceled", "success", "failed"]),
)
BACK = st.sampled_from([0, 0, 0, 1, 2])
"""How many tries ago somebody was started who comes: mostly it is the sidecar of now."""

OUTCOMES = st.sampled_from([None, Outcome(is_success=True), Outcome(is_success=False, failure_reason="script_failure")])


class RelayMachine(RuleBasedStateMachine):
    """One job."""

    def __init__(self) -> None:
        """Nothing has happened yet."""
        super().__init__()
        self.number = 0
        self.sidecars: set[str] = set()
        """Deliveries whose sidecars run."""

        self.holders: list[str] = []
        """Deliveries that the job was given to."""

        self.slots = 0
        """Slots that this manager holds."""

        self.is_left = False
        """Whether a slot waits for the next manager."""

        self.is_up = True
        self.claims = 0
        self.is_kept = False
        self.knows_token = True
        """Whether this manager can say anything to GitLab: it was handed the job, kept its token, or was called."""

        self.is_refused = False
        """Whether GitLab has ever said that it wants no more of the job."""

        self.told: list[Action] = []
        self.waits = True
        """Whether it waits for a slot."""

    @initialize(keeps=st.booleans(), placements=st.integers(1, 3), far=st.integers(0, 6), claims=st.booleans())
    def begin(self, keeps: bool, placements: int, far: int, claims: bool) -> None:  # noqa: FBT001  (hypothesis calls it)
        """It is handed out, and noted down, and has come so far when the first thing goes wrong."""
        job = Job(id=7, token=TOKEN)
        self.relay = Relay(
            record=record_of(job, key="k", prefix="o", now=0.0, keeps_token=keeps), placements=placements
        )
        self.disk: Record = self.relay.record
        self.keeps = keeps
        for _ in range(far):
            self.go_on(claims=claims)

    @precondition(lambda self: self.is_up)
    @rule(claims=st.booleans())
    def go_on(self, claims: bool) -> None:  # noqa: FBT001  (hypothesis calls it)
        """The next thing that has to happen for it to come to its end happens, and nobody dies."""
        match self.relay.record.standing:
            case Standing.TAKEN | Standing.OVER if self.waits:
                self.slot(is_there=True, is_draining=False, dies=False)
            case Standing.TAKEN if self.slots:
                self.start(dies=False)
            case Standing.STARTING:
                self.poll(back=0, other=0, claims=claims, dies=False)
            case Standing.AT_WORK if self.relay.is_due:
                self.give(back=0, dies=False)
            case Standing.OFFERED:
                self.call(back=0, token=TOKEN, number=7, fetches=False, dies=False)

    def do(self, step: Step, *, is_killed: bool = False) -> tuple[Action, ...]:
        """Write, then act; or be killed in between."""
        if step.record is not None:
            self.disk = decoded(encoded(step.record))
        assert step.record is not None or step.relay.record == self.relay.record
        if is_killed:
            self.kill()
            return ()
        self.relay = step.relay
        for action in step.actions:
            self.act(action)
        return step.actions

    def act(self, action: Action) -> None:
        """What the runtime does."""
        match action:
            case Action.ACQUIRE:
                assert not self.slots, "it waits for another slot, and has one"
                self.waits = True
            case Action.START:
                assert not self.sidecars, "two sidecars at a time"
                assert self.slots, "a sidecar has no slot"
                assert self.disk.standing is Standing.STARTING
                assert self.disk.delivery == self.relay.record.delivery, "nobody could find it after a restart"
                self.sidecars.add(self.relay.record.delivery)
            case Action.OFFER:
                assert self.relay.record.delivery in self.sidecars, "the job went to somebody else"
                assert self.disk.standing in (Standing.OFFERED, Standing.AT_WORK), "it may run, and nobody knows"
                self.holders.append(self.relay.record.delivery)
            case Action.RELEASE:
                assert self.slots == 1
                assert not self.sidecars, "a slot is given back in which a sidecar runs"
                self.slots = 0
            case Action.DETACH:
                self.slots, self.is_left = 0, True
                self.is_up = False
            case Action.CLAIM:
                self.claims += 1
            case Action.FAIL | Action.CANCELED | Action.HAND_BACK:
                assert self.knows_token or action is Action.HAND_BACK, "GitLab is told without a token"
                assert self.disk.standing is Standing.OVER, "GitLab is told, and a restart would not know"
                self.told.append(action)

    def kill(self) -> None:
        """Be the end of the manager: its leases wait for the next one."""
        self.is_up = False
        self.is_left, self.slots = self.is_left or self.slots == 1, 0

    @property
    def is_over(self) -> bool:
        """Whether it has come to an end."""
        return self.relay.record.standing is Standing.OVER

    @precondition(lambda self: self.is_up and self.waits)
    @rule(is_there=st.booleans(), is_draining=st.booleans(), dies=st.booleans())
    def slot(self, is_there: bool, is_draining: bool, dies: bool) -> None:  # noqa: FBT001
        """A slot is there, or there will be none."""
        self.waits = False
        if is_there:
            assert not self.slots, "it waits for a slot, and has one"
            self.slots = 1
            self.do(self.relay.got_slot(), is_killed=dies)
        else:
            self.do(self.relay.got_no_slot("none", is_draining=is_draining), is_killed=dies)

    @precondition(lambda self: self.is_up and self.slots and self.relay.record.standing is Standing.TAKEN)
    @rule(dies=st.booleans())
    def start(self, dies: bool) -> None:  # noqa: FBT001
        """The slot is ready for a sidecar."""
        self.number += 1
        name = f"d{self.number}"
        step = self.relay.starts(name, hashed(f"secret-{name}"), 4000)
        self.do(step, is_killed=dies)

    @precondition(lambda self: self.is_up and self.relay.has_payload)
    @rule(dies=st.booleans())
    def kept(self, dies: bool) -> None:  # noqa: FBT001
        """GitLab says that it keeps the job until it is claimed."""
        self.is_kept = True
        self.do(self.relay.kept(), is_killed=dies)

    @precondition(lambda self: self.is_up)
    @rule(back=BACK, other=BACK, claims=st.booleans(), dies=st.booleans())
    def poll(self, back: int, other: int, claims: bool, dies: bool) -> None:  # noqa: FBT001
        """Somebody asks for the job, who begins with it at once or only once it is claimed."""
        who, secret = self.number - back, self.number - other
        given = list(self.holders)
        step = self.relay.polled(f"d{who}", f"secret-d{secret}", claims=claims)
        assert claims or Action.OFFER not in step.actions, "it begins, and GitLab has not heard of it"
        self.do(step, is_killed=dies)
        if who != secret or f"d{who}" not in self.sidecars:
            assert self.holders == given, "the job went to somebody else"

    @precondition(lambda self: self.is_up)
    @rule(back=BACK, dies=st.booleans())
    def give(self, back: int, dies: bool) -> None:  # noqa: FBT001
        """GitLab has answered to the claim that somebody's poll waits for."""
        who = self.number - back
        given = list(self.holders)
        step = self.relay.gives(f"d{who}")
        if Action.OFFER in step.actions:
            assert self.disk.standing is Standing.AT_WORK
            assert self.claims
        self.do(step, is_killed=dies)
        assert self.holders in (given, [*given, f"d{who}"]), "the job went to somebody else"

    @precondition(lambda self: self.is_up)
    @rule(
        back=BACK,
        token=st.sampled_from([TOKEN, TOKEN, "glcbt-other", ""]),
        number=st.sampled_from([7, 7, 8]),
        fetches=st.booleans(),
        dies=st.booleans(),
    )
    def call(self, back: int, token: str, number: int, fetches: bool, dies: bool) -> None:  # noqa: FBT001
        """Somebody calls about the job."""
        who = self.number - back
        relay = self.relay
        step = (relay.fetches if fetches else relay.called)(f"d{who}", number, token)
        if Action.PASS in step.actions:
            assert (token, number) == (TOKEN, 7)
            assert f"d{who}" == relay.record.delivery
            assert f"d{who}" in self.holders or not relay.has_payload
            self.knows_token = True
        self.do(step, is_killed=dies)

    @precondition(lambda self: self.is_up)
    @rule(answer=ANSWERS, said=OUTCOMES, is_update=st.booleans(), dies=st.booleans())
    def answer(self, answer: Answer, said: Outcome | None, is_update: bool, dies: bool) -> None:  # noqa: FBT001
        """GitLab answers to something that was passed on."""
        self.is_refused |= answer.status in (403, 404, 409) or answer.job_status in ("canceled", "failed")
        self.do(self.relay.answered(answer, said, is_update=is_update), is_killed=dies)

    @precondition(lambda self: self.is_up)
    @rule(is_ours=st.booleans())
    def claimed(self, is_ours: bool) -> None:  # noqa: FBT001
        """GitLab answers to the claim."""
        if self.relay.record.standing is Standing.AT_WORK:
            self.is_refused |= not is_ours
            self.do(self.relay.claimed(is_ours=is_ours))

    @precondition(lambda self: self.is_up and self.sidecars and self.slots)
    @rule(dies=st.booleans())
    def sidecar_ends(self, dies: bool) -> None:  # noqa: FBT001
        """A sidecar ends, by itself or because it was ended."""
        self.sidecars.clear()
        self.do(self.relay.sidecar_ended("ended"), is_killed=dies)

    @precondition(lambda self: self.is_up and self.slots)
    @rule(dies=st.booleans())
    def slot_is_lost(self, dies: bool) -> None:  # noqa: FBT001
        """The instance vanishes."""
        self.sidecars.clear()
        self.slots = 0
        self.do(self.relay.slot_lost("vanished"), is_killed=dies)

    @precondition(lambda self: self.is_up and self.slots and not self.sidecars)
    @rule()
    def cannot_run(self) -> None:
        """The program is not there."""
        self.do(self.relay.cannot_run("no gitlab-runner"))

    @precondition(lambda self: self.is_up and self.relay.has_payload)
    @rule(is_canceling=st.booleans())
    def unwanted(self, is_canceling: bool) -> None:  # noqa: FBT001
        """GitLab wants no more of it."""
        self.is_refused = True
        self.do(self.relay.unwanted(is_canceling=is_canceling))

    @precondition(lambda self: self.is_up)
    @rule(is_hasty=st.booleans())
    def interrupted(self, is_hasty: bool) -> None:  # noqa: FBT001
        """Somebody here wants no more of it."""
        self.do(self.relay.interrupted("cancelled here", is_hasty=is_hasty))

    @precondition(lambda self: self.is_up)
    @rule(outlives=st.booleans())
    def leave(self, outlives: bool) -> None:  # noqa: FBT001
        """The manager ends in peace."""
        had, ran, standing = self.slots, bool(self.sidecars), self.relay.record.standing
        actions = self.do(self.relay.left(outlives=outlives))
        may_run = had and outlives and standing in (Standing.OFFERED, Standing.AT_WORK)
        assert self.is_left or not may_run, "what may run is not left to the next manager"
        if not self.is_left:
            assert Action.END in actions or not ran, "a sidecar is neither ended nor left"
            assert {Action.END, Action.RELEASE} & {*actions} or not had, "a slot is neither given back nor left"
            self.sidecars.clear()  # it ends what it does not leave
            self.slots = 0
            self.is_up = False

    @precondition(lambda self: not self.is_up)
    @rule(survives=st.booleans(), instance=st.booleans(), is_called=st.booleans())
    def restart(self, survives: bool, instance: bool, is_called: bool) -> None:  # noqa: FBT001
        """The next manager looks at what there is."""
        self.is_up, self.waits = True, False
        has_slot = self.is_left and instance
        if not (has_slot and survives):
            self.sidecars.clear()
        self.slots, self.is_left = int(has_slot), False
        is_running = bool(self.sidecars)
        self.relay = Relay.found(self.disk, placements=self.relay.placements)  # what is not on disk is not known
        self.knows_token = self.keeps
        if is_called:  # before anybody has looked
            self.knows_token |= Action.PASS in self.do(self.relay.called(self.disk.delivery, 7, TOKEN))
        may_run = is_running and self.relay.record.standing in (Standing.OFFERED, Standing.AT_WORK)
        actions = self.do(self.relay.resumed(has_slot=has_slot, is_running=is_running, why="lost"))
        assert (Action.FOLLOW in actions) is may_run

    @invariant()
    def nobody_else_has_the_job(self) -> None:
        """Each delivery was given it at most once, and a later one only after the earlier had ended."""
        assert len(self.holders) == len(set(self.holders))
        assert len(self.sidecars) <= 1
        if hasattr(self, "relay") and (here := self.relay.record.delivery) in self.holders:
            again = [self.relay.polled(here, f"secret-{here}", claims=claims) for claims in (True, False)]
            assert not any(Action.OFFER in step.actions for step in (*again, self.relay.gives(here)))

    @invariant()
    def everybody_else_is_refused(self) -> None:
        """Whatever is right of what they bring, if one thing is not."""
        if not hasattr(self, "relay"):
            return
        relay, here = self.relay, self.relay.record.delivery or "d1"
        secret = f"secret-{here}"
        steps = [relay.polled(where, with_, claims=True) for where, with_ in (("d?", secret), (here, "s?"), ("", ""))]
        steps += [relay.called(*call) for call in (("d?", 7, TOKEN), (here, 8, TOKEN), (here, 7, "t?"), ("", 7, TOKEN))]
        steps += [relay.fetches(*call) for call in (("d?", 7, TOKEN), (here, 8, TOKEN), (here, 7, "t?"))]
        assert all(step == Step(relay, None, (Action.REFUSE,)) for step in steps)
        assert relay.gives("d?").actions == (Action.NOTHING,)

    @invariant()
    def nothing_is_placed_after_it_was_claimed(self) -> None:
        """What may have run is never run again silently."""
        if self.claims and hasattr(self, "relay"):
            assert self.relay.record.standing in (Standing.AT_WORK, Standing.OVER) or not self.is_up

    @invariant()
    def an_end_is_one(self) -> None:
        """What is over has one reason, and GitLab knows it, finds it out, or a person is told."""
        if not hasattr(self, "relay") or not self.is_up or not self.is_over:
            return
        how = self.relay.record.how
        assert how is not None
        if how is How.FAILED:
            assert Action.FAIL in self.told or Action.CANCELED in self.told
        if how is How.HANDED_BACK and Action.HAND_BACK not in self.told:
            assert self.is_kept, "it is left to lapse, and GitLab has not said that it would"
        if how is How.REPORTED:
            assert self.relay.record.outcome is not None
        if how is How.REVOKED:
            assert self.is_refused, "it is let go, and GitLab waits for it"
        if how is How.UNREPORTED:
            assert not self.knows_token, "GitLab could have been told"

    @invariant()
    def a_slot_is_held_given_back_or_left(self) -> None:
        """What this manager believes it has, it has."""
        if hasattr(self, "relay") and self.is_up:
            assert self.relay.has_slot == bool(self.slots)
            assert bool(self.sidecars) <= self.relay.is_running

    def teardown(self) -> None:
        """However it stands: once the sidecar ends, nothing is left and the job is over, or waits for its slot."""
        if not hasattr(self, "relay"):
            return
        if not self.is_up:
            self.restart(survives=True, instance=True, is_called=False)
        if self.sidecars and self.slots:
            self.sidecar_ends(dies=False)
        if self.relay.record.standing is Standing.TAKEN and self.slots:
            self.cannot_run()
        if self.waits and not self.is_over:
            self.slot(is_there=False, is_draining=True, dies=False)
        assert self.is_over
        assert not self.slots


TestRelay = RelayMachine.TestCase
TestRelay.settings = settings(deadline=None, stateful_step_count=40)
