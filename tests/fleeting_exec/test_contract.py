"""What executables print: whatever it is, it is understood or refused in one clear line."""

import base64
import json
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import (
    AuthFailed,
    CapacityUnavailable,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    State,
)
from fleeting_exec._contract import (
    LAST_WORDS,
    Listed,
    Listing,
    failure,
    is_name,
    kind_of,
    last_words,
    plain,
    read_instance,
    read_listing,
    read_marks,
)

NAMES = st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,20}\Z")
STATES = st.sampled_from(["creating", "running", "deleting", "deleted", "failed", "suspended", "unknown"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ["name", "state", "created_at", "port", "user", "password", "internal_addr", "protocol", "expires_at", "more"]
NEARLY = st.fixed_dictionaries(
    {"instances": st.lists(st.dictionaries(st.sampled_from(FIELDS), JSON | NAMES | STATES, max_size=6), max_size=3)},
    optional={"problems": JSON | st.lists(st.dictionaries(st.sampled_from(["kind", "message", "since"]), JSON))},
)
"""Almost what the contract has: each field with a value that may be of any kind."""

SECRET = "correct-horse-battery"


def read(output: bytes | str) -> Listing:
    """Read it as what ``list`` printed."""
    return read_listing(output if isinstance(output, bytes) else output.encode(), "provision list")


def refusal(output: bytes | str) -> str:
    """Read what cannot be used, and return what is said of it."""
    with pytest.raises(ProviderError) as error:
        read(output)
    return str(error.value)


def understood_or_refused(output: bytes) -> None:
    """Reading it gives a value, or an error of one printable line that is not long."""
    for reading in (read_listing, partial(read_instance, name="i-1")):
        told = refused(reading, output)
        assert told.isprintable() or not told
        assert len(told) <= 1000
        assert SECRET not in told


def refused(reading: Callable[[bytes, str], object], output: bytes) -> str:
    """Read it, and return what is said if it is refused; any other exception goes through."""
    try:
        reading(output, "provision list")
    except ProviderError as error:
        return str(error)
    return ""


@given(st.binary())
def test_any_bytes_are_understood_or_refused(output: bytes) -> None:
    """Nothing that is printed leads to another exception."""
    understood_or_refused(output)


@given(JSON | NEARLY)
def test_any_json_is_understood_or_refused(printed: Any) -> None:  # noqa: ANN401  (any)
    """Nor does JSON of any shape, NaN and lone surrogates included."""
    understood_or_refused(json.dumps(printed).encode())


@given(st.fixed_dictionaries({"name": NAMES, "state": JSON, "password": JSON | st.just(SECRET), "port": JSON}))
def test_no_refusal_shows_a_password(instance: dict[str, Any]) -> None:
    """However wrong the rest is."""
    instance["password"] = [SECRET] if instance["password"] == "" else instance["password"]
    understood_or_refused(json.dumps({"instances": [instance, {"password": {SECRET: SECRET}}]}).encode())


@given(st.dictionaries(NAMES, st.tuples(STATES, st.none() | st.floats(0, 1e10)), max_size=5))
def test_what_the_contract_has_is_understood(instances: dict[str, tuple[str, float | None]]) -> None:
    """Every instance comes out as it went in; a state that nobody knows is None."""
    printed = [{"name": name, "state": state, "created_at": at} for name, (state, at) in instances.items()]
    listing = read(json.dumps({"instances": printed}))
    seen = {each.name: (each.state.state, each.created_at) for each in listing.instances.values()}
    assert seen == {name: (None if s == "unknown" else State(s), at) for name, (s, at) in instances.items()}


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "nothing instead of a JSON object"),
        ("Error: no such zone", "it is not JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"instances": [', "it is not JSON (Expecting value: line 1 column 16 (char 15))"),
        (b'{"instances": ["\xff"]}', "it is not JSON ('utf-8' codec can't decode byte 0xff in position 16"),
        ("[]", "it is JSON, but not an object"),
        ("{}", "missing key `instances`, expected an array"),
        ('{"instances": {}}', "instances: expected an array, found an empty table"),
        ("[" * 100_000, "it is not JSON (maximum recursion depth exceeded"),
        ('{"instances": [], "instances": []}', "an object has the same key twice"),
        (f'{{"{"x" * 100_000}": 1}}', "a key is longer than 40 characters"),
        (
            '{"instances": [{"name": "a", "state": "RUNNING"}]}',
            ', found "RUNNING"',
        ),
        ('{"instances": [{"name": "a", "state": "running", "adress": "h"}]}', "unknown key `adress` in instances[0]"),
        ('{"instances": [{"name": "-rf", "state": "running"}]}', "starting with a letter, digit or _"),
        ('{"instances": [{"name": "a\\nb", "state": "running"}]}', "1 to 255 of the characters"),
        ('{"instances": [{"name": "a", "state": "running", "created_at": -1}]}', "expected at least 0"),
        ('{"instances": [{"name": "a", "state": "running", "created_at": NaN}]}', "NaN is not a JSON number"),
        ('{"instances": [{"name": "a", "state": "running", "created_at": 1e999}]}', "expected a number"),
        ('{"instances": [{"name": "a", "state": "running", "port": 65536}]}', "expected at most 65535"),
        (
            '{"instances": [{"name": "a", "state": "running"}, {"name": "a", "state": "failed"}]}',
            "it lists a twice",
        ),
        *(
            (json.dumps({"instances": [{"name": "a", "state": "running", key: value}]}), expected)
            for key in ("internal_addr", "external_addr", "protocol", "user", "host_key", "os", "arch")
            for value, expected in {
                **dict.fromkeys(("", "a\nb", "\x1b[2J"), "one line of printable"),
                "\ud800": "without lone surrogates",
            }.items()
        ),
        ('{"instances": [], "problems": [{"kind": "weather", "message": "rain"}]}', 'expected one of "capacity"'),
    ],
)
def test_a_refusal_says_what_is_wrong(output: bytes | str, said: str) -> None:
    """It names the command, the place, what was found and what was expected."""
    told = refusal(output)
    assert told.startswith("provision list printed invalid output: ")
    assert said in told
    assert told.endswith("; correct the program")


def test_many_instances_one_of_them_twice_are_soon_refused() -> None:
    """As many as fit in, with the one at the end: it is not looked for among all, for each of all."""
    names = [f"a{number}" for number in range(60_000)]
    printed = {"instances": [{"name": name, "state": "running"} for name in (*names, names[-1])]}
    assert "it lists a59999 twice" in refusal(json.dumps(printed))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ('{"marks": [{"owner": "a", "until": 1}, {"owner": "a", "until": 2}]}', "two marks of a"),
        ('{"marks": [{"owner": "a\\nb", "until": 1}]}', "one line of printable characters"),
        ('{"marks": [{"owner": "a", "until": "soon"}]}', "until"),
        ('{"marks": [{"owner": "a"}]}', "until"),
        ("{}", "marks"),
        ("", "nothing instead of a JSON object"),
    ],
)
def test_marks_that_are_not_wholly_understood_are_refused(output: str, said: str) -> None:
    """Else a mark that nobody can read would look like none, and its manager like a dead one."""
    with pytest.raises(ProviderError, match="provision marks printed invalid output") as error:
        read_marks(output.encode(), "provision marks")
    assert said in str(error.value)


def test_another_instance_than_the_one_asked_about_is_refused() -> None:
    """Or its address would be taken for the other's."""
    with pytest.raises(ProviderError, match="it was asked about a, and describes b"):
        read_instance(b'{"name": "b", "state": "running"}', "provision status", "a")


def test_problems_are_those_of_fleeting() -> None:
    """With the message on one line."""
    output = {"instances": [], "problems": [{"kind": "quota", "message": "10 of\n10", "since": 5, "offering": "a"}]}
    (problem,) = read(json.dumps(output)).problems
    assert (problem.kind, problem.message, problem.since) == (ProblemKind.QUOTA, "10 of 10", 5)


def test_a_password_is_in_no_repr() -> None:
    """Values find their way into logs."""
    (listed,) = read(
        f'{{"instances": [{{"name": "a", "state": "running", "password": "{SECRET}"}}]}}'
    ).instances.values()
    assert isinstance(listed, Listed)
    assert listed.password == SECRET
    assert SECRET not in repr(listed)


@pytest.mark.parametrize(
    ("code", "kind", "problem"),
    [
        (1, ProviderError, ProblemKind.OTHER),
        (64, ProviderError, ProblemKind.OTHER),
        (69, CapacityUnavailable, ProblemKind.CAPACITY),
        (73, QuotaExceeded, ProblemKind.QUOTA),
        (75, RateLimited, ProblemKind.OTHER),
        (77, AuthFailed, ProblemKind.AUTHORISATION),
        (255, ProviderError, ProblemKind.OTHER),
    ],
)
def test_an_exit_status_has_its_class(code: int, kind: type[ProviderError], problem: ProblemKind) -> None:
    """One for each thing that the manager would do differently."""
    error = failure("provision create i", code, "sorry")
    assert (type(error), str(error)) == (kind, f"provision create i exited with {code}: sorry")
    assert kind_of(error) is problem


def test_a_signal_is_named() -> None:
    """Its number is what the system tells."""
    assert str(failure("provision list", -9, "")) == "provision list was ended by signal 9"


@given(st.binary(max_size=2000), st.sets(st.text(min_size=4, max_size=8), max_size=3))
def test_last_words_are_one_line(stderr: bytes, secrets: set[str]) -> None:
    """Whatever a program writes, and whatever the secrets are."""
    words = last_words(stderr + "".join(secrets).encode(errors="replace"), secrets)
    assert words == "" or words.isprintable()
    assert len(words) <= LAST_WORDS


def test_a_secret_is_not_said() -> None:
    """The longer one first, so that no part of it is left."""
    words = last_words(b"token abcdefgh for abcd, but not abc", {"abcd", "abcdefgh", "abc"})
    assert words == "token *** for ***, but not abc"


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
def test_a_secret_is_not_said_in_another_spelling(before: str) -> None:
    """A client that fails shows its request: headers in base64, addresses, bodies in JSON."""
    secret = 'pass/wo+rd"?ÿ 1'
    raw = f"{before}{secret}".encode()
    encoded = (base64.b64encode(raw), base64.urlsafe_b64encode(raw), json.dumps(secret).encode(), secret.encode().hex())
    for spelled in (*encoded, quote(secret), quote_plus(secret)):
        said = spelled if isinstance(spelled, bytes) else spelled.encode()
        words = last_words(b"sent " + said + b" in vain", {secret})
        assert words.startswith("sent ")
        assert "***" in words
        assert len(words) <= len("sent *** in vain") + 16, words


@given(st.text())
def test_plain_text_stays_plain(text: str) -> None:
    """Doing it twice changes nothing."""
    assert plain(plain(text)) == plain(text)


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a\n", "ä", "a" * 256, "a;b", "$a"])
def test_some_text_is_no_name(name: str) -> None:
    """It could be taken for something else by a program, a shell, or a reader."""
    assert not is_name(name)
