"""The settings of the `azure` group."""

from urllib.parse import urlsplit

import attrs
from attrs import field, frozen
from attrs.validators import gt, le, min_len, optional

from fleeting import Duration

LONGEST_ANSWER = 60.0
"""Seconds; the manager gives up on a view after 120."""


def _is_https(_: object, __: "attrs.Attribute[str]", value: str) -> None:
    url = urlsplit(value)
    if url.scheme != "https" or not url.netloc or url.path.strip("/"):
        raise ValueError('an https address without a path, such as "https://management.azure.com"')


@frozen(kw_only=True)
class AzureConfig:
    """What ``plugin_config`` may say for ``plugin = "azure"``; the first three are those of GitLab's plugin."""

    name: str = field(validator=min_len(1))
    """The scale set."""

    subscription_id: str = field(validator=min_len(1))
    """The subscription that the scale set is in."""

    resource_group_name: str = field(validator=min_len(1))
    """The resource group that the scale set is in."""

    client_id: str | None = field(default=None, validator=optional(min_len(1)))
    """Which user-assigned managed identity to be. None: the default credential chain's own choice."""

    endpoint: str = field(default="https://management.azure.com", validator=_is_https)
    """The resource manager, for other clouds than the public one."""

    ca_file: str | None = field(default=None, validator=optional(min_len(1)))
    """Certificates, as PEM, by which the endpoint is known. None: those that Python's ``requests`` trusts."""

    owner_mark: bool = False
    """Whether managers mark the scale set, by a tag: they then exclude each other, and what one that has died leaves
    behind can be removed."""

    timeout: Duration = field(default=30.0, validator=[gt(0), le(LONGEST_ANSWER)])
    """Seconds that Azure has for one answer."""
