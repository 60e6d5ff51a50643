"""The settings, and the clients that they make: the only way to the SDK."""

import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import define, field, frozen
from attrs.validators import ge, gt, min_len, optional

from fleeting import Duration, GroupRefused
from fleeting.plugins import Offload
from fleeting_aws._translate import Json, failure_of, is_refused

THREADS = 8
"""Requests at once; each client keeps as many connections."""


@frozen(kw_only=True)
class AwsConfig:
    """What ``plugin_config`` may say for ``plugin = "aws"``.

    Whatever is left out is found as boto3 finds it: in the environment, the user's files, the instance's own role.
    """

    name: str = field(validator=min_len(1))
    """The Auto Scaling group."""

    region: str | None = field(default=None, validator=optional(min_len(1)))
    """Where the group is. None: as boto3 finds it."""

    profile: str | None = field(default=None, metadata={"aliases": ("credentials_profile",)})
    """Which part of the files is meant; its ``role_arn`` is obeyed, if it has one."""

    config_file: str | None = None
    """Where profiles are. None: ``~/.aws/config``."""

    credentials_file: str | None = None
    """Where credentials are. None: ``~/.aws/credentials``."""

    endpoint_url: str | None = None
    """Where all services are reached; None: at AWS."""

    timeout: Duration = field(default=20.0, validator=gt(0))
    """Seconds that AWS has for one answer."""

    attempts: int = field(default=4, validator=ge(1))
    """How often a request is sent until it is answered and not throttled, with growing pauses."""


@define
class Sdk:
    """Asks AWS, in worker threads, and reports what goes wrong in the suite's words."""

    _config: AwsConfig
    offload: Offload = field(factory=lambda: Offload(limit=THREADS), init=False)
    _clients: Mapping[str, Any] = field(factory=dict, init=False)

    _tries: threading.local = field(factory=threading.local, init=False)
    """Of the request that the thread sends: whether nobody knows what came of one of them."""

    async def open(self) -> None:
        """Import the SDK and make the clients; connects to nothing.

        Raises:
            GroupRefused: The settings name what is not there.
        """
        self._clients = await self.offload(_make_clients, self._config)
        for client in self._clients.values():
            client.meta.events.register("response-received", self._note_try)

    async def close(self) -> None:
        """Close every connection."""
        for client in self._clients.values():
            await self.offload(client.close)

    async def read(self, service: str, operation: str, **parameters: object) -> Json:
        """Ask something that changes nothing; of a listing, for all of its pages."""
        return await self.offload(self._ask, service, operation, parameters, changing=False)

    async def change(self, service: str, operation: str, **parameters: object) -> Json:
        """Ask for a change.

        Raises:
            OutcomeUnknown: It may have been carried out.
        """
        return await self.offload(self._ask, service, operation, parameters, changing=True)

    def _ask(self, service: str, operation: str, parameters: Json, *, changing: bool) -> Json:
        client, self._tries.lost = self._clients[service], False
        try:
            if client.can_paginate(operation):
                return dict(client.get_paginator(operation).paginate(**parameters).build_full_result())
            return dict(getattr(client, operation)(**parameters))
        except Exception as error:
            raise failure_of(error, operation, changing=changing, lost=self._tries.lost) from error

    def _note_try(self, parsed_response: Json | None, **_: object) -> None:
        """Note that a try was not answered, before the SDK sends the request again."""
        self._tries.lost |= parsed_response is None or not is_refused(parsed_response)


@cache
def _load_models() -> Any:  # noqa: ANN401  (the SDK has no types)
    """Descriptions of the services, which take 0.2 s and 20 MiB, and are the same for every group."""
    from botocore.loaders import create_loader

    return create_loader()


def _make_clients(config: AwsConfig) -> Mapping[str, Any]:
    """Import what is dear to import; a session is not safe in threads, so all clients are made at once."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    limits = Config(
        retries={"mode": "standard", "total_max_attempts": config.attempts},
        connect_timeout=config.timeout / 2,
        read_timeout=config.timeout,
        max_pool_connections=THREADS,
    )
    try:
        inner = Session(profile=config.profile)
        inner.register_component("data_loader", _load_models())
        for variable in ("config_file", "credentials_file"):
            if (path := getattr(config, variable)) is not None:
                inner.set_config_variable(variable, path)
        session = boto3.Session(botocore_session=inner, region_name=config.region)
        services = ("autoscaling", "ec2", "ec2-instance-connect")
        return {each: session.client(each, endpoint_url=config.endpoint_url, config=limits) for each in services}
    except (BotoCoreError, ValueError) as error:
        raise GroupRefused(f"{config.name} cannot be queried: {error}; correct plugin_config") from error
