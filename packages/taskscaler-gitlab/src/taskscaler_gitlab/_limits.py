"""Why the runner asks for no job, or for no more: whose limit that is. Pure."""

from attrs import frozen

from fleeting.plugins import span


@frozen(kw_only=True)
class Facts:
    """What decides it."""

    url: str
    """The GitLab that is asked."""

    jobs: int
    """Jobs that run, or will."""

    requests: int
    """Requests for jobs that are open: each may bring one, and has a slot reserved."""

    concurrent: int
    """Jobs at once over all runners of the file."""

    limit: int
    """Jobs at once of this runner; 0: any number."""

    request_limit: int
    """Requests that may be open at once for now."""

    waits_for_slot: bool = False
    """Whether the fleet has no slot to reserve for the next request."""

    is_draining: bool = False
    """Whether no more jobs are wanted."""

    trouble: str = ""
    """What was wrong with GitLab's last answer; empty: nothing."""

    silent_for: float = 0.0
    """Seconds for which GitLab is not asked, because it refused the token too often."""

    @property
    def most(self) -> int:
        """Jobs that there may be at once."""
        return min(self.concurrent, self.limit or self.concurrent)

    @property
    def has_room(self) -> bool:
        """Whether one more request may be made, as far as the numbers of jobs go."""
        return not self.is_draining and self.jobs + self.requests < self.most


def describe(facts: Facts) -> str:
    """What the runner does, and if it does not ask for jobs, whose limit that is; one sentence."""
    return f"{facts.url}: {_jobs(facts)}; {_asking(facts)}"


def _jobs(facts: Facts) -> str:
    return f"{facts.jobs} of at most {facts.most} jobs"


def _asking(facts: Facts) -> str:
    if facts.is_draining:
        return "no more are asked for, because the daemon is ending"
    if facts.silent_for > 0:
        again = f"it is asked again in {span(facts.silent_for)}"
        return f"GitLab refused the runner's token three times in a row, {again}; check the token"
    if not facts.has_room and facts.requests == 0:
        return f"no more are asked for, because of {_whose(facts)}"
    if facts.trouble:
        return f"GitLab does not answer as it should, and requests are repeated ({facts.trouble})"
    if facts.waits_for_slot:
        return "no more are asked for until the fleet has a slot to reserve; `taskscaler explain` says why it has none"
    return _requests(facts)


def _requests(facts: Facts) -> str:
    if not facts.requests:
        return "the next request is due in a moment"
    several = f"{facts.requests} requests are open, each with a slot reserved"
    held = "a request is open, with a slot reserved" if facts.requests == 1 else several
    return f"{held} (at most {facts.request_limit} at once for now)"


def _whose(facts: Facts) -> str:
    if facts.limit and facts.limit <= facts.concurrent:
        return f"limit = {facts.limit} in [[runners]]"
    return f"concurrent = {facts.concurrent}"
