"""What a configuration may hold, and the exact words for everything it may not."""

import contextlib
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Literal

import pytest
from attrs import Attribute, field, frozen, validators
from hypothesis import given
from hypothesis import strategies as st

from fleeting import _wording
from fleeting._durations import Duration, format_duration, parse_duration, span
from fleeting._errors import ConfigError, Mistake
from fleeting._structure import structure
from fleeting._wording import Argv, did_you_mean
from tests.golden import Golden


class Preexisting(Enum):
    """A choice, as a file has it."""

    REFUSE = "refuse"
    REMOVE = "remove"
    ADOPT = "adopt"


@frozen(kw_only=True)
class Policy:
    """A table in an array."""

    periods: Sequence[str] = ()
    idle_count: int = field(default=0, validator=validators.ge(0))
    idle_time: Duration = 0.0
    scale_factor: float | None = None


@frozen(kw_only=True)
class Login:
    """A table with secrets, one by its `repr`, the others by name."""

    username: str = "root"
    password: str | None = field(default=None, repr=False, metadata={"aliases": ("pass",)})
    token: str = field(default="tok-0", validator=validators.matches_re("tok-.*"))
    expiry: Duration | None = None


@frozen(kw_only=True)
class Autoscaler:
    """A schema with one field of every kind."""

    plugin: str
    profile: str | None = field(default=None, metadata={"aliases": ("credentials_profile",)})
    max_instances: int = 0
    capacity: int = field(default=1)
    delete: bool = False
    preexisting: Preexisting = Preexisting.REFUSE
    protocol: Literal["ssh", "winrm"] = "ssh"
    timeout: Duration | None = None
    login: Login = Login()
    policy: Sequence[Policy] = ()
    labels: Mapping[str, str] = field(factory=dict)
    plugin_config: Mapping[str, object] = field(factory=dict)
    tags: frozenset[str] = frozenset()
    retries: list[int] = field(factory=list)
    _hidden: int = 0
    derived: str = field(init=False, default="")

    @capacity.validator
    def _capacity_is_known(self, _: "Attribute[int]", value: int) -> None:
        if not 0 < value <= max(self.max_instances, 1):
            msg = f"1 to {max(self.max_instances, 1)}, as many as max_instances"
            raise ValueError(msg)

    def __attrs_post_init__(self) -> None:
        """Refuse a combination."""
        if self.protocol == "winrm" and self.login.username == "root":
            msg = "another username than root where protocol is winrm"
            raise ValueError(msg)


@frozen(kw_only=True)
class Small:
    """Few keys, all of them listed in messages."""

    name: str
    zone: str = ""


@frozen(kw_only=True)
class Talkative:
    """A rule whose message repeats a secret."""

    key: str = field(repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse everything."""
        msg = f"another key than {self.key}"
        raise ValueError(msg)


@frozen(kw_only=True)
class Derived:
    """A default that is worked out from another field."""

    value: int
    double: int = field(validator=validators.ge(0))

    @double.default
    def _double(self) -> int:
        return self.value * 2


@frozen(kw_only=True)
class Yes:
    """True unless said otherwise."""

    yes: bool = True


def refused(data: Mapping[str, object], cls: type = Autoscaler, **options: Any) -> ConfigError:  # noqa: ANN401  (as in structure)
    """Return the error for a configuration that must be refused."""
    with pytest.raises(ConfigError) as caught:
        structure(data, cls, **options)
    return caught.value


def problems(data: Mapping[str, object], cls: type = Autoscaler, **options: Any) -> str:  # noqa: ANN401  (as in structure)
    """Return the message for a configuration that must be refused."""
    return str(refused(data, cls, **options))


A_DURATION = 'a duration such as "90s" or "1h30m"'

BAD_VALUES: list[tuple[dict[str, object], str, Mistake]] = [
    ({"plugin": 3}, "plugin", Mistake.TYPE),
    ({"plugin": 1.5}, "plugin", Mistake.TYPE),
    ({"plugin": True}, "plugin", Mistake.TYPE),
    ({"plugin": None}, "plugin", Mistake.TYPE),
    ({"plugin": ["x"]}, "plugin", Mistake.TYPE),
    ({"plugin": {}}, "plugin", Mistake.TYPE),
    ({"max_instances": "3"}, "max_instances", Mistake.TYPE),
    ({"max_instances": "many"}, "max_instances", Mistake.TYPE),
    ({"max_instances": 3.0}, "max_instances", Mistake.TYPE),
    ({"max_instances": True}, "max_instances", Mistake.TYPE),
    ({"hidden": "x"}, "hidden", Mistake.TYPE),
    ({"delete": 1}, "delete", Mistake.TYPE),
    ({"delete": "true"}, "delete", Mistake.TYPE),
    ({"delete": "yes"}, "delete", Mistake.TYPE),
    ({"preexisting": "refus"}, "preexisting", Mistake.VALUE),
    ({"preexisting": 1}, "preexisting", Mistake.TYPE),
    ({"protocol": "telnet"}, "protocol", Mistake.VALUE),
    ({"protocol": "SSH"}, "protocol", Mistake.VALUE),
    ({"timeout": 90}, "timeout", Mistake.DURATION),
    ({"timeout": 1.5}, "timeout", Mistake.DURATION),
    ({"timeout": "90"}, "timeout", Mistake.DURATION),
    ({"timeout": "2d"}, "timeout", Mistake.DURATION),
    ({"timeout": "-1s"}, "timeout", Mistake.DURATION),
    ({"timeout": "soon"}, "timeout", Mistake.DURATION),
    ({"timeout": True}, "timeout", Mistake.DURATION),
    ({"timeout": []}, "timeout", Mistake.DURATION),
    ({"policy": {}}, "policy", Mistake.TYPE),
    ({"policy": [{}, 3]}, "policy[1]", Mistake.TYPE),
    ({"policy": [{}, {"idle_time": 5}]}, "policy[1].idle_time", Mistake.DURATION),
    ({"policy": [{"periods": "* * *"}]}, "policy[0].periods", Mistake.TYPE),
    ({"policy": [{"periods": ["*", 7]}]}, "policy[0].periods[1]", Mistake.TYPE),
    ({"policy": [{"idle_count": -1}]}, "policy[0].idle_count", Mistake.VALUE),
    ({"policy": [{"scale_factor": float("nan")}]}, "policy[0].scale_factor", Mistake.TYPE),
    ({"policy": [{"scale_factor": "2.5"}]}, "policy[0].scale_factor", Mistake.TYPE),
    ({"policy": [{"idle_tiem": "5s"}]}, "policy[0].idle_tiem", Mistake.UNKNOWN_KEY),
    ({"capacity": 9, "max_instances": 4}, "capacity", Mistake.VALUE),
    ({"protocol": "winrm"}, "", Mistake.VALUE),
    ({"labels": ["a"]}, "labels", Mistake.TYPE),
    ({"labels": {"team": 7}}, "labels.team", Mistake.TYPE),
    ({"tags": "x"}, "tags", Mistake.TYPE),
    ({"retries": [1, "2"]}, "retries[1]", Mistake.TYPE),
    ({"login": "root"}, "login", Mistake.TYPE),
    ({"derived": "x"}, "derived", Mistake.UNKNOWN_KEY),
    ({"max_instance": 3}, "max_instance", Mistake.UNKNOWN_KEY),
    ({"profile": "a", "credentials_profile": "b"}, "credentials_profile", Mistake.VALUE),
]


@pytest.mark.parametrize(("data", "path", "mistake"), BAD_VALUES, ids=lambda value: str(value)[:60])
def test_a_bad_value_is_named_with_what_to_write(
    golden: Golden, data: dict[str, object], path: str, mistake: Mistake
) -> None:
    """Each mistake gets its key path, what was found, what is expected and what to do."""
    (problem,) = refused({"plugin": "aws", **data}).problems
    assert (problem.path, problem.mistake) == (path, mistake)
    golden(f"config/{data}", str(problem))


def test_the_golden_file_has_no_other_values(golden: Golden) -> None:
    """A bad value that goes takes its sentence along."""
    golden.has_only("config/", [str(data) for data, _, _ in BAD_VALUES])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "missing key `name`, expected a string"),
        ({"name": "n", "Zone": "z"}, "unknown key `Zone` (known keys: name, zone); did you mean `zone`?"),
        ({"name": "n", "colour": 1}, "unknown key `colour` (known keys: name, zone)"),
    ],
)
def test_a_missing_or_unknown_key_is_named(data: dict[str, object], message: str) -> None:
    """A short schema lists its keys."""
    assert problems(data, Small) == message


def test_a_long_string_is_cut() -> None:
    """A message stays readable whatever stands in the file."""
    message = problems({"plugin": "aws", "preexisting": "x" * 80})
    assert message == f'preexisting: expected one of "refuse", "remove", "adopt", found "{"x" * 60}…"'


def test_a_string_is_shown_on_one_line() -> None:
    """Control characters are escaped, so that a file cannot forge a message."""
    message = problems({"plugin": "aws", "preexisting": "a\n\x1b[31m"})
    assert message == 'preexisting: expected one of "refuse", "remove", "adopt", found "a\\n\\u001b[31m"'


def test_every_problem_is_reported_at_once() -> None:
    """One error carries all of them, in the order of the file, the missing ones last."""
    data = {"max_instances": "x", "policy": [{"idle_time": 1}, {"idle_count": -1}], "spam": 1, "timeout": "1h"}
    assert problems(data, path="autoscaler", source="config.toml").splitlines() == [
        'config.toml: autoscaler.max_instances: expected an integer, found "x"',
        f'config.toml: autoscaler.policy[0].idle_time: expected {A_DURATION}, found 1; write "1s"',
        "config.toml: autoscaler.policy[1].idle_count: expected at least 0, found -1",
        "config.toml: unknown key `spam` in [autoscaler]",
        "config.toml: missing key `plugin` in [autoscaler], expected a string",
    ]


def test_a_long_list_of_problems_ends_with_their_number() -> None:
    """Twenty lines are enough to see what has happened; the error has all of them for programs."""
    error = refused({"plugin": "aws", "policy": [{"idle_count": -1}] * 33})
    assert (len(error.problems), len(error.lines), error.rest) == (33, 20, "and 13 more problems")
    assert str(error).splitlines()[20:] == ["and 13 more problems"]


def test_a_key_in_the_wrong_table_is_sent_to_the_right_one() -> None:
    """Too high or too low; if it could be one of several, nothing is said."""
    data = {"plugin": "aws", "idle_time": "5s", "username": "x", "policy": [{"max_instances": 1, "login": {}}]}
    assert [problem.hint for problem in refused(data, path="fleet").problems] == [
        "it belongs in [[fleet.policy]]",
        "it belongs in [fleet.login]",
        "it belongs in [fleet]",
        "it belongs in [fleet]",
    ]


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("idle_tme", ["idle_time", "idle_count"], "idle_time"),
        ("idle_scale", ["idle_time", "idle_count", "scale_factor"], ""),
        ("list_timeout", ["reset_timeout"], ""),
        ("log_external_ip", ["log_internal_ip"], ""),
        ("maxInstances", ["max_instances", "max_use_count"], "max_instances"),
        ("policies", ["policy", "plugin"], "policy"),
        ("user", ["username", "use_agent"], "username"),
        ("time", ["timezone", "idle_time"], ""),
        ("retries", ["shutdown_deletion_retries"], ""),
        ("make report", ["make", "report"], ""),
        ("i-1", ["i-2"], ""),
        ("cat", ["car", "bat"], ""),
        ("x" * 10_000, ["x" * 9_999], "x" * 9_999),
    ],
)
def test_only_a_slip_of_the_hand_is_asked_about(word: str, known: list[str], meant: str) -> None:
    """A hint that leads to another valid name is worse than none."""
    assert did_you_mean(word, known) == (f"did you mean `{meant}`?" if meant else "")


WORDS = st.text("ab", max_size=8)


@given(WORDS, WORDS)
def test_few_slips_are_counted_exactly(one: str, two: str) -> None:
    """More than a hint could be made of are only said to be more."""
    most = _wording._MOST_SLIPS
    assert min(_wording._distance(one, two), most + 1) == min(slips(one, two), most + 1)


@cache
def slips(one: str, two: str) -> int:
    """Count them by trying everything."""
    if not (one and two):
        return len(one) + len(two)
    ways = [slips(one[1:], two) + 1, slips(one, two[1:]) + 1, slips(one[1:], two[1:]) + (one[0] != two[0])]
    if one[:2] == two[1::-1] and len(one) > 1 < len(two):
        ways.append(slips(one[2:], two[2:]) + (one[0] != one[1]))
    return min(ways)


@frozen(kw_only=True)
class Program:
    """Something to run."""

    command: Argv = ()


@pytest.mark.parametrize(
    ("command", "write"),
    [
        ("make report", '["make", "report"]'),
        (["make 'the report'"], '["make", "the report"]'),
        ("a | tee b", '["sh", "-c", "a | tee b"]'),
        (["echo don't"], '["sh", "-c", "echo don\'t"]'),
        ("", '[""]'),
    ],
)
def test_a_command_in_one_string_is_answered_with_its_arguments(command: object, write: str) -> None:
    """No program has a space in its name; what only a shell understands is left to one."""
    (problem,) = refused({"command": command}, Program).problems
    assert problem.hint == f"write {write}"


def test_a_path_may_have_spaces() -> None:
    """Whether it is there is another question."""
    assert structure({"command": ["./my tool", "x y"]}, Program).command == ("./my tool", "x y")
    assert structure({"command": ["make", "the report"]}, Program).command == ("make", "the report")


def test_every_validator_is_heard() -> None:
    """Attrs stops at the first value that is refused; a user learns of all of them."""
    data = {"plugin": "aws", "capacity": 0, "policy": [{"idle_count": -1}], "login": {"token": "x"}}
    heard = [line.split(":")[0] for line in problems(data).splitlines()]
    assert heard == ["capacity", "policy[0].idle_count", "login.token"]
    assert problems({"plugin": "aws", "capacity": 0}).startswith("capacity: expected 1 to 1")


def test_values_are_judged_beside_those_of_a_wrong_kind() -> None:
    """A mistake of one key does not hide that of its neighbour."""
    data = {"token": "x", "username": 3, "expiry": "soon"}
    assert [line.split(":")[0] for line in problems(data, Login).splitlines()] == ["token", "username", "expiry"]


def test_a_rule_is_silent_while_what_it_looks_at_is_wrong() -> None:
    """What cannot be known yet is no mistake; what needs nothing else is one."""
    assert problems({"plugin": "aws", "capacity": 5, "max_instances": "x"}).count("\n") == 0
    assert "capacity" not in problems({"plugin": "aws", "capacity": 5, "max_instances": "x"})
    assert problems({"value": "x"}, Derived) == 'value: expected an integer, found "x"'


def test_a_zero_may_be_as_good_as_nothing() -> None:
    """As Go reads its files, at any depth; a boolean is always meant, and a required key too."""
    data = {
        "plugin": "",
        "profile": "",
        "capacity": 0,
        "timeout": "0s",
        "delete": False,
        "login": {"username": ""},
        "policy": [{"scale_factor": 0}],
    }
    assert structure(data, Autoscaler, zero_is_default=True) == Autoscaler(plugin="", policy=(Policy(),))
    assert structure({"yes": False}, Yes, zero_is_default=True) == Yes(yes=False)


@pytest.mark.parametrize(
    ("login", "message"),
    [
        ({"password": 1234}, "login.password: expected a string, found an integer"),
        ({"password": ["s3cret"]}, "login.password: expected a string, found an array"),
        ({"pass": 12.5}, "login.pass: expected a string, found a float"),
        ({"token": "s3cret"}, "login.token: expected a valid value, found a string"),
        ({"expiry": "s3cret"}, f"login.expiry: expected {A_DURATION}, found a string"),
        (
            {"passwrod": "s3cret"},
            (
                "unknown key `passwrod` in [login] (known keys: username, password, token, expiry);"
                " did you mean `password`?"
            ),
        ),
    ],
)
def test_a_secret_is_never_shown(login: dict[str, object], message: str) -> None:
    """Neither the value nor a hint made from it, for fields without a repr and for keys that are named secret."""
    secrets = frozenset({"token", "expiry"})
    assert problems({"plugin": "aws", "login": login}, secrets=secrets) == message


def test_a_secret_in_a_free_table_is_never_shown() -> None:
    """Keys named secret are so wherever they stand."""
    data = {"plugin": "aws", "labels": {"token": 1234}}
    assert problems(data, secrets=frozenset({"token"})) == "labels.token: expected a string, found an integer"


def test_a_rule_that_repeats_a_secret_is_masked() -> None:
    """The words of a rule are its author's, so they are searched for secrets."""
    assert problems({"key": "s3cret"}, Talkative) == "expected another key than ***"


def test_everything_that_may_stand_in_a_table_is_read() -> None:
    """A table with a value of every kind becomes the instance that Python would make."""
    data = {
        "plugin": "aws",
        "max_instances": 10,
        "delete": True,
        "preexisting": "adopt",
        "protocol": "winrm",
        "timeout": "1h30m",
        "login": {"username": "admin", "password": "p", "expiry": "0"},
        "policy": [{"periods": ["* * * * *"], "idle_time": "20m0s", "scale_factor": 2}],
        "labels": {"team": "ci"},
        "plugin_config": {"name": "asg", "nested": {"list": [1, "two"]}},
        "tags": ["a", "b"],
        "retries": [1, 2],
        "hidden": 7,
    }
    assert structure(data, Autoscaler) == Autoscaler(
        plugin="aws",
        max_instances=10,
        delete=True,
        preexisting=Preexisting.ADOPT,
        protocol="winrm",
        timeout=5400.0,
        login=Login(username="admin", password="p", expiry=0.0),
        policy=(Policy(periods=("* * * * *",), idle_time=1200.0, scale_factor=2.0),),
        labels={"team": "ci"},
        plugin_config={"name": "asg", "nested": {"list": [1, "two"]}},
        tags=frozenset({"a", "b"}),
        retries=[1, 2],
        hidden=7,
    )


def test_an_older_key_is_accepted_with_a_note() -> None:
    """Files that exist load as they are, and their owner learns the new name."""
    notes: list[str] = []
    data = {"plugin": "aws", "credentials_profile": "ci", "login": {"pass": "p"}}
    result = structure(data, Autoscaler, path="autoscaler", notes=notes)
    assert (result.profile, result.login.password) == ("ci", "p")
    assert notes == [
        "autoscaler.credentials_profile is an older name; use profile",
        "autoscaler.login.pass is an older name; use password",
    ]


def test_an_older_key_satisfies_a_required_field() -> None:
    """A required key is not missing when its older name is there."""

    @frozen(kw_only=True)
    class Renamed:
        name: str = field(metadata={"aliases": ("title",)})

    assert structure({"title": "x"}, Renamed).name == "x"


@pytest.mark.parametrize(("number", "seconds"), [(1_500_000_000, 1.5), (0, 0.0)])
def test_bare_numbers_are_nanoseconds_where_go_wrote_the_file(number: int, seconds: float) -> None:
    """GitLab's own files have durations as nanoseconds."""
    assert structure({"idle_time": number}, Policy, bare_numbers="nanoseconds").idle_time == seconds


@pytest.mark.parametrize(("number", "found"), [(-1, "-1"), (1.5, "1.5"), (True, "true")], ids=str)
def test_other_bare_numbers_are_refused_even_there(number: object, found: str) -> None:
    """Go would not read them either."""
    message = problems({"idle_time": number}, Policy, bare_numbers="nanoseconds")
    assert message == f"idle_time: expected {A_DURATION}, found {found}"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("20m0s", 1200.0),
        ("1h30m", 5400.0),
        ("90s", 90.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("+5s", 5.0),
        ("300ms", 0.3),
        ("1us", 1e-6),
        ("1\N{MICRO SIGN}s", 1e-6),
        ("1\N{GREEK SMALL LETTER MU}s", 1e-6),
        ("7ns", 7e-9),
        ("2h45m30.5s", 9930.5),
        ("2562047h47m16s", 9223372036.0),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    """Every unit, fractions, and the forms that Go allows."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", ""),
        ("90", '; write "90s"'),
        ("1d", '; days are not a unit: write "24h"'),
        ("-1h30m", "; a duration cannot be negative"),
        ("2562048h", '; the longest duration is "2562047h47m16s"'),
        ("1m30", ""),
        ("s", ""),
        (".s", ""),
        (" 1s", ""),
        ("1 s", ""),
        ("1S", ""),
        ("1e3s", ""),
        ("\N{ARABIC-INDIC DIGIT ONE}s", ""),
    ],
)
def test_what_is_no_duration_is_refused(text: str, hint: str) -> None:
    """The message shows what to write where that can be guessed."""
    with pytest.raises(ConfigError) as caught:
        parse_duration(text)
    assert str(caught.value) == f'expected {A_DURATION}, found "{text}"{hint}'


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (1200.0, "20m0s"),
        (5400.0, "1h30m0s"),
        (100.0, "1m40s"),
        (9930.5, "2h45m30.5s"),
        (0.3, "300ms"),
        (1.5e-6, "1.5us"),
        (7e-9, "7ns"),
        (-90.0, "-1m30s"),
    ],
)
def test_durations_are_written_as_go_writes_them(seconds: float, text: str) -> None:
    """Messages show durations in the form that files have."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0s"),
        (0.04, "0s"),
        (0.4, "0.4s"),
        (2.96, "3s"),
        (59.6, "1m"),
        (725.0, "12m5s"),
        (3600.0, "1h"),
        (3605.0, "1h"),
        (12_000.0, "3h20m"),
        (187_200.0, "2d4h"),
    ],
)
def test_what_was_measured_is_written_short(seconds: float, text: str) -> None:
    """Two units say how long it was; a day is one of them, as nobody has to write it into a file."""
    assert span(seconds) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_a_duration_survives_being_written_and_read(nanoseconds: int) -> None:
    """Reading what was written gives the same float."""
    assert parse_duration(format_duration(nanoseconds / 1e9)) == nanoseconds / 1e9


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)
KEYS = ["plugin", "max_instances", "delete", "preexisting", "timeout", "login", "policy", "labels", "tags", "retries"]


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(), JSON, max_size=4))
def test_whatever_the_data_nothing_but_a_config_error_comes_out(data: dict[str, object]) -> None:
    """A mistake in a file never shows as a traceback."""
    with contextlib.suppress(ConfigError):
        structure(data, Autoscaler)
