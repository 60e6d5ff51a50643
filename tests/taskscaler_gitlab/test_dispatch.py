"""Rules over what is known of jobs: the first that is for a job decides, and one that never does is reported."""

import re
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields_dict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleeting import ConfigError
from gitlab_jobs import GitInfo, Job, JobInfo, RunnerInfo, Variable
from taskscaler_gitlab import read_config
from taskscaler_gitlab._dispatch import TEXTS, Ceilings, Decision, Dispatch, Facts
from taskscaler_gitlab._dispatch_settings import Rule, When
from taskscaler_gitlab._patterns import LONGEST_TEXT, covers, matcher, tokens_of, walker
from tests.strategies import QUICK

TEXT = st.text("ab/", max_size=4)
PATTERN = st.lists(st.sampled_from(["a", "b", "/", "*", "**", "?"]), min_size=1, max_size=4).map("".join)
PATTERNS = st.lists(PATTERN, min_size=1, max_size=3).map(tuple)
SECONDS = st.sampled_from([0.0, 60.0, 3600.0])


def matches(pattern: str, text: str) -> bool:
    """What a pattern means, one character after the other."""
    if not pattern:
        return not text
    if pattern.startswith("**"):
        return any(matches(pattern[2:], text[cut:]) for cut in range(len(text) + 1))
    if pattern.startswith("*"):
        upto = (text + "/").index("/")
        return any(matches(pattern[1:], text[cut:]) for cut in range(upto + 1))
    fits = bool(text) and (text[0] != "/" if pattern[0] == "?" else text[0] == pattern[0])
    return fits and matches(pattern[1:], text[1:])


@st.composite
def whens(draw: st.DrawFn) -> When:
    """Any conditions."""
    names = draw(st.sets(st.sampled_from(TEXTS), max_size=2))
    least, most = sorted(draw(st.tuples(SECONDS, SECONDS)))
    return When(
        **{name: draw(PATTERNS) for name in names},
        ref_type=draw(st.sampled_from([None, None, "branch", "tag"])),
        ref_protected=draw(st.sampled_from([None, None, True, False])),
        variables=draw(st.dictionaries(st.sampled_from("XY"), PATTERNS, max_size=1)),
        timeout_at_least=draw(st.sampled_from([None, least])),
        timeout_at_most=draw(st.sampled_from([None, most])),
        queued_at_least=draw(st.sampled_from([None, None, 60.0])),
    )


@st.composite
def rule_lists(draw: st.DrawFn) -> list[Rule]:
    """Several of them, each with a name."""
    number = draw(st.integers(0, 5))
    refusals = [draw(st.sampled_from([None, None, "not here"])) for _ in range(number)]
    return [
        Rule(name=f"r{place}", when=draw(whens()), pools=() if refusal else ("p",), refuse=refusal)
        for place, refusal in enumerate(refusals)
    ]


facts = st.builds(
    Facts,
    **dict.fromkeys(TEXTS, TEXT),
    ref_type=st.sampled_from(["branch", "tag", ""]),
    ref_protected=st.booleans(),
    timeout=SECONDS,
    queued=SECONDS,
    variables=st.dictionaries(st.sampled_from("XY"), TEXT),
)


def is_for(when: When, known: Facts) -> bool:
    """The rules' meaning, plain and slow."""

    def fits(patterns: Sequence[str] | None, text: str | None) -> bool:
        return patterns is None or (text is not None and any(matches(each, text) for each in patterns))

    return (
        all(fits(getattr(when, name), getattr(known, name)) for name in TEXTS)
        and all(fits(patterns, known.variables.get(name)) for name, patterns in when.variables.items())
        and when.ref_type in (None, known.ref_type)
        and when.ref_protected in (None, known.ref_protected)
        and (when.timeout_at_least is None or known.timeout >= when.timeout_at_least)
        and (when.timeout_at_most is None or known.timeout <= when.timeout_at_most)
        and (when.queued_at_least is None or known.queued >= when.queued_at_least)
    )


@given(rule_lists(), facts)
def test_the_first_rule_that_is_for_a_job_decides(rules: list[Rule], known: Facts) -> None:
    """And nothing but the rules and the job does."""
    decision = Dispatch(rules).decide_on(known)
    first = next((each for each in rules if is_for(each.when, known)), None)
    assert decision.rule == (first.name if first else "")
    assert decision.pools == (first.pools if first else ())
    assert decision.refusal == ((first.refuse or "") if first else "")
    assert Dispatch(rules).decide_on(known) == decision


@given(rule_lists(), facts)
def test_a_shadowed_rule_never_decides(rules: list[Rule], known: Facts) -> None:
    """Whatever the job."""
    dispatch = Dispatch(rules)
    assert dispatch.decide_on(known).rule not in {shadow.rule for shadow in dispatch.shadows()}


@given(whens(), whens(), facts)
def test_what_shadows_is_for_all_that_the_other_is_for(narrow: When, broad: When, known: Facts) -> None:
    """The same rule twice is always seen; more is not promised."""
    rules = [Rule(name="one", when=broad, pools=("p",)), Rule(name="two", when=narrow, pools=("p",))]
    if Dispatch(rules).shadows():
        assert is_for(broad, known) or not is_for(narrow, known)
    assert Dispatch([rules[0], evolve(rules[0], name="two")]).shadows()


@given(PATTERNS, PATTERN, TEXT)
def test_patterns_mean_what_they_say(patterns: tuple[str, ...], other: str, text: str) -> None:
    """One that covers another matches whatever that does; and where none of short texts tells them apart, it covers."""
    meant = any(matches(each, text) for each in patterns)
    assert matcher(patterns)(text) == meant
    assert any(walker(tokens_of(each))(text) for each in patterns) == meant
    if covers(patterns, other) and matches(other, text):
        assert any(matches(each, text) for each in patterns)


@pytest.mark.parametrize(
    ("patterns", "other", "covered"),
    [
        (["**"], "a/b", True),
        (["a/**"], "a/b/*", True),
        (["a/*"], "a/b*", True),
        (["a/*"], "a/**", False),
        (["a", "b"], "?", False),
        (["*a*"], "*ba*", True),
        (["a/*", "a/*/**"], "a/**", True),
        (["*" + "?*" * 100], "?" * 255, True),
        (["*a" + "?" * 30 + "*"], "*b" + "?" * 30 + "*", False),
    ],
)
def test_whether_patterns_leave_anything(patterns: list[str], other: str, covered: bool) -> None:  # noqa: FBT001  (the table's)
    """Also where one pattern alone does not, and where it is a lot of work to see."""
    assert covers(patterns, other) is covered


def test_a_text_that_is_made_to_take_long_does_not() -> None:
    """An expression would try for longer than anybody lives; what is longer than a name is taken by ``**`` alone."""
    assert not matcher(["**a" * 20 + "b"])("a" * LONGEST_TEXT)
    assert matcher(["**a" * 20])("a" * LONGEST_TEXT)
    assert [matcher([each])("a" * (LONGEST_TEXT + 1)) for each in ("**", "a**", "*")] == [True, False, False]


def a_job(**more: Any) -> Job:  # noqa: ANN401  (a job's)
    """A job as GitLab describes it."""
    job = Job(
        id=7,
        token="",
        job_info=JobInfo(name="deploy", stage="live", project_full_path="platform/web/shop", time_in_queue_seconds=90),
        git_info=GitInfo(ref="main", ref_type="branch"),
        runner_info=RunnerInfo(timeout=3600),
        variables=(
            Variable(key="CI_PIPELINE_SOURCE", value="web"),
            Variable(key="CI_PIPELINE_SOURCE", value="schedule"),
            Variable(key="SECRET", value="planted", masked=True),
        ),
    )
    return evolve(job, **more)


def test_facts_are_read_from_what_gitlab_says() -> None:
    """Of two variables with one name the later counts; a ref of which nothing is said is not protected."""
    known = Facts.of(a_job())
    assert (known.namespace, known.project) == ("platform/web", "platform/web/shop")
    assert (known.source, known.timeout, known.queued, known.ref_protected) == ("schedule", 3600.0, 90.0, False)
    says = Variable(key="CI_COMMIT_REF_PROTECTED", value="true")
    assert Facts.of(a_job(variables=(says,))).ref_protected
    forged = (evolve(says, value="false"), says)
    assert not any(Facts.of(a_job(variables=each)).ref_protected for each in (forged, forged[::-1]))
    assert not Facts.of(a_job(variables=(says,), git_info=GitInfo(protected=False))).ref_protected


def test_a_decision_says_which_rule_and_why_and_shows_no_values() -> None:
    """What of the job was looked at, but of variables the names alone."""
    when = When(namespace=("platform/**",), ref_protected=False, variables={"SECRET": ("*",)}, timeout_at_least=60.0)
    rules = [Rule(name="big", when=when, pools=("a", "b")), Rule(name="rest", refuse="not here")]
    assert str(Dispatch(rules).decide(a_job())) == (
        "the rule 'big' sends it to a or else b"
        " (namespace platform/web; the ref is not protected; its variable SECRET; timeout 1h)"
    )
    assert str(Dispatch(rules[1:]).decide(a_job())) == "the rule 'rest' refuses it: not here"
    assert str(Dispatch(()).decide(a_job())) == "no rule of [[dispatch]] is for it, so it may use any pool"
    assert Dispatch(()).decide(a_job()) == Decision()


# --- ceilings ---------------------------------------------------------------------------------------------


class CeilingsMachine(RuleBasedStateMachine):
    """Jobs come, go and are resumed."""

    def __init__(self) -> None:
        """No job is there."""
        super().__init__()
        self.ceilings = Ceilings({"one": 1, "two": 2})
        self.inside: dict[str, str] = {}
        self.waiting: list[tuple[str, str]] = []
        self.resumed: set[str] = set()
        self.keys = count()

    @rule(name=st.sampled_from(["one", "two", "free"]))
    def comes(self, name: str) -> None:
        """It may run if there are fewer than the rule allows, and nobody waits for it before."""
        key = f"job-{next(self.keys)}"
        running = sum(each == name for each in self.inside.values())
        may = running < self.ceilings.most.get(name, 1000)
        assert self.ceilings.enter(name, key) is may
        if may:
            self.inside[key] = name
        else:
            self.waiting.append((name, key))
            assert not self.ceilings.enter(name, key)

    @rule(name=st.sampled_from(["one", "two"]))
    def is_resumed(self, name: str) -> None:
        """It runs, however many there are."""
        key = f"job-{next(self.keys)}"
        self.ceilings.resume(name, key)
        self.inside[key] = name

    @precondition(lambda self: self.inside or self.waiting)
    @rule(pick=st.integers(0, 100))
    def goes(self, pick: int) -> None:
        """The first that waits for its rule takes its place, if there is one."""
        keys = [*self.inside, *(key for _, key in self.waiting)]
        key = keys[pick % len(keys)]
        self.inside.pop(key, None)
        self.waiting = [each for each in self.waiting if each[1] != key]
        admitted = self.ceilings.leave(key)
        for each in admitted:
            first = next(place for place in self.waiting if place[1] == each)
            assert first == next(place for place in self.waiting if place[0] == first[0]), "out of turn"
            self.waiting.remove(first)
            self.inside[each] = first[0]

    @invariant()
    def nobody_waits_where_there_is_room(self) -> None:
        """And those that run are counted."""
        for name, most in self.ceilings.most.items():
            running = sum(each == name for each in self.inside.values())
            assert self.ceilings.running(name) == running
            assert running >= most or not any(each == name for each, _ in self.waiting)


TestCeilingsMachine = CeilingsMachine.TestCase
TestCeilingsMachine.settings = settings(max_examples=50, stateful_step_count=30, phases=QUICK)


# --- the file ---------------------------------------------------------------------------------------------

FILE = """
[[runners]]
name = "fleet"
url = "https://gitlab.example.com/"
token = "glrt-1234"
executor = "instance"
[runners.autoscaler]
plugin = "local"
[[runners.autoscaler.pools]]
name = "spot"
[[runners.autoscaler.pools]]
name = "on-demand"
"""


def read(here: Path, rules: str) -> Dispatch:
    """The rules of a file."""
    (here / "config.toml").write_text(FILE + rules)
    return read_config(here / "config.toml").dispatch


def test_a_file_of_rules_is_read(tmp_path: Path) -> None:
    """What stands alone needs no brackets; rules for other runners are left out."""
    dispatch = read(
        tmp_path,
        """
        [[dispatch]]
        name = "releases"
        when = { ref_protected = true, ref = "v*", variables = { DEPLOY = "yes" }, timeout_at_least = "1h" }
        pools = "on-demand"
        at_most = 2
        [[dispatch]]
        when.namespace = ["forks/**"]
        refuse = "forks build elsewhere"
        """,
    )
    first, second = dispatch.rules
    when = When(ref_protected=True, ref=("v*",), variables={"DEPLOY": ("yes",)}, timeout_at_least=3600.0)
    assert first.when == when
    assert (first.pools, second.name, second.refuse) == (("on-demand",), "dispatch[1]", "forks build elsewhere")
    assert dispatch.ceilings == {"releases": 2}


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ("when.namspace = 'a'\npools = ['spot']", "did you mean `namespace`?"),
        ("pool = 'spot'", "did you mean `pools`?"),
        ("pools = ['sport']", 'of a pool: spot, on-demand, found "sport"; did you mean `spot`?'),
        ("pools = ['spot', 'spot']", 'dispatch[0].pools[1]: expected each pool once, found "spot"'),
        ("at_most = 3", "dispatch[0]: expected `pools`, with one name at least, or `refuse`"),
        ("pools = []", "dispatch[0]: expected `pools`, with one name at least, or `refuse`"),
        ("refuse = 'no'\npools = ['spot']", "dispatch[0]: expected `refuse`, or else `pools` and `at_most`"),
        ("refuse = ''", "one line of 1 to 500 characters"),
        ("pools = ['spot']\nat_most = -1", "dispatch[0].at_most"),
        ("pools = ['spot']\nwhen.ref = []", "one to 1000 patterns"),
        ("pools = ['spot']\nwhen.ref_type = 'branches'", "dispatch[0].when.ref_type"),
        ("pools = ['spot']\nwhen = { timeout_at_least = '2h', timeout_at_most = '1h' }", "or no job will do"),
        ("pools = ['spot']\nrunner = 'fleat'", 'of the [[runners]]: fleet, found "fleat"; did you mean `fleet`?'),
        ("name = 'a'\npools = ['spot']\n[[dispatch]]\nname = 'a'\nrefuse = 'no'", "an earlier rule has it"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_rules_is_said_at_once(tmp_path: Path, rules: str, said: str) -> None:
    """With the place, what was expected, and the nearest name."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        read(tmp_path, f"[[dispatch]]\n{rules}\n")


@pytest.mark.parametrize("rules", ["dispatch = 3\n", "dispatch = [3]\n"])
def test_rules_are_tables(tmp_path: Path, rules: str) -> None:
    """And nothing else."""
    (tmp_path / "config.toml").write_text(rules + FILE)
    with pytest.raises(ConfigError, match="dispatch"):
        read_config(tmp_path / "config.toml")


def test_the_page_has_every_key() -> None:
    """Of rules and of their conditions, and no others."""
    page = (Path(__file__).parents[2] / "docs/reference/gitlab-dispatch.md").read_text()
    keys, conditions = (part.partition("\n## ")[0] for part in page.split("|---|---")[1:3])
    for cls, table in ((Rule, keys), (When, conditions)):
        firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")]
        assert [name for first in firsts for name in re.findall("`([a-z_]+)`", first)] == [*fields_dict(cls)]
