"""The settings under ``plugin_config``."""

from attrs import field, frozen
from fleeting import Duration


@frozen(kw_only=True)
class Config:
    """Which pool to manage, and how to reach the cloud's API."""

    url: str
    pool: str
    token: str = field(repr=False)

    timeout: Duration = 10.0
    """Seconds to wait for an answer."""
