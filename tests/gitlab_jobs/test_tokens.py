"""What tokens say of themselves."""

import base64
import json
import re
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitlab_jobs import Hints, mint_routable, read_token, shorten
from gitlab_jobs._tokens import _claims

NUMBERS = st.integers(0, 2**63 - 1)


def job_token(claims: object) -> str:
    """A job's token with these claims; nobody signed it."""
    parts = [json.dumps({"alg": "RS256"}), json.dumps(claims), "signature"]
    return "glcbt-" + ".".join(base64.urlsafe_b64encode(each.encode()).rstrip(b"=").decode() for each in parts)


@given(
    prefix=st.sampled_from(["glrt-t2_", "glrt-t3_", "glpat-", "acme-glrt-t2_", "acme.example-glrt-", ""]),
    routing=st.dictionaries(st.sampled_from("cgoput"), NUMBERS).map(lambda found: {"o": 1, **found}),
    random=st.binary(min_size=16, max_size=16),
)
def test_a_minted_token_says_what_was_put_into_it(prefix: str, routing: dict[str, int], random: bytes) -> None:
    """Whatever the random bytes look like, and whatever an administrator has all tokens begin with."""
    assert said_by(mint_routable(prefix, routing, random)) == routing


def test_ten_thousand_tokens_are_minted_and_read() -> None:
    """With every number of letters, and numbers of all lengths."""
    chosen = Random(25)
    for _ in range(10_000):
        letters = [*chosen.sample("cgput", chosen.randint(0, 5)), "o"]
        routing = {each: chosen.getrandbits(chosen.randint(1, 63)) for each in letters}
        assert said_by(mint_routable("glrt-t2_", routing, chosen.randbytes(16))) == routing


def said_by(token: str) -> dict[str, int]:
    """The numbers in a token by their letters."""
    hints = read_token(token)
    found = {"c": hints.cell, "g": hints.group, "o": hints.organization, "p": hints.project, "u": hints.user}
    return {key: value for key, value in {**found, "t": hints.type}.items() if value is not None}


PAGE = (Path(__file__).parents[2] / "docs/reference/gitlab-tokens.md").read_text()
VECTORS = re.findall(r"^\| `([^` ]*)` \| `([0-9a-f]{32})` \| ([^|]*) \| `([^`]+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("prefix", "random", "routing", "token"), VECTORS)
def test_the_vectors_of_the_page(prefix: str, random: str, routing: str, token: str) -> None:
    """Both ways."""
    numbers = {each[0]: int(each[2:]) for each in routing.strip("`").split()}
    assert mint_routable(prefix, numbers, bytes.fromhex(random)) == token
    assert said_by(token) == numbers


def test_the_page_has_the_token_that_gitlab_has_published() -> None:
    """The one in the specification of GitLab's own decoder, with what that finds in it."""
    published = "glrtr-W5m1cHR6skC98Bx7XkuYjmM6MQpnOjgKbzpyegp0OjIQ.01.181uebm4k"
    assert published in [token for *_, token in VECTORS]
    assert read_token(published) == Hints(cell=1, group=8, organization=1007, type=2)


def test_a_minted_token_has_gitlabs_form() -> None:
    """Random bytes, sorted lines, their length; then two digits of length and seven of CRC-32, all in base 36."""
    token = mint_routable("glrt-t2_", {"o": 35, "c": 1}, bytes(16))
    body, version, rest = token.removeprefix("glrt-t2_").split(".")
    assert base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) == bytes(16) + b"c:1\no:z\x07"
    assert (version, int(rest[:2], 36), len(rest)) == ("01", len(body), 9)


@given(
    routing=st.dictionaries(st.sampled_from("cgput"), NUMBERS),
    random=st.binary(min_size=16, max_size=16),
    at=st.integers(0, 400),
    other=st.characters(),
)
def test_a_token_with_another_character_gives_no_hint(
    routing: dict[str, int], random: bytes, at: int, other: str
) -> None:
    """Wherever it is, and whatever it is: the CRC finds it."""
    token = mint_routable("glrt-t2_", {"o": 1, **routing}, random)
    at %= len(token)
    if other != token[at]:
        assert read_token(token[:at] + other + token[at + 1 :]) == Hints()


def test_every_change_of_one_character_gives_no_hint() -> None:
    """All that can be made of one token with what a header can have."""
    token = VECTORS[0][-1]
    printable = [chr(each) for each in range(0x21, 0x7F)]
    changed = [token[:at] + each + token[at + 1 :] for at in range(len(token)) for each in printable]
    assert {each for each in changed if read_token(each) != Hints()} == {token}


def sealed(signed: str) -> str:
    """A token with the CRC that it should have."""
    digits, crc = "", zlib.crc32(signed.encode())
    while crc:
        crc, digit = divmod(crc, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return signed + digits.rjust(7, "0")


BODY = base64.urlsafe_b64encode(bytes(16) + b"c:1\no:z\x07").rstrip(b"=").decode()


@pytest.mark.parametrize(
    "signed",
    [
        f"glrt-{BODY}.01.0v",  # one less than there are
        f"glrt-{BODY}.01.zz",  # more than there are
        f"glrt-{BODY}.01.00",
        f"glrt-{BODY}.02.0w",  # of a version that nobody knows
        f"glrt-{BODY}==.01.0y",  # with padding
        f"glrt-{BODY[:-1]}.01.0v",  # one character lacks
        f"glrt-{BODY[:-4]}.01.0s",  # the length of the payload is another one
        "glrt-AAAA.01.04",
        "glrt-.01.00",
    ],
)
def test_a_token_with_a_right_crc_and_a_wrong_form_gives_no_hint(signed: str) -> None:
    """Of another length, of another version, with padding, without a payload."""
    assert read_token(sealed(signed)) == Hints()


def test_the_form_alone_is_not_what_is_wrong_with_them() -> None:
    """The same, as it should be."""
    assert read_token(sealed(f"glrt-{BODY}.01.{'0w' if len(BODY) == 32 else ''}")) == Hints(cell=1, organization=35)


@pytest.mark.parametrize("payload", [b"c:1:2", b"c", b"c:", b":1", b"c:A", b"c:1\n", b"", b"c:\xff", b"c:" + b"z" * 14])
def test_a_payload_that_is_no_list_of_numbers_gives_no_hint(payload: bytes) -> None:
    """As GitLab's decoder has it: all of it, or nothing."""
    body = base64.urlsafe_b64encode(bytes(16) + payload + bytes([len(payload)])).rstrip(b"=").decode()
    length = divmod(len(body), 36)
    digits = "".join("0123456789abcdefghijklmnopqrstuvwxyz"[each] for each in length)
    assert read_token(sealed(f"glrt-{body}.01.{digits}")) == Hints()


_JWT = re.compile(r"(?:[\w-]*-)?glcbt-[\w-]+\.(?P<claims>[\w-]+)\.[\w-]+", re.ASCII)
"""What a job's token looks like, in one expression; it takes the square of a token's length to find that out."""


@given(st.lists(st.sampled_from(["glcbt-", "glcbt", "-", ".", "a", "a.b.c", "ä", "\n"]), max_size=8).map("".join))
def test_a_jobs_token_is_known_by_its_form(token: str) -> None:
    """Whatever stands before it, and however often it says what it is."""
    found = _JWT.fullmatch(token)
    assert _claims(token) == (found and found["claims"])


@pytest.mark.parametrize("piece", ["-", ".", "glcbt-", "a-t1_", ".01.", "A", "glrt-t2_"])
def test_a_token_of_any_length_is_read_at_once(piece: str) -> None:
    """Five kilobytes, and a megabyte: both are more than any token has."""
    for size in (5_000, 1 << 20):
        assert read_token(piece * (size // len(piece)) + ".01.0w0000000") == Hints()


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
    with pytest.raises(ValueError, match="expected o, the organization"):
        mint_routable("glrt-t2_", {"c": 1}, bytes(16))
    with pytest.raises(ValueError, match="expected numbers from 0 on"):
        mint_routable("glrt-t2_", {"o": -1}, bytes(16))
    with pytest.raises(ValueError, match="expected at most 159 bytes of routing"):
        mint_routable("glrt-t2_", {"o": 36**160}, bytes(16))
