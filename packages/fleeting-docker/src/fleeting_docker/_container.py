"""An instance, as the API makes and shows it. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from fleeting import Observed, State
from fleeting_docker._config import DockerGroupConfig
from fleeting_docker_engine import Entry, Listed, tar_of

GROUP = "fleeting.group"
INTENT = "fleeting.intent"
OWNER = "fleeting.owner"
HOST_KEY = "fleeting.host-key"

DIRECTORY = "etc/fleeting"
USER_KEY = f"/{DIRECTORY}/user_key"

DIGITS = 12
"""Hexadecimal digits behind the group's name in the name of an instance."""

START_WITHIN = 60.0
"""Seconds after which an instance that was made and not started never will be: its manager was killed in between."""

SSH = "22/tcp"

_SETTINGS = f"""
Port 22
HostKey /{DIRECTORY}/host_key
AuthorizedKeysFile /{DIRECTORY}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PidFile none
MaxSessions 1000
MaxStartups 1000
AllowTcpForwarding yes
AllowStreamLocalForwarding yes
"""


@frozen(kw_only=True)
class Keys:
    """What an instance is known by, and what lets us in: both its own."""

    host_private: str = field(repr=False)
    host_public: str
    user_private: str = field(repr=False)
    user_public: str


def body(config: DockerGroupConfig, image: str, keys: Keys, *, intent: str, owner: str) -> dict[str, Any]:
    """Describe an instance's container."""
    return {
        "Image": image,
        "Entrypoint": [config.sshd, "-D", "-e", "-f", f"/{DIRECTORY}/sshd_config"],
        "Cmd": [],
        "User": "0",
        "Labels": {GROUP: config.name, INTENT: intent, OWNER: owner, HOST_KEY: keys.host_public},
        "ExposedPorts": {SSH: {}},
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "Binds": [*config.volumes],
            "Init": True,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
            "NetworkMode": config.network,
            "PortBindings": {SSH: [{"HostIp": config.address, "HostPort": ""}]},
            **({"Memory": config.memory, "MemorySwap": config.memory} if config.memory else {}),
            **({"NanoCpus": int(config.cpus * 1e9)} if config.cpus else {}),
        },
    }


def files(keys: Keys) -> bytes:
    """Make the archive of what an instance needs beside its image.

    The key that lets us in is in the instance too: whoever may read it there, or may ask the daemon for it, could get
    in without it. So nothing need be remembered on the manager.
    """
    entries = {
        DIRECTORY: Entry(mode=0o755),
        f"{DIRECTORY}/sshd_config": Entry(_SETTINGS.encode()),
        f"{DIRECTORY}/host_key": Entry(keys.host_private.encode(), mode=0o600),
        f"{DIRECTORY}/authorized_keys": Entry(f"{keys.user_public}\n".encode()),
        USER_KEY.lstrip("/"): Entry(keys.user_private.encode(), mode=0o600),
        "run/sshd": Entry(mode=0o755),
    }
    return tar_of(entries)


def is_instance(name: str, labels: Mapping[str, str], group: str) -> bool:
    """Whether a container is one that the group has made.

    Labels alone prove nothing: an image can have them, and so can a container that somebody runs for another purpose.
    """
    named = re.fullmatch(rf"{re.escape(group)}-[0-9a-f]{{{DIGITS}}}", name) is not None
    return named and labels.get(GROUP) == group and all(labels.get(label) for label in (OWNER, HOST_KEY))


def name_of(listed: Listed) -> str:
    """The id of an instance: its container's name, which is never used twice."""
    return listed.names[0].removeprefix("/") if listed.names else listed.id


def observed(listed: Listed, now: float) -> Observed:
    """See one instance, as the API lists it."""
    return Observed(
        state=state_of(listed.state, now - listed.created),
        created_at=listed.created,
        intent=listed.labels.get(INTENT) or None,
    )


def state_of(status: str, age: float) -> State:
    """Translate a state; one that the API does not have yet is none to rely on."""
    match status:
        case "created":
            return State.CREATING if age < START_WITHIN else State.FAILED
        case "running" | "restarting":
            return State.RUNNING
        case "paused":
            return State.SUSPENDED
        case "removing":
            return State.DELETING
        case _:  # exited, dead
            return State.FAILED
