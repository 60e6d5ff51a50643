"""Which pools a job of GitLab's may use, by rules over what is known of it. Pure.

The first rule that is for a job decides: its pools in order of preference, how many jobs may run by it at once, or why
such a job is refused. A job that no rule is for may use any pool. What is known of a job is what GitLab says of it when
it hands it out; nothing else is looked at, so that the same job always gets the same answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from fleeting.plugins import one_line, span
from gitlab_jobs import Job
from taskscaler_gitlab._dispatch_settings import Rule, When
from taskscaler_gitlab._patterns import covers, is_plain, matcher

TEXTS: Final = ("namespace", "project", "job", "stage", "ref", "source", "image")
"""Facts that are compared with patterns."""

_SHOWN = 60
"""Characters of a fact in an explanation."""


@frozen
class Facts:
    """What is known of a job."""

    namespace: str
    project: str
    job: str
    stage: str
    ref: str
    source: str
    image: str
    ref_type: str
    ref_protected: bool
    timeout: float
    queued: float
    variables: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, job: Job) -> "Facts":
        """Read them; of two variables with one name, the later counts."""
        info, git = job.job_info, job.git_info
        variables = {each.key: each.value for each in job.variables}
        protected = git.protected
        if protected is None:  # GitLab's variable comes first, and a job may name its own the same: all have to say so
            said = [each.value for each in job.variables if each.key == "CI_COMMIT_REF_PROTECTED"]
            protected = bool(said) and set(said) == {"true"}
        return cls(
            info.project_full_path.rpartition("/")[0],
            info.project_full_path,
            info.name,
            info.stage,
            git.ref,
            variables.get("CI_PIPELINE_SOURCE", ""),
            job.image.name,
            git.ref_type,
            protected,
            float(job.timeout),
            info.time_in_queue_seconds,
            variables,
        )


@frozen(kw_only=True)
class Decision:
    """What becomes of a job."""

    rule: str = ""
    """The name of the rule that decided; empty: none is for it."""

    why: str = ""
    """Why that rule is for it, in a few words; shows no values of variables."""

    pools: tuple[str, ...] = ()
    """Which it may use, in order of preference; empty: any."""

    refusal: str = ""
    """Why it is to fail; empty: it is not."""

    def __str__(self) -> str:
        """One sentence, without its end."""
        if not self.rule:
            return "no rule of [[dispatch]] is for it, so it may use any pool"
        because = f" ({self.why})" if self.why else ""
        if self.refusal:
            return f"the rule {self.rule!r} refuses it{because}: {self.refusal}"
        named = self.pools[0] if len(self.pools) == 1 else f"{', '.join(self.pools[:-1])} or else {self.pools[-1]}"
        return f"the rule {self.rule!r} sends it to {named}{because}"


@frozen(kw_only=True)
class Shadow:
    """A rule that no job gets to."""

    rule: str
    """Its name."""

    by: str
    """That of the one before it that is for every job that it is for."""

    def __str__(self) -> str:
        """One sentence, without its end."""
        return f"the rule {self.rule!r} never applies: {self.by!r}, which stands before it, is for all its jobs"


Test = Callable[[Facts], bool]


class Dispatch:
    """The rules, in their order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        """Take them; each has a name of its own."""
        self.rules = tuple(rules)
        self.ceilings = {rule.name: rule.at_most for rule in rules if rule.at_most}
        self._compiled = tuple((rule, tuple(_tests(rule.when))) for rule in rules)

    def decide(self, job: Job) -> Decision:
        """Find the first rule that is for a job. O(rules)."""
        return self.decide_on(Facts.of(job)) if self._compiled else Decision()

    def decide_on(self, facts: Facts) -> Decision:
        """The same, from what is known of it."""
        for rule, tests in self._compiled:
            for test in tests:
                if not test(facts):
                    break
            else:
                why = "; ".join(_reasons(rule.when, facts))
                return Decision(rule=rule.name, why=why, pools=rule.pools, refusal=rule.refuse or "")
        return Decision()

    def shadows(self) -> Sequence[Shadow]:
        """Rules that no job gets to because of a single one before them, each with the first such. O(rules²)."""
        found = []
        for place, rule in enumerate(self.rules):
            by = next((each for each in self.rules[:place] if is_part(rule.when, each.when)), None)
            if by is not None:
                found.append(Shadow(rule=rule.name, by=by.name))
        return found


def is_part(narrow: When, broad: When) -> bool:
    """Whether every job that the one is for, the other is for; where that is hard to say, it is not said."""
    texts = (_are_part(getattr(narrow, name), getattr(broad, name)) for name in TEXTS)
    variables = (_are_part(narrow.variables.get(name), wanted) for name, wanted in broad.variables.items())
    equal = (
        getattr(broad, name) is None or getattr(narrow, name) == getattr(broad, name)
        for name in ("ref_type", "ref_protected")
    )
    times = (
        _is_at_least(narrow.timeout_at_least, broad.timeout_at_least),
        broad.timeout_at_most is None
        or (narrow.timeout_at_most is not None and narrow.timeout_at_most <= broad.timeout_at_most),
        _is_at_least(narrow.queued_at_least, broad.queued_at_least),
    )
    return all(times) and all(equal) and all(texts) and all(variables)


def _are_part(narrow: Sequence[str] | None, broad: Sequence[str] | None) -> bool:
    if broad is None:
        return True
    return narrow is not None and all(each in broad or covers(broad, each) for each in narrow)


def _is_at_least(narrow: float | None, broad: float | None) -> bool:
    return broad is None or (narrow is not None and narrow >= broad)


def _tests(when: When) -> Iterator[Test]:
    """What has to hold, the cheapest first."""
    if when.ref_protected is not None:
        yield _equals("ref_protected", when.ref_protected)
    if when.ref_type is not None:
        yield _equals("ref_type", when.ref_type)
    for name, least, most in (
        ("timeout", when.timeout_at_least, when.timeout_at_most),
        ("queued", when.queued_at_least, None),
    ):
        if least is not None or most is not None:
            yield _within(name, least or 0.0, float("inf") if most is None else most)
    for name in TEXTS:
        if (patterns := getattr(when, name)) is not None:
            yield _matches(name, patterns)
    for name, patterns in when.variables.items():
        yield _variable_matches(name, patterns)


def _equals(name: str, value: object) -> Test:
    return lambda facts: getattr(facts, name) == value


def _within(name: str, least: float, most: float) -> Test:
    return lambda facts: least <= getattr(facts, name) <= most


def _matches(name: str, patterns: Sequence[str]) -> Test:
    if all(map(is_plain, patterns)):
        known = frozenset(patterns)
        return lambda facts: getattr(facts, name) in known
    match = matcher(patterns)
    return lambda facts: match(getattr(facts, name))


def _variable_matches(name: str, patterns: Sequence[str]) -> Test:
    match = matcher(patterns)
    return lambda facts: (value := facts.variables.get(name)) is not None and match(value)


def _reasons(when: When, facts: Facts) -> Iterator[str]:
    """Why a rule is for a job: what of it was looked at."""
    for name in TEXTS:
        if getattr(when, name) is not None:
            value = one_line(getattr(facts, name))
            yield f"{name} {value if len(value) <= _SHOWN else f'{value[:_SHOWN]}…'}"
    if when.ref_type is not None:
        yield f"the ref is a {when.ref_type}"
    if when.ref_protected is not None:
        yield f"the ref is {'' if facts.ref_protected else 'not '}protected"
    yield from (f"its variable {name}" for name in when.variables)
    if when.timeout_at_least is not None or when.timeout_at_most is not None:
        yield f"timeout {span(facts.timeout)}"
    if when.queued_at_least is not None:
        yield f"{span(facts.queued)} in the queue"


@define
class Ceilings:
    """How many jobs run by which rule, and who waits until there are fewer. Keys are those of leases."""

    most: Mapping[str, int] = field(factory=dict)
    """Jobs at once, by the names of rules; those that are not here have no ceiling."""

    _inside: dict[str, str] = field(factory=dict, init=False)
    """Those that count, and the rule that each counts for."""

    _waiting: dict[str, dict[str, None]] = field(factory=dict, init=False)
    """By rule: those that wait, in their order."""

    def enter(self, rule: str, key: str) -> bool:
        """Have a job run by a rule, or wait its turn; returns whether it may."""
        if key in self._inside:
            return True
        queue = self._waiting.get(rule, {})
        if rule in self.most and (self.running(rule) >= self.most[rule] or (queue and key not in queue)):
            self._waiting.setdefault(rule, {})[key] = None
            return False
        self._forget(key)
        self._inside[key] = rule
        return True

    def resume(self, rule: str, key: str) -> None:
        """Count a job that runs already, however many there are."""
        self._forget(key)
        self._inside[key] = rule

    def leave(self, key: str) -> Sequence[str]:
        """A job is over, or waits no more; returns those whose turn it is now."""
        rule = self._inside.pop(key, None)
        waited = self._forget(key)
        return self._admit(rule or waited) if rule or waited else ()

    def running(self, rule: str) -> int:
        """How many count. O(jobs)."""
        return sum(each == rule for each in self._inside.values())

    def _admit(self, rule: str) -> Sequence[str]:
        queue, admitted = self._waiting.get(rule, {}), []
        for key in [*queue]:
            if self.running(rule) >= self.most.get(rule, len(self._inside) + 1):
                break
            del queue[key]
            self._inside[key] = rule
            admitted.append(key)
        return admitted

    def _forget(self, key: str) -> str:
        """Take a job off the queues; returns the rule of the one that it was in."""
        for rule, queue in self._waiting.items():
            if key in queue:
                del queue[key]
                if not queue:
                    del self._waiting[rule]
                return rule
        return ""


def named(rules: Iterable[Rule]) -> Iterator[tuple[int, str]]:
    """The names of rules, by their places in the file; of those that have none, the place."""
    yield from ((place, rule.name or f"dispatch[{place}]") for place, rule in enumerate(rules))
