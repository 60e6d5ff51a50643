"""Host keys as cloud-init prints them on a console."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from fleeting import LoginRejected
from fleeting.connectors.ssh import generate_key, printed_host_key, read_key_pair


def console(lines: Iterable[str]) -> str:
    """What cloud-init writes."""
    block = ["-----BEGIN SSH HOST KEY KEYS-----", *lines, "-----END SSH HOST KEY KEYS-----"]
    return "\r\n".join(["[ 1.0] booting", *block, "login: "])


def test_the_best_host_key_of_the_first_block_counts() -> None:
    """Later blocks may have been written by whoever works there."""
    first = console(["ecdsa-sha2-nistp256 BBBB root@ip", "ssh-ed25519 AAAA root@ip", "ssh-rsa CCCC"])
    assert printed_host_key(first + console(["ssh-ed25519 EVIL"])) == "ssh-ed25519 AAAA"
    assert printed_host_key("nothing yet") is None
    assert printed_host_key(console([])) is None


def test_a_key_in_a_file_tells_its_public_half(tmp_path: Path) -> None:
    """As it was made, but for the comment that OpenSSH would add."""
    pair = generate_key()
    (tmp_path / "key").write_text(pair.private)
    assert read_key_pair(str(tmp_path / "key"), "i-1") == pair


def test_a_file_without_a_key_is_told() -> None:
    """With its path, and what is wrong with it."""
    with pytest.raises(LoginRejected, match=r"/nowhere/key cannot be read: No such file"):
        read_key_pair("/nowhere/key", "i-1")
