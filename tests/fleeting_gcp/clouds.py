"""Clouds for the tests of the `googlecloud` group: the endpoint, credentials for it, and groups on it."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fleeting_gcp import GcpConfig
from fleeting_gcp._answers import NOTICE_PROBE
from tests.fleeting_gcp.compute_endpoint import Cloud, Server

REGIONAL: dict[str, Any] = {
    "place": "regions/europe-west1",
    "zones": ("europe-west1-b", "europe-west1-c", "europe-west1-d"),
}
"""What makes a cloud's group a regional one."""


@cache
def private_key() -> str:
    """A key for service accounts, made once; a short one, since its primes are looked at whenever a group is opened."""
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = rsa.generate_private_key(65537, 1024)  # noqa: S505  (it protects nothing)
    return key.private_bytes(*form).decode()


def write_credentials(directory: Path, url: str = "http://127.0.0.1:9") -> Path:
    """Write the file of a service account's key, which signs its tokens itself.

    It belongs to a cloud of its own: of Google's public one, the SDK would ask in the background where it may be used.
    """
    path = directory / "account.json"
    account = {
        "type": "service_account",
        "client_email": "runners@acme.iam.gserviceaccount.com",
        "token_uri": f"{url}/token",
        "universe_domain": "cloud.example",
        "private_key_id": "1",
        "private_key": private_key(),
    }
    path.write_text(json.dumps(account))
    return path


def config(cloud: Cloud, credentials: Path, **more: object) -> GcpConfig:
    """Settings for a cloud's group."""
    kind, _, place = cloud.place.partition("/")
    where = {kind.removesuffix("s"): place}
    group: dict[str, Any] = {"name": cloud.group, "project": cloud.project, **where}
    return GcpConfig(**group | {"endpoint": cloud.url, "credentials_file": str(credentials), "timeout": 30.0, **more})


@contextmanager
def serving(cloud: Cloud) -> Iterator[Cloud]:
    """Let a cloud answer, in a thread of its own."""
    with Server(cloud) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever, poll_interval=0.01)
        server.started.wait()
        try:
            yield cloud
        finally:
            server.shutdown()


CURL = """#!/bin/sh
case "$*" in *"--noproxy * "*) ;; *) exit 5 ;; esac  # the proxy knows no metadata server
for last; do :; done
cat "$(dirname "$0")/${last##*/}"
"""


def run_probe(directory: Path, **told: str) -> "subprocess.CompletedProcess[bytes]":
    """Run the group's probe where a metadata server has these values; it has no other."""
    directory.mkdir(exist_ok=True)
    for name, value in told.items():
        (directory / name.replace("_", "-")).write_text(value)
    (directory / "curl").write_text(CURL)
    (directory / "curl").chmod(0o755)
    env = {"PATH": f"{directory}:/usr/bin:/bin"}
    return subprocess.run(["/bin/sh", "-c", NOTICE_PROBE], env=env, capture_output=True, check=False)
