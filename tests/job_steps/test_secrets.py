"""Secrets in texts and streams: masked wherever those are cut, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from job_steps._secrets import FEW, LONGEST, Masked, Secrets

texts = st.text(alphabet="ab\n", max_size=40)


def secrets_of(*texts: str) -> Secrets:
    """Make a set of secrets."""
    found = Secrets()
    for text in texts:
        found.add(text)
    return found


@given(st.lists(st.text(alphabet="ab", min_size=8, max_size=12), max_size=4), st.lists(texts, max_size=8))
def test_a_stream_shows_no_secret_wherever_it_is_cut(found: list[str], pieces: list[str]) -> None:
    """Of a log without any, every byte comes through, in the end at least."""
    secrets = secrets_of(*found)
    stream = Masked(secrets)
    whole = "".join(pieces)
    shown = b"".join([*(stream.feed(piece.encode()) for piece in pieces), stream.flush()]).decode()
    assert not any(secret in shown for secret in found)
    if not any(secret in whole for secret in found):
        assert shown == whole


@given(st.lists(texts, max_size=8))
def test_no_more_is_held_back_than_may_become_a_secret(pieces: list[str]) -> None:
    """A prompt that is no beginning of a secret is seen at once."""
    stream = Masked(secrets_of("abbabbab"))
    told, shown = "", ""
    for piece in pieces:
        told += piece
        shown += stream.feed(piece.encode()).decode()
        held = told.replace("abbabbab", "[MASKED]").removeprefix(shown)
        assert "abbabbab".startswith(held)


def test_what_is_masked_is_long_enough_and_a_line() -> None:
    """Keys have many lines, of which logs show each alone; short ones would hide half of a log."""
    secrets = secrets_of(
        "-----BEGIN-----\nabcdefgh\nshort\r\nijklmnop", "true", "p\u00e4ssw\u00f6rter", "x" * (LONGEST + 9)
    )
    assert secrets.scrub("true short abcdefgh, ijklmnop!") == "true short [MASKED], [MASKED]!"
    assert secrets.scrub("\U0001f600 p\u00e4ssw\u00f6rter \ud800") == "\U0001f600 [MASKED] \ud800"
    assert set(secrets.scrub("x" * (LONGEST + 9)).replace("[MASKED]", "")) == set()
    assert "abcdefgh" not in repr(secrets)


@given(st.lists(st.text(alphabet="ab", min_size=8, max_size=12), min_size=1, max_size=6), texts)
def test_many_secrets_are_masked_as_few_are(found: list[str], text: str) -> None:
    """They are looked for in another way, which takes as long however many they are."""
    few, many = secrets_of(*found), secrets_of(*found, *(f"other-{number}" for number in range(FEW + 1000)))
    assert many.scrub(text) == few.scrub(text)


def test_no_rest_of_a_long_secret_is_masked_wherever_it_is() -> None:
    """A byte more than is looked for at once is no secret of its own."""
    secret = "".join(f"{number:08}" for number in range(LONGEST // 8)) + "x"
    secrets = secrets_of(secret)
    assert secrets.scrub("x marks the spot") == "x marks the spot"
    assert set(secrets.scrub(secret).replace("[MASKED]", "")) == set()


def test_the_longer_secret_is_masked_whole() -> None:
    """If one is part of another."""
    assert secrets_of("password", "my-password-1").scrub("my-password-1 password") == "[MASKED] [MASKED]"
