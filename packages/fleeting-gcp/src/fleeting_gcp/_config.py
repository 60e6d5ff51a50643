"""The settings of the `googlecloud` group."""

from urllib.parse import urlsplit

import attrs
from attrs import field, frozen
from attrs.validators import gt, min_len, optional

from fleeting import Duration


def _is_safe(_: object, __: "attrs.Attribute[str]", value: str) -> None:
    url = urlsplit(value if "//" in value else f"https://{value}")
    if not url.netloc or not (url.scheme == "https" or (url.scheme == "http" and url.hostname in HERE)):
        raise ValueError('an https address such as "https://compute.googleapis.com"')


HERE = ("127.0.0.1", "::1", "localhost")
"""Where tokens may be sent in plain text."""


@frozen(kw_only=True)
class GcpConfig:
    """What ``plugin_config`` may say for ``plugin = "googlecloud"``."""

    name: str = field(validator=min_len(1))
    """The managed instance group."""

    project: str = field(validator=min_len(1))
    """The project's id."""

    zone: str | None = field(default=None, validator=optional(min_len(1)))
    """Where a zonal group is, such as ``europe-west1-b``."""

    region: str | None = field(default=None, validator=optional(min_len(1)))
    """Where a regional group is, such as ``europe-west1``."""

    credentials_file: str | None = field(default=None, validator=optional(min_len(1)))
    """A service account's key, or another of Google's files of credentials. None: the application default ones."""

    impersonate_service_account: str | None = field(default=None, validator=optional(min_len(1)))
    """The address of the service account to act as, by way of the credentials."""

    endpoint: str | None = field(default=None, validator=optional(_is_safe))
    """The URL of the Compute Engine API, where it is not the public one."""

    owner_mark: bool = False
    """Whether managers mark the group, in its configuration for all instances: they then exclude each other, and what
    one that has died leaves behind can be removed."""

    timeout: Duration = field(default=20.0, validator=gt(0))
    """Seconds that the API has for an answer."""

    def __attrs_post_init__(self) -> None:
        """Check that it is said, once, where the group is."""
        if (self.zone is None) == (self.region is None):
            raise ValueError("either zone, for a zonal group, or region, for a regional one")

    @property
    def place(self) -> dict[str, str]:
        """Where the group is, as requests have it."""
        return {"project": self.project, **({"zone": self.zone} if self.zone else {"region": self.region or ""})}

    @property
    def path(self) -> str:
        """The group's name as a resource."""
        return "/".join(f"{kind}s/{name}" for kind, name in self.place.items()) + f"/instanceGroupManagers/{self.name}"
