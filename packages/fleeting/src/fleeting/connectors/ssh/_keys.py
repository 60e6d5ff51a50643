"""Private keys: reading them in whatever form they come, and making them."""

import re
from io import StringIO
from pathlib import Path

import paramiko
from attrs import field, frozen
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from fleeting._errors import LoginRejected


@frozen(kw_only=True)
class KeyPair:
    """A key for one purpose, such as one instance."""

    private: str = field(repr=False)
    """OpenSSH's text form; for `ConnectInfo.key`."""

    public: str
    """One ``type base64`` line, for ``authorized_keys``."""


def generate_key() -> KeyPair:
    """Make an Ed25519 key; takes less than a millisecond."""
    key = ed25519.Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private=_openssh(key), public=public.decode())


def read_key_pair(path: str, instance: str) -> KeyPair:
    """Read a private key from a file, and derive its public half. Blocks.

    Raises:
        LoginRejected: There is none that can be read.
    """
    try:
        text = Path(path).expanduser().read_text("ascii")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # the second if there is no such user
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise LoginRejected(f"the private key in {path} cannot be read: {reason}; correct key_path") from error
    key = load_key(text, instance)
    return KeyPair(private=text, public=f"{key.get_name()} {key.get_base64()}")


def load_key(text: str, instance: str) -> paramiko.PKey:
    """Read a private key: Ed25519, ECDSA or RSA, in OpenSSH's form, PEM or PKCS 8.

    Raises:
        LoginRejected: It is none.
    """
    data = text.strip().encode() + b"\n"
    load = serialization.load_ssh_private_key if b"OPENSSH" in data else serialization.load_pem_private_key
    try:
        return _for_paramiko(load(data, None), instance)
    except TypeError as error:  # this is how cryptography asks for a password
        raise LoginRejected(f"the private key for {instance} has a passphrase; use a key without one") from error
    except (ValueError, UnsupportedAlgorithm, paramiko.SSHException) as error:
        raise LoginRejected(f"the private key for {instance} cannot be read: {_plain(error)}") from error


def _for_paramiko(key: object, instance: str) -> paramiko.PKey:
    match key:
        case ed25519.Ed25519PrivateKey():
            return paramiko.Ed25519Key.from_private_key(StringIO(_openssh(key)))
        case ec.EllipticCurvePrivateKey():
            return paramiko.ECDSAKey.from_private_key(StringIO(_openssh(key)))
        case rsa.RSAPrivateKey():
            return paramiko.RSAKey.from_private_key(StringIO(_openssh(key)))
    raise LoginRejected(f"the private key for {instance} must be an Ed25519, ECDSA or RSA key")


def _openssh(key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> str:
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


def _plain(error: Exception) -> str:
    """The library's words up to where it becomes technical."""
    return re.split(r"[.(\n]", str(error))[0] or type(error).__name__
