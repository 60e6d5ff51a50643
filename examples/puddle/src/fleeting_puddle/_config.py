"""The settings, as they stand under ``plugin_config``."""

from attrs import field, frozen
from fleeting import Duration


@frozen(kw_only=True)
class Config:
    """Which pool of instances, and how to reach the cloud's API."""

    url: str
    pool: str
    token: str = field(repr=False)

    timeout: Duration = 10.0
    """Seconds that the cloud has for an answer."""
