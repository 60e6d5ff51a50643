"""Clouds for the tests of the `googlecloud` group: the endpoint, credentials for it, and groups on it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fleeting import Settings
from fleeting_gcp import GcpConfig, GcpGroup
from tests.fleeting_gcp.compute_endpoint import Cloud, Server

REGIONAL: dict[str, Any] = {
    "place": "regions/europe-west1",
    "zones": ("europe-west1-b", "europe-west1-c", "europe-west1-d"),
}
"""What makes a cloud's group a regional one."""


@cache
def private_key() -> str:
    """A key for service accounts, made once."""
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return rsa.generate_private_key(65537, 2048).private_bytes(*form).decode()


def write_credentials(directory: Path) -> Path:
    """Write the file of a service account's key, which signs its tokens itself.

    It belongs to a cloud of its own: of Google's public one, the SDK would ask in the background where it may be used.
    """
    path = directory / "account.json"
    account = {
        "type": "service_account",
        "client_email": "runners@acme.iam.gserviceaccount.com",
        "token_uri": "https://token.example",
        "universe_domain": "cloud.example",
        "private_key_id": "1",
        "private_key": private_key(),
    }
    path.write_text(json.dumps(account))
    return path


def config(cloud: Cloud, credentials: Path, **more: Any) -> GcpConfig:  # noqa: ANN401  (the settings know their types)
    """Settings for a cloud's group."""
    kind, _, place = cloud.place.partition("/")
    where = {kind.removesuffix("s"): place}
    named: dict[str, Any] = {"name": cloud.group, "project": cloud.project, "timeout": 1.0, **where, **more}
    return GcpConfig(endpoint=cloud.url, credentials_file=str(credentials), **named)


@asynccontextmanager
async def serving(cloud: Cloud) -> AsyncIterator[Cloud]:
    """Let a cloud answer."""
    with Server(cloud) as server:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, lambda: server.serve_forever(poll_interval=0.01))
            try:
                yield cloud
            finally:
                server.shutdown()


@asynccontextmanager
async def opened(group: GcpGroup, settings: Settings) -> AsyncIterator[GcpGroup]:
    """Open a group, and close it."""
    await group.init(settings)
    try:
        yield group
    finally:
        await group.shutdown()
