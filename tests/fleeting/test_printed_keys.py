"""Host keys as cloud-init prints them on a console."""

from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import LoginRejected
from fleeting.connectors.ssh import best_host_key, generate_key, printed_host_key, read_key_pair


def console(lines: Iterable[str]) -> str:
    """What cloud-init writes."""
    block = ["-----BEGIN SSH HOST KEY KEYS-----", *lines, "-----END SSH HOST KEY KEYS-----"]
    return "\r\n".join(["[ 1.0] booting", *block, "login: "])


ED25519, OTHER = generate_key().public, generate_key().public
ECDSA_TYPE = "ecdsa-sha2-nistp256"
ECDSA = f"{ECDSA_TYPE} {b64encode(len(ECDSA_TYPE).to_bytes(4, 'big') + ECDSA_TYPE.encode() + b'...').decode()}"


def test_the_best_host_key_of_the_first_block_counts() -> None:
    """Later blocks may have been written by whoever works there."""
    first = console([f"{ECDSA} root@ip", f"[ 9.1] cloud-init: {ED25519} root@ip", f"{OTHER} again"])
    assert printed_host_key(first + console([OTHER])) == ED25519
    assert printed_host_key("nothing yet") is None
    assert printed_host_key(console([])) is None


def test_a_key_that_something_else_was_printed_into_is_passed_over() -> None:
    """The kernel prints whenever it likes; a key that no host shows would have every host refused."""
    assert printed_host_key(console([f"{ED25519[:20]}[ 9.2] eth0: up{ED25519[20:]}", ECDSA])) == ECDSA
    assert best_host_key({"ssh-ed25519": "AAAA", "ssh-dss": "AAAA"}) is None


@given(st.text(), st.lists(st.sampled_from([ED25519, ECDSA]), min_size=1), st.text(), st.integers(0))
def test_nothing_that_is_printed_later_counts(before: str, keys: list[str], after: str, cut: int) -> None:
    """Until the block is complete there is no key; from then on it stays, whatever follows."""
    block = console(keys)
    best = ED25519 if ED25519 in keys else ECDSA
    assert printed_host_key(before + block[: cut % block.index("END SSH")]) is None
    assert printed_host_key(before + block + after + console([OTHER])) == best


def test_a_key_in_a_file_tells_its_public_half(tmp_path: Path) -> None:
    """As it was made, but for the comment that OpenSSH would add."""
    pair = generate_key()
    (tmp_path / "key").write_text(pair.private)
    assert read_key_pair(str(tmp_path / "key"), "i-1") == pair


def test_a_file_without_a_key_is_told() -> None:
    """With its path, and what is wrong with it."""
    with pytest.raises(LoginRejected, match=r"/nowhere/key cannot be read: No such file"):
        read_key_pair("/nowhere/key", "i-1")
