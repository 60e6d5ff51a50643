"""Why the runner asks for no job, or for no more: whose limit that is. Pure."""

from attrs import frozen

from fleeting.plugins import span


@frozen(kw_only=True)
class CellFacts:
    """How it stands with one of several GitLabs."""

    called: str
    """What it is called, with its address."""

    jobs: int
    """Jobs of it that run, or will."""

    requests: int
    """Requests to it that are open."""

    weight: float = 1.0
    """Its share of slots, next to others."""

    request_limit: int = 1
    """Requests that may be open to it at once for now."""

    trouble: str = ""
    """What was wrong with its last answer; empty: nothing."""

    out_for: float | None = None
    """Seconds until it is asked again whether it answers; None: it is not left out."""

    silent_for: float = 0.0
    """Seconds for which it is not asked, because it refused the token too often."""


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

    is_paused: bool = False
    """Whether no more jobs are wanted until an operator wants them again."""

    trouble: str = ""
    """What was wrong with GitLab's last answer; empty: nothing."""

    silent_for: float = 0.0
    """Seconds for which GitLab is not asked, because it refused the token too often."""

    cells: tuple[CellFacts, ...] = ()
    """If it asks several GitLabs, each of them."""

    reserved: int = 0
    """Slots that are reserved for what all of them may answer."""

    surplus: int = 0
    """Jobs of theirs that came without a slot, and wait for one."""

    @property
    def most(self) -> int:
        """Jobs that there may be at once."""
        return min(self.concurrent, self.limit or self.concurrent)

    @property
    def has_room(self) -> bool:
        """Whether one more request may be made, as far as the numbers of jobs go."""
        return not self.is_draining and not self.is_paused and self.jobs + self.requests < self.most


def describe(facts: Facts) -> str:
    """What the runner does, and if it does not ask for jobs, whose limit that is; one sentence."""
    if not facts.cells:
        return f"{facts.url}: {_jobs(facts)}; {_asking(facts)}"
    held = _none_wanted(facts) or (_NO_SLOT if facts.waits_for_slot else _reserved(facts))
    waiting = (
        (f"{_counted(facts.surplus, 'job')} came without a slot, and the next is theirs",) if facts.surplus else ()
    )
    cells = (_of_cell(each) for each in facts.cells)
    return "; ".join((f"{len(facts.cells)} cells: {_jobs(facts)}", held, *waiting, *cells))


def _reserved(facts: Facts) -> str:
    if not facts.reserved:
        return "no slot is reserved at the moment"
    slots = "a slot is" if facts.reserved == 1 else f"{facts.reserved} slots are"
    return f"{slots} reserved for what they answer first"


def _of_cell(cell: CellFacts) -> str:
    """What one of them does."""
    share = f" of weight {cell.weight:g}" if cell.weight != 1 else ""
    return f"{cell.called}{share}: {_counted(cell.jobs, 'job')}, {_asked(cell)}"


def _asked(cell: CellFacts) -> str:
    if cell.silent_for > 0:
        return f"refused the runner's token three times in a row, is asked again in {span(cell.silent_for)}"
    if cell.out_for is not None:
        return f"left out, because it does not answer as it should ({cell.trouble}); probed every few seconds"
    if cell.trouble:
        return f"the last request failed ({cell.trouble})"
    return f"{_counted(cell.requests, 'request')} open" if cell.requests else "no request open"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _jobs(facts: Facts) -> str:
    return f"{facts.jobs} of at most {facts.most} jobs"


_NO_SLOT = "no more are asked for until the fleet has a slot to reserve; `taskscaler explain` says why it has none"


def _none_wanted(facts: Facts) -> str:
    """Whose limit it is that there are no more jobs, whoever has some; empty: nobody's."""
    if facts.is_draining:
        return "no more are asked for, because the daemon is ending"
    if facts.is_paused:
        open_ = f"; {_counted(facts.requests, 'request')} may still bring one" if facts.requests else ""
        return f"no more are asked for, because the runner is paused{open_}; `taskscaler pause --undo` ends that"
    return "" if facts.has_room or facts.requests else f"no more are asked for, because of {_whose(facts)}"


def _asking(facts: Facts) -> str:
    if facts.is_draining or facts.is_paused:
        return _none_wanted(facts)
    if facts.silent_for > 0:
        again = f"it is asked again in {span(facts.silent_for)}"
        return f"GitLab refused the runner's token three times in a row, {again}; check the token"
    if not_wanted := _none_wanted(facts):
        return not_wanted
    if facts.trouble:
        return f"GitLab does not answer as it should, and requests are repeated ({facts.trouble})"
    if facts.waits_for_slot:
        return _NO_SLOT
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
