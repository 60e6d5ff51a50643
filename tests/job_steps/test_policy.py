"""What an operator allows of steps, and what follows from it."""

import json
import re
from typing import Any

import pytest
from attrs import evolve, fields
from hypothesis import given
from hypothesis import strategies as st

from job_steps._policy import (
    RESTRICTIONS,
    Asked,
    Kind,
    Policy,
    PolicyRefused,
    admit,
    as_mapping,
    check,
    policy_of,
    restrictions_of,
)
from job_steps._references import without_login

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = "sha256:" + "0" * 64

# A world in which everything is one of few, so that a naive reading of patterns is easy: what is allowed is a set.
REPOSITORIES = ("https://gitlab.com/steps/build", "https://gitlab.com/steps/lint", "https://example.com/steps/build")
IMAGES = ("registry.example.com/steps/build", "registry.example.com/other")
PATHS = ("ci/build", "ci/lint", "/opt/steps")
BUILTINS = ("script", "step/oci/fetch")
VERSIONS = ("main", "v1.2", COMMIT)
TAGS = ("latest", DIGEST)


def asked(
    location: str = "https://gitlab.com/steps/build",
    version: str = "",
    *,
    kind: Kind = Kind.GIT,
    origin: Kind | None = None,
) -> Asked:
    """Make one that asks for a repository, unless it says otherwise."""
    return Asked(step="build", kind=kind, location=location, version=version, origin=origin)


def refused_by(policy: Policy, what: Asked) -> str:
    """Name the rule that refuses it; empty: none does."""
    try:
        check(policy, what)
    except PolicyRefused as refused:
        return refused.rule
    return ""


@st.composite
def anything_asked(draw: st.DrawFn, step: str = "build") -> Asked:
    """Ask for anything."""
    kind = draw(st.sampled_from(Kind))
    places = {Kind.PATH: PATHS, Kind.GIT: REPOSITORIES, Kind.IMAGE: IMAGES, Kind.BUILTIN: BUILTINS}
    versions = {Kind.GIT: VERSIONS, Kind.IMAGE: TAGS}
    return Asked(
        step=step,
        kind=kind,
        location=draw(st.sampled_from(places.get(kind, ("",)))),
        version=draw(st.sampled_from(versions.get(kind, ("",)))),
    )


def some(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...] | None]:
    """Allow any, or those that are named."""
    return st.none() | st.sets(st.sampled_from(values)).map(lambda chosen: tuple(sorted(chosen)))


calls = st.fixed_dictionaries({"name": st.sampled_from("abcd"), "inputs": st.dictionaries(st.just("x"), st.integers())})
added = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(("scan", "sign")), "step": st.sampled_from(("./x", "./y"))}),
    max_size=2,
).map(tuple)

policies = st.builds(
    Policy,
    allowed_git=some(REPOSITORIES),
    allowed_images=some(IMAGES),
    allowed_paths=some(PATHS),
    allowed_builtins=some(BUILTINS),
    scripts=st.booleans(),
    commits=st.booleans(),
    before=added,
    after=added,
    timeout=st.none() | st.integers(1, 3600),
)


@st.composite
def lists(draw: st.DrawFn) -> list[tuple[dict[str, object], Asked]]:
    """Make a job's list, with what each step of it asks for."""
    names = draw(st.lists(st.sampled_from("abcd"), max_size=4))
    return [({"name": name, "inputs": {}}, draw(anything_asked(name))) for name in names]


def naive(policy: Policy, each: Asked) -> str:
    """Say which rule refuses a step, reading them as sets; empty if none does."""
    sets = {
        Kind.GIT: ("allowed_git", policy.allowed_git),
        Kind.IMAGE: ("allowed_images", policy.allowed_images),
        Kind.PATH: ("allowed_paths", policy.allowed_paths),
        Kind.BUILTIN: ("allowed_builtins", policy.allowed_builtins),
    }
    if each.kind is Kind.SCRIPT:
        return "" if policy.scripts else "scripts"
    if each.kind not in sets:
        return ""
    rule, allowed = sets[each.kind]
    if each.kind is Kind.PATH and allowed is None and not policy.scripts:
        return "scripts"
    if allowed is not None and each.location not in allowed:
        return rule
    return "commits" if policy.commits and each.version in ("main", "v1.2", "latest") else ""


@given(policies, lists())
def test_what_is_admitted_is_allowed_and_what_is_refused_is_named(
    policy: Policy, job: list[tuple[dict[str, object], Asked]]
) -> None:
    """A list is admitted if and only if every step is allowed; else the first that is not is named with its rule."""
    expected = next(((rule, each.step) for _, each in job if (rule := naive(policy, each))), None)
    theirs = [call for call, _ in job]
    questions = [each for _, each in job]
    if expected is None:
        assert admit(policy, theirs, questions) == (*policy.before, *theirs, *policy.after)
        return
    with pytest.raises(PolicyRefused) as refused:
        admit(policy, theirs, questions)
    rule, step = expected
    assert (refused.value.rule, refused.value.step) == expected
    assert rule in {each.name for each in fields(Policy)}
    assert str(refused.value).startswith(f"the policy's `{rule}` refuses the step `{step}`: ")


@given(policies, policies, lists())
def test_a_jobs_own_policy_can_only_refuse_more(
    policy: Policy, own: Policy, job: list[tuple[dict[str, object], Asked]]
) -> None:
    """Nothing is admitted that the operator's forbids, or the job's own; what both allow is as it is without the own.

    What the own one adds, or says of time and breakpoints, is none of its business: it changes nothing.
    """
    theirs, questions = [call for call, _ in job], [each for _, each in job]
    first = next((each for each in questions if naive(policy, each) or naive(own, each)), None)
    if first is None:
        assert admit(policy, theirs, questions, own=own) == admit(policy, theirs, questions)
        return
    with pytest.raises(PolicyRefused) as refused:
        admit(policy, theirs, questions, own=own)
    assert (refused.value.step, refused.value.is_own) == (first.step, not naive(policy, first))
    assert refused.value.rule == (naive(policy, first) or naive(own, first))


@given(policies)
def test_a_jobs_own_policy_says_only_what_refuses_steps(own: Policy) -> None:
    """Any policy can be cut down to that; what else one says is refused."""
    whole = as_mapping(own)
    rules = {key: value for key, value in whole.items() if key in RESTRICTIONS}
    assert as_mapping(restrictions_of(rules)) == rules
    if rules != whole:
        with pytest.raises(ValueError, match="in a job's own policy; expected allowed_git, "):
            restrictions_of(whole)


@given(policies, lists())
def test_a_policy_that_is_applied_twice_is_applied_once(
    policy: Policy, job: list[tuple[dict[str, object], Asked]]
) -> None:
    """The agent, which gets what was admitted, admits the same: nothing is added twice, and nothing refused."""
    try:
        once = admit(policy, [call for call, _ in job], [each for _, each in job])
    except PolicyRefused:
        return
    # What the policy adds needs no leave: even if it were a script where none may be.
    new = Asked(step="added", kind=Kind.SCRIPT)
    all_asked = [*[new] * len(policy.before), *(each for _, each in job), *[new] * len(policy.after)]
    assert admit(policy, once, all_asked) == once


@given(policies)
def test_a_policy_is_the_same_after_its_way_to_the_agent(policy: Policy) -> None:
    """It is written as JSON, and read."""
    assert policy_of(json.loads(json.dumps(as_mapping(policy)))) == policy


@pytest.mark.parametrize(
    "location",
    [
        "gitlab.com/steps/build",
        "https://gitlab.com/steps/build.git",
        "https://gitlab.com/steps/build/",
        "https://GitLab.com:443/steps/build",
        "HTTPS://user:secret@gitlab.com/steps/build",
    ],
)
@pytest.mark.parametrize("pattern", ["gitlab.com/steps/*", "https://GITLAB.com/steps/build.git", "*.com/*@v1.*"])
def test_a_repository_may_be_written_in_several_ways(location: str, pattern: str) -> None:
    """Whoever writes the pattern and whoever writes the step need not agree on a spelling."""
    check(Policy(allowed_git=(pattern,)), asked(location=location, version="v1.2"))


@pytest.mark.parametrize(
    "location",
    [
        "http://gitlab.com/steps/build",
        "ssh://git@gitlab.com/steps/build",
        "https://gitlab.com/other/build",
        "https://gitlab.com/steps/../other/build",
        "https://gitlab.com/steps/%2e%2e/other/build",
        "https://gitlab.com/steps//build",
        "https://gitlab.com.example.com/steps/build",
        "https://gitlab.com:8443/steps/build",
        "https://gitlab.com@example.com/steps/build",
        "https://example.com\\@gitlab.com/steps/build",
        "https://example.com/gitlab.com/steps/build",
        "https://gitlab.com:port/steps/build",
        "https:///steps/build",
        "git@gitlab.com:steps/build",
        "https://[gitlab.com/steps/build",
        "https://gitlab.com/steps/build?x",
        "https://gitlab.com/steps/build#x",
        "https://gitlab.com/steps/build\n",
        "",
    ],
)
def test_another_repository_is_not_taken_for_an_allowed_one(location: str) -> None:
    """However it is written; and its password is not shown."""
    with pytest.raises(PolicyRefused, match=r"`allowed_git` refuses the step `build`: expected gitlab\.com/steps/\*"):
        check(Policy(allowed_git=("gitlab.com/steps/*",)), asked(location=location, version="v1"))


def test_a_pattern_for_hosts_is_none_for_paths() -> None:
    """``*`` for a host does not reach into the path, where anybody could write what they like."""
    policy = Policy(allowed_git=("https://*/steps/build",))
    check(policy, asked(location="https://example.com/steps/build"))
    with pytest.raises(PolicyRefused):
        check(policy, asked(location="https://example.com/anybody/steps/build"))


def test_a_refusal_shows_no_password() -> None:
    """An address may have one, in a job's list."""
    with pytest.raises(PolicyRefused) as refused:
        check(Policy(allowed_git=()), asked(location="https://user:hunter2@example.com/x", version="main"))
    assert str(refused.value) == (
        "the policy's `allowed_git` refuses the step `build`: expected nothing, found https://example.com/x@main"
    )


@pytest.mark.parametrize(
    ("pattern", "version", "rule"),
    [
        ("gitlab.com/steps/*@v1.*", "v1.2", ""),
        ("gitlab.com/steps/*@v1.*", "v2.0", "allowed_git"),
        ("gitlab.com/steps/*@v1.*", "v1", "allowed_git"),
        ("gitlab.com/steps/*", "anything", ""),
        (f"gitlab.com/steps/*@{COMMIT}", COMMIT, ""),
        (f"gitlab.com/steps/*@{COMMIT}", COMMIT[:-1], "allowed_git"),
        ("gitlab.com/steps/*@release/*", "release/1", ""),
    ],
)
def test_versions_of_repositories(pattern: str, version: str, rule: str) -> None:
    """A pattern may name versions too."""
    assert refused_by(Policy(allowed_git=(pattern,)), asked(version=version)) == rule


@pytest.mark.parametrize(
    ("pattern", "location", "version", "rule"),
    [
        ("registry.example.com/steps/*", "registry.example.com/steps/build", "v1", ""),
        ("registry.example.com/steps/*", "Registry.Example.com/steps/build", "v1", ""),
        ("registry.example.com/steps/*", "registry.example.com:5000/steps/build", "v1", "allowed_images"),
        ("registry.example.com:5000/steps/*", "registry.example.com:5000/steps/build", "v1", ""),
        ("registry.example.com/steps/*:v1*", "registry.example.com/steps/build", "v1.2", ""),
        ("registry.example.com/steps/*:v1*", "registry.example.com/steps/build", "v2", "allowed_images"),
        (f"registry.example.com/steps/build@{DIGEST}", "registry.example.com/steps/build", DIGEST, ""),
        (f"registry.example.com/steps/build@{DIGEST}", "registry.example.com/steps/build", "v1", "allowed_images"),
        ("registry.example.com/steps/*", "registry.example.com/steps/build:v2", "v1", "allowed_images"),
        ("*/steps/*", "example.com/other/steps/build", "v1", "allowed_images"),
    ],
)
def test_images(pattern: str, location: str, version: str, rule: str) -> None:
    """A registry, a path there, and maybe a version."""
    assert refused_by(Policy(allowed_images=(pattern,)), asked(location, version, kind=Kind.IMAGE)) == rule


@pytest.mark.parametrize(
    ("kind", "version", "rule"),
    [
        (Kind.GIT, COMMIT, ""),
        (Kind.GIT, COMMIT + COMMIT[:24], ""),
        (Kind.GIT, COMMIT[:12], "commits"),
        (Kind.GIT, COMMIT.upper(), "commits"),
        (Kind.GIT, "v1.0.0", "commits"),
        (Kind.GIT, f"{COMMIT}\n", "commits"),
        (Kind.GIT, "", "commits"),
        (Kind.IMAGE, DIGEST, ""),
        (Kind.IMAGE, "latest", "commits"),
        (Kind.IMAGE, COMMIT, "commits"),
        (Kind.PATH, "", ""),
        (Kind.BUILTIN, "", ""),
    ],
)
def test_pins(kind: Kind, version: str, rule: str) -> None:
    """What can be moved is refused where pins are required; a job's own files and the agent's cannot."""
    assert refused_by(Policy(commits=True), asked("example.com/x", version, kind=kind)) == rule


@pytest.mark.parametrize(
    ("location", "origin", "rule"),
    [
        ("ci/build", None, ""),
        ("./ci/build", None, ""),
        ("ci/../other", None, "allowed_paths"),
        ("../ci/build", None, "allowed_paths"),
        ("/ci/build", None, "allowed_paths"),
        ("other", None, "allowed_paths"),
        ("other", Kind.PATH, "allowed_paths"),
        ("other", Kind.GIT, ""),
        ("other", Kind.IMAGE, ""),
        ("a/../../other", Kind.GIT, "allowed_paths"),
        ("/etc/other", Kind.GIT, "allowed_paths"),
        ("/opt/steps/x", None, ""),
        ("/opt/steps/x", Kind.GIT, ""),
    ],
)
def test_paths(location: str, origin: Kind | None, rule: str) -> None:
    """A repository that was allowed is allowed as a whole, and nothing that it names outside."""
    policy = Policy(allowed_paths=("./ci/*", "/opt/steps/*"))
    assert refused_by(policy, asked(location, kind=Kind.PATH, origin=origin)) == rule


@pytest.mark.parametrize(
    ("location", "file", "pattern", "rule"),
    [
        ("ci", "lint.yml", "ci/lint.yml", ""),
        ("./ci", "lint.yml", "ci/lint.yml", ""),
        ("ci", "lint.yml", "ci", ""),
        ("ci", "other.yml", "ci/lint.yml", "allowed_paths"),
        ("ci", "", "ci/lint.yml", "allowed_paths"),
        ("/etc/steps", "", "*", "allowed_paths"),
        ("ci", "", "/*", "allowed_paths"),
    ],
)
def test_patterns_of_files_and_of_directories(location: str, file: str, pattern: str, rule: str) -> None:
    """A pattern may name a file; one that is relative is for the job's directory alone."""
    policy = Policy(allowed_paths=(pattern,))
    assert refused_by(policy, evolve(asked(location, kind=Kind.PATH), file=file)) == rule


def test_scripts_are_refused_to_a_jobs_author_alone() -> None:
    """A step that was allowed has what scripts it likes."""
    policy = Policy(scripts=False)
    for origin in Kind:
        check(policy, Asked(step="build", kind=Kind.SCRIPT, origin=origin))
    with pytest.raises(PolicyRefused, match="`scripts` refuses the step `build`: it is a script or a command"):
        check(policy, Asked(step="build", kind=Kind.SCRIPT))


def test_a_job_that_may_have_no_script_may_not_put_one_into_a_file_either() -> None:
    """A path is a script of the job's own, unless the operator names it."""
    own = asked(kind=Kind.PATH, location="ci/build")
    check(Policy(scripts=False), asked(kind=Kind.PATH, location="lib", origin=Kind.GIT))
    check(Policy(scripts=False, allowed_paths=("ci/*",)), own)
    with pytest.raises(PolicyRefused, match="`scripts` refuses the step `build`: ci/build is the job's own") as refused:
        check(Policy(scripts=False), own)
    assert refused.value.rule == "scripts"


def test_an_expression_is_left_to_the_agent_which_has_to_know_its_value() -> None:
    """At admission nobody can; where it is loaded, passing it over would be a hole."""
    policy = Policy(allowed_git=())
    unknown = asked(kind=Kind.EXPRESSION, location="${{ inputs.where }}")
    assert admit(policy, [{"name": "build"}], [unknown]) == ({"name": "build"},)
    with pytest.raises(ValueError, match="not evaluated"):
        check(policy, unknown)


def test_a_job_cannot_hide_a_step_that_is_added() -> None:
    """Outputs and results go by names: two steps of one name would be one."""
    policy = Policy(after=[{"name": "sign", "step": "./sign"}])
    with pytest.raises(PolicyRefused, match="`after` refuses the step `sign`: the policy adds a step of this name"):
        admit(policy, [{"name": "sign", "script": "true"}], [Asked(step="sign", kind=Kind.SCRIPT)])


@given(policies, st.none() | st.integers(1, 7200))
def test_a_job_gets_no_more_time_than_it_may(policy: Policy, wanted: int | None) -> None:
    """And no more than it wants."""
    limit = policy.time_limit(wanted)
    assert limit is None if wanted is policy.timeout is None else limit in (wanted, policy.timeout)
    assert limit is None or all(limit <= each for each in (wanted, policy.timeout) if each is not None)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"alowed_git": []}, "unknown key 'alowed_git' in a policy; expected after, allowed_builtins, allowed_git"),
        ({"allowed_git": "gitlab.com"}, "allowed_git: expected patterns, none of them empty"),
        ({"allowed_git": [""]}, "allowed_git: expected patterns, none of them empty"),
        ({"scripts": "no"}, "scripts: expected true or false"),
        ({"commits": 1}, "commits: expected true or false"),
        ({"timeout": 0}, "timeout: expected seconds, more than 0"),
        ({"timeout": True}, "timeout: expected seconds, more than 0"),
        ({"before": {}}, "expected a list of steps"),
        ({"after": ["x"]}, "expected a list of steps"),
        ({"after": [{"name": float("nan")}]}, "expected steps that JSON can hold"),
    ],
)
def test_what_is_no_policy(written: dict[str, object], message: str) -> None:
    """Each mistake is named."""
    with pytest.raises(ValueError, match=re.escape(message)):
        policy_of(written)


def test_a_policy_says_whether_it_refuses_anything() -> None:
    """An agent that checks nothing may run what nobody would refuse."""
    nothing = Policy(before=[{"name": "scan"}], timeout=60)
    assert not nothing.restricts
    changes: list[dict[str, Any]] = [{"scripts": False}, {"commits": True}, {"allowed_git": ()}, {"allowed_paths": ()}]
    assert all(evolve(nothing, **change).restricts for change in changes)


@pytest.mark.parametrize(
    ("location", "version"),
    [
        ("r.io/steps/../other", "v1"),
        ("r.io/steps//x", "v1"),
        ("r.io/steps/x", "v1@sha256:0"),
        ("r.io/steps/x", "v1/../v2"),
    ],
)
def test_an_image_that_a_registry_may_take_for_another_is_refused(location: str, version: str) -> None:
    """Its name is a path in requests, where `..` leads up."""
    policy = Policy(allowed_images=("r.io/steps/*:v1*",))
    assert refused_by(policy, asked(location, version, kind=Kind.IMAGE)) == "allowed_images"


@pytest.mark.parametrize(
    ("location", "rule"),
    [
        ("file:///srv/git/x.git", ""),
        ("file://other/srv/git/x", "allowed_git"),
        ("file:///srv/git/../x", "allowed_git"),
        ("file:///etc/x", "allowed_git"),
        ("https:///srv/git/x", "allowed_git"),
    ],
)
def test_a_repository_of_the_machine_has_no_host(location: str, rule: str) -> None:
    """It can be allowed as others can."""
    assert refused_by(Policy(allowed_git=("file:///srv/git/*",)), asked(location, "v1")) == rule


def test_a_host_of_other_letters_is_no_pattern_s() -> None:
    """Programs do not agree on how they are written in ASCII."""
    policy = Policy(allowed_git=("*.example.com/*",))
    assert refused_by(policy, asked("git\u3002evil.example.com/x", "v1")) == "allowed_git"


def test_steps_that_are_added_have_names() -> None:
    """By which a job's own are kept apart from them."""
    for step in ({"script": "true"}, {"name": True, "script": "true"}):
        with pytest.raises(ValueError, match="each have a name, a string"):
            Policy(before=[step])


def test_a_login_is_cut_off_to_its_last_character() -> None:
    """A password may have an `@`, of which the last in the address begins the host."""
    assert without_login("https://user:pass@word@example.com/x@main") == "https://example.com/x@main"
