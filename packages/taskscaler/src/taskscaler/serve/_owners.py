"""Who brings jobs to a daemon's fleet beside its clients and its batches, such as a runner that asks a GitLab for them.

The daemon begins such an owner once the fleet is there, drains it with everything else, and has it leave its jobs when
it ends. Each of its jobs stands among the batches, as one with a single job: the commands for these are for it, too.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import anyio
from attrs import frozen

from fleeting import Clock
from fleeting.plugins import one_line
from taskscaler._errors import DaemonRefused
from taskscaler._scaler import Taskscaler
from taskscaler._wording import counted
from taskscaler.batch._select import select_one

SETTLE_TIMEOUT = 30.0
"""Seconds after the last lease has ended within which jobs should be reported."""

log = logging.getLogger("taskscaler.serve")


class OwnedJob(Protocol):
    """One job, as clients see it."""

    @property
    def id(self) -> str:
        """What it is asked for by: a word, a hyphen and a number, such as ``gitlab-17``."""
        ...

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def log(self) -> Path | None:
        """Where what it prints is kept; None: nowhere, not any more."""
        ...

    @property
    def over(self) -> bool:
        """Whether nothing more comes into its log."""
        ...

    @property
    def left(self) -> bool:
        """Whether it is over here only: this daemon is ending, and the next one goes on with it."""
        ...

    def as_data(self) -> Mapping[str, object]:
        """Describe it as a batch: the keys are those of the answer to ``batches``."""
        ...

    def record(self) -> Mapping[str, object]:
        """Describe it as a job: the keys are those of a job in the answer to ``jobs``."""
        ...

    async def wait(self) -> None:
        """Wait until it is over; one that is left is not."""
        ...

    def cancel(self) -> None:
        """End it; nothing happens if it is over."""
        ...


@frozen(kw_only=True)
class Intake:
    """How it stands with what somebody's jobs come from."""

    jobs: int
    """How many are not over."""

    requests: int
    """Requests for more that are under way: each may bring one."""

    paused: bool
    """Whether no more are asked for, until that is undone."""

    answered: bool
    """Whether everybody who is asked for jobs has answered since the asking began."""


@frozen(kw_only=True)
class Canary:
    """What came of a job that was run to see whether jobs would run."""

    passed: bool
    says: str
    """Where it ran and how long it took, or why it failed; one sentence without its end."""

    log: tuple[str, ...] = ()
    """The last lines of its log, if it failed."""


class JobOwner(Protocol):
    """Somebody with jobs of their own."""

    @property
    def name(self) -> str:
        """Whose jobs they are, such as ``gitlab``: their ids begin so."""
        ...

    async def take_up(self, scaler: Taskscaler, clock: Clock) -> int:
        """Look for what an earlier daemon has left, before anybody is answered; returns how many jobs that is.

        Raises:
            OSError: Its directory cannot be used.
        """
        ...

    async def run(self) -> None:
        """Bring jobs and see them to their ends, until all are left after `leave`."""
        ...

    async def pause(self) -> None:
        """Ask for no more jobs, and not after a restart either, until `unpause`; those that are there go on.

        A request that is under way is waited for: it may bring a job. Nothing happens if it is paused.

        Raises:
            JournalError: That cannot be written down; nothing has changed.
        """
        ...

    async def unpause(self) -> None:
        """Ask for jobs again. Nothing happens if it is not paused. Raises as `pause`."""
        ...

    @property
    def intake(self) -> Intake:
        """How it stands with what its jobs come from."""
        ...

    async def fly_canary(self) -> Canary:
        """Run a job of its own as all others run, paused or not.

        Raises:
            NoCapacity: It takes no more jobs, because the daemon is ending.
            JournalError: There is no place for what the job needs here.
        """
        ...

    def drain(self, *, for_good: bool = False) -> None:
        """Bring no more jobs; those that are there go on. It may be called again.

        Args:
            for_good: Whether nobody resumes later what has no slot yet: it is to be handed back, so that somebody else
                runs it. Otherwise it waits for the next daemon.
        """
        ...

    async def settle(self) -> None:
        """Wait until every job that ran has been reported to whoever wants to know its end."""
        ...

    async def leave(self) -> None:
        """Leave the jobs that run to the next daemon, as far as that can be; wait until everything is written."""
        ...

    @property
    def jobs(self) -> Sequence[OwnedJob]:
        """Those that are known, oldest first."""
        ...

    @property
    def running(self) -> int:
        """How many jobs are not over."""
        ...

    def status(self) -> str:
        """What it does, in one sentence: whether it asks for jobs, and if not, whose limit that is."""
        ...

    def key_of(self, job: str) -> str | None:
        """Under which key a job waits for its slot, or has it; None: there is no such job that is not over."""
        ...

    def explain(self, job: str) -> Sequence[str]:
        """Where a job stands, a sentence each; none: there is no such job."""
        ...

    async def reload(self) -> Sequence[str]:
        """Read its settings again; returns what takes effect only after a restart.

        Raises:
            ConfigError: They are wrong; nothing has changed.
            OSError: They cannot be read.
        """
        ...


class Owners:
    """All of them that a daemon has."""

    def __init__(self, owners: Sequence[JobOwner], say: Callable[[str], object]) -> None:
        """Take them; nothing is asked yet."""
        self._owners = owners
        self._say = say

    async def take_up(self, scaler: Taskscaler, clock: Clock) -> None:
        """See `JobOwner.take_up`; says what is resumed."""
        for owner in self._owners:
            if left := await owner.take_up(scaler, clock):
                self._say(f"resuming {counted(left, 'job')} of {owner.name}")

    async def run(self) -> None:
        """Run all of them; one that fails ends nothing but itself."""
        async with anyio.create_task_group() as tasks:
            for owner in self._owners:
                tasks.start_soon(self._run, owner)

    async def _run(self, owner: JobOwner) -> None:
        try:
            await owner.run()
        except Exception as error:
            log.exception("owner_failed")
            self._say(f"warning: no more jobs come from one of their owners: {one_line(str(error))}")

    async def pause(self) -> None:
        """See `JobOwner.pause`.

        Raises:
            DaemonRefused: There are none.
        """
        for owner in self._some("pause"):
            await owner.pause()

    async def unpause(self) -> None:
        """See `JobOwner.unpause`; raises as `pause`."""
        for owner in self._some("unpause"):
            await owner.unpause()

    @property
    def intake(self) -> Intake | None:
        """How it stands with all of them; None: there are none."""
        if not self._owners:
            return None
        each = [owner.intake for owner in self._owners]
        return Intake(
            jobs=sum(one.jobs for one in each),
            requests=sum(one.requests for one in each),
            paused=all(one.paused for one in each),
            answered=all(one.answered for one in each),
        )

    async def fly_canary(self) -> Canary:
        """See `JobOwner.fly_canary`; the first that fails is the last. Raises as that and `pause`."""
        flown: list[Canary] = []
        for owner in self._some("try out"):
            flown.append(await owner.fly_canary())
            if not flown[-1].passed:
                return flown[-1]
        return Canary(passed=True, says="; ".join(each.says for each in flown))

    def _some(self, what: str) -> Sequence[JobOwner]:
        if not self._owners:
            why = f"this daemon gets no jobs from elsewhere, so there is nothing to {what}"
            raise DaemonRefused(f"{why}; `taskscaler-gitlab run` does", status=409)
        return self._owners

    def drain(self, *, for_good: bool = False) -> None:
        """See `JobOwner.drain`."""
        for owner in self._owners:
            owner.drain(for_good=for_good)

    async def settle(self) -> None:
        """See `JobOwner.settle`; what takes too long is left to the next daemon."""
        with anyio.move_on_after(SETTLE_TIMEOUT):
            async with anyio.create_task_group() as settling:
                for owner in self._owners:
                    settling.start_soon(owner.settle)

    async def leave(self) -> None:
        """See `JobOwner.leave`."""
        self.drain()
        async with anyio.create_task_group() as leaving:
            for owner in self._owners:
                leaving.start_soon(owner.leave)

    @property
    def jobs(self) -> Sequence[OwnedJob]:
        """Of all of them."""
        return [job for owner in self._owners for job in owner.jobs]

    @property
    def running(self) -> list[str]:
        """Count the jobs that are not over, for each of them that has any."""
        return [f"{counted(owner.running, 'job')} of {owner.name}" for owner in self._owners if owner.running]

    def find(self, id_: str) -> OwnedJob | None:
        """Find a job; of several with one id, such as one that was handed out again, the last."""
        return next((job for job in reversed(self.jobs) if job.id == id_), None)

    def status(self) -> list[str]:
        """What each of them does."""
        return [owner.status() for owner in self._owners]

    def key_of(self, job: str) -> str | None:
        """Under which key a job is known to the scaler; None: it is not."""
        return next((key for owner in self._owners if (key := owner.key_of(job)) is not None), None)

    def explain(self, job: str) -> list[str]:
        """Where a job stands; none: there is no such job."""
        return [sentence for owner in self._owners for sentence in owner.explain(job)]

    async def reload(self) -> list[str]:
        """Read all settings again. Raises as `JobOwner.reload`."""
        return [each for owner in self._owners for each in await owner.reload()]


def log_of(job: OwnedJob, wanted: str) -> Path:
    """Where a job's log is kept.

    Raises:
        WrongArguments: Another job is meant.
        DaemonRefused: It is not kept.
    """
    if wanted:
        select_one([job.name], wanted)
    if job.log is None:
        raise DaemonRefused(f"the log of {job.id} is not kept here any more; whose job it was has it", status=404)
    return job.log
