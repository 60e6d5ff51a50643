"""Mutants by kind: resources, calls at once, troubles in every call, sizes, values, changes, secrets, objects, loops.

Each is a fault that plugins of clouds have had, such as a cache that never expires, a limit on the number of ids in one
request, or a lock that belongs to the event loop of its first use.
"""
# ruff: noqa: ANN401, D102, D107  (what a mutant's methods are for stands in what they are mutants of)

import logging
import os
import socket
import subprocess
from contextlib import suppress
from threading import Timer
from urllib.parse import urlsplit

from fleeting_puddle import Group

from fleeting import (
    AuthFailed,
    ConnectInfo,
    GroupInfo,
    Observation,
    Settings,
)
from tests.conformance.mutants._table import CHILDREN, GHOSTS, OPEN, found_by

# --- resources ------------------------------------------------------------------------------------------


async def _connect(group: Group) -> socket.socket:
    """Open a connection to the cloud."""
    url = urlsplit(group._config.url)
    opened = await group._cloud._offload(socket.create_connection, (url.hostname or "", url.port or 0), 1)
    OPEN.append(opened)
    return opened


@found_by("calls_release_what_they_took")
class OneEachTime(Group):
    """Opens a connection for each heartbeat, and closes only the last of them."""

    async def heartbeat(self, instance: str) -> None:
        self.connection = await _connect(self)
        await super().heartbeat(instance)

    async def shutdown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()


@found_by("calls_release_what_they_took")
class ClosesOnSuccess(Group):
    """Closes the connection of a call only if the call succeeds."""

    async def connect_info(self, instance: str) -> ConnectInfo:
        connection = await _connect(self)
        info = await super().connect_info(instance)
        connection.close()
        return info


@found_by("calls_release_what_they_took")
class Spawner(Group):
    """Starts a thread for each view, which nobody ends, under the name of the pool's."""

    async def update(self) -> Observation:
        ghost = Timer(60, lambda: None)
        ghost.name, ghost.daemon = "AnyIO worker thread", True
        ghost.start()
        GHOSTS.append(ghost)
        return await super().update()


@found_by("openings_add_nothing_up")
class OneSocketMore(Group):
    """Leaves one of its connections open if it cannot be opened because of its credentials."""

    async def init(self, settings: Settings) -> GroupInfo:
        connection = await _connect(self)
        with suppress(AuthFailed):
            info = await super().init(settings)
            connection.close()
            return info
        raise AuthFailed("the token is refused")


@found_by("openings_add_nothing_up")
class Zombies(Group):
    """Runs a command when it is closed, and does not wait for its end."""

    async def shutdown(self) -> None:
        CHILDREN.append(subprocess.Popen(["/bin/true"]))  # noqa: ASYNC220  (that is what is wrong with it)


@found_by("process_is_left_as_it_was")
class Householder(Group):
    """Sets the default time-out of all sockets of the program."""

    async def init(self, settings: Settings) -> GroupInfo:
        socket.setdefaulttimeout(30)
        return await super().init(settings)


@found_by("process_is_left_as_it_was")
class Exporter(Group):
    """Puts its settings into the environment, where its SDK finds them."""

    async def init(self, settings: Settings) -> GroupInfo:
        os.environ["PUDDLE_URL"] = self._config.url
        return await super().init(settings)


@found_by("process_is_left_as_it_was")
class Configurator(Group):
    """Sets up logging for the whole program."""

    async def update(self) -> Observation:
        logging.getLogger().setLevel(logging.INFO + 1)
        return await super().update()
