"""What tokens say of themselves."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Hints, mint_routable, read_token, shorten

NUMBERS = st.integers(0, 2**63 - 1)


def job_token(claims: object) -> str:
    """A job's token with these claims; nobody signed it."""
    parts = [json.dumps({"alg": "RS256"}), json.dumps(claims), "signature"]
    return "glcbt-" + ".".join(base64.urlsafe_b64encode(each.encode()).rstrip(b"=").decode() for each in parts)


@given(
    prefix=st.sampled_from(["glrt-t2_", "glrt-t3_", "glpat-", "acme-glrt-t2_"]),
    routing=st.dictionaries(st.sampled_from("cgopu"), NUMBERS),
    random=st.binary(min_size=16, max_size=16),
)
def test_a_minted_token_says_what_was_put_into_it(prefix: str, routing: dict[str, int], random: bytes) -> None:
    """Whatever the random bytes look like."""
    hints = read_token(mint_routable(prefix, routing, random))
    found = {"c": hints.cell, "g": hints.group, "o": hints.organization, "p": hints.project, "u": hints.user}
    assert {key: value for key, value in found.items() if value is not None} == routing


def test_a_minted_token_has_gitlabs_form() -> None:
    """Random bytes, sorted lines, their length; then two digits of length and seven of CRC-32, all in base 36."""
    token = mint_routable("glrt-t2_", {"o": 35, "c": 1}, bytes(16))
    body, version, rest = token.removeprefix("glrt-t2_").split(".")
    assert base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) == bytes(16) + b"c:1\no:z\x07"
    assert (version, int(rest[:2], 36), len(rest)) == ("01", len(body), 9)


@given(
    token=st.just(mint_routable("glrt-t2_", {"c": 3, "g": 9}, b"0123456789abcdef")),
    at=st.integers(8, 50),
    by=st.integers(1, 61),
)
def test_a_damaged_token_gives_no_hint(token: str, at: int, by: int) -> None:
    """Whichever character is another one: the CRC finds it."""
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    at %= len(token)
    other = letters[(letters.find(token[at]) + by) % len(letters)]
    if other != token[at]:
        assert read_token(token[:at] + other + token[at + 1 :]) == Hints()


def test_a_jobs_token_is_read_without_being_verified() -> None:
    """Its claims have the same letters, and when it ends."""
    token = job_token({"exp": 1_800_000_000, "c": "1", "p": "zz", "sub": "gid://gitlab/Ci::Build/7"})
    assert read_token(token) == Hints(cell=1, project=1295, expires_at=1_800_000_000.0)


@pytest.mark.parametrize("claims", [[], None, "x", {"exp": "soon"}, {"exp": -1}, {"exp": True}, {"c": 1}, {"p": "Ä"}])
def test_strange_claims_are_no_hint(claims: object) -> None:
    """And no error."""
    assert read_token(job_token(claims)) == Hints()


@given(st.text() | st.from_regex(r"gl(rt-t[0-9]_|cbt-|pat-)[\w.-]{0,60}", fullmatch=True))
def test_no_token_is_an_error(token: str) -> None:
    """What anybody sends can be read, and shortened."""
    read_token(token)
    assert len(shorten(token)) <= 9


@pytest.mark.parametrize(
    ("token", "short"),
    [
        ("glrt-abcdefghijkl", "abcdefghi"),
        ("glrt-t1_abcdefghijkl", "abcdefghi"),
        ("t3_abcdefghijkl", "abcdefghi"),
        ("glrtr-abcdefghijkl", "abcdefghi"),
        ("glcbt-64_abcdefghijkl", "64_abcdef"),
        ("GR1348941abcdefghijkl", "abcdefghi"),
        ("abcdefghijkl", "abcdefghi"),
        ("glrt-abc", "abc"),
    ],
)
def test_a_short_token_is_without_its_prefix(token: str, short: str) -> None:
    """Nine characters, as GitLab Runner shows them."""
    assert shorten(token) == short


def test_a_mistake_in_minting_is_one_line() -> None:
    """Too few random bytes, letters nobody knows, and more than fits."""
    with pytest.raises(ValueError, match="expected 16 random bytes, found 3"):
        mint_routable("glrt-t2_", {}, b"abc")
    with pytest.raises(ValueError, match="unknown parts of a routable token: x"):
        mint_routable("glrt-t2_", {"x": 1}, bytes(16))
