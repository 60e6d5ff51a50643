"""A registry of our own on loopback: Debian's ``docker-registry``."""

import base64
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import bcrypt
from attrs import frozen

from fleeting_docker_engine import Engine
from tests.fleeting.sshd import free_port, private
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.needs import find_program, need

USER = "robot"
PASSWORD = "hunter2"


@frozen
class Registry:
    """A registry that runs, and lets in who knows the password."""

    host: str

    @property
    def image(self) -> str:
        """The tests' image, as it is named there."""
        return f"{self.host}/{IMAGE}"

    async def push(self, engine: Engine) -> None:
        """Put the tests' image there, and forget the name on the daemon."""
        repository, _, tag = self.image.rpartition(":")
        await engine.ask("POST", f"/images/{IMAGE}/tag", query={"repo": repository, "tag": tag})
        login = json.dumps({"username": USER, "password": PASSWORD, "serveraddress": self.host}).encode()
        headers = [("X-Registry-Auth", base64.urlsafe_b64encode(login).decode())]
        await engine.progress("POST", f"/images/{repository}/push", query={"tag": tag}, headers=headers)
        await self.forget(engine)

    async def forget(self, engine: Engine) -> None:
        """Take the name from the daemon."""
        with suppress(Exception):
            await engine.ask("DELETE", f"/images/{self.image}")


@contextmanager
def registry(directory: Path, docker: Daemon) -> Iterator[Registry]:
    """Run a registry with the tests' image in it."""
    need("docker-registry")
    program = str(find_program("docker-registry"))
    port = free_port()
    secret = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(rounds=4)).decode()
    htpasswd = private(directory / "htpasswd", f"{USER}:{secret}\n")
    config = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(directory / "images")}},
        "http": {"addr": f"127.0.0.1:{port}"},
        "auth": {"htpasswd": {"realm": "test", "path": str(htpasswd)}},
    }
    settings = private(directory / "config.yml", json.dumps(config))
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen([program, "serve", str(settings)], stdout=log, stderr=log) as process,
    ):
        try:
            anyio.run(_listens, port)
            running = Registry(f"127.0.0.1:{port}")
            docker.use(running.push)
            yield running
        finally:
            process.kill()


async def _listens(port: int) -> None:
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        await anyio.sleep(0.02)
