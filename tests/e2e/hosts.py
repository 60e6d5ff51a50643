"""Hosts with OpenSSH's own server, as a fleet of fixed hosts."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from getpass import getuser
from pathlib import Path

from fleeting.connectors.ssh import generate_key
from tests.fleeting.sshd import Server, private, sshd


@contextmanager
def running(directory: Path, number: int) -> Iterator[Sequence[Server]]:
    """Run so many, each with a home of its own, and one key for all of them."""
    user_key = generate_key()
    private(directory / "key", user_key.private)
    with ExitStack() as stack:
        servers = []
        for each in range(number):
            home = directory / f"home-{each}"
            home.mkdir()
            settings = f'SetEnv HOME={home} SHLVL=5\nForceCommand cd {home} && eval "$SSH_ORIGINAL_COMMAND"'
            servers.append(stack.enter_context(sshd(directory / f"sshd-{each}", settings, user_key=user_key)))
        yield servers


def plugin_config(directory: Path, hosts: Sequence[Server]) -> str:
    """Write the tables that follow ``plugin = "static"``, at the end of a file."""
    lines = [
        "[autoscaler.plugin_config]",
        f'state_dir = "{directory}/taken"',
        f'username = "{getuser()}"',
        f'key_path = "{directory}/key"',
    ]
    for number, host in enumerate(hosts):
        lines += ["[[autoscaler.plugin_config.hosts]]", f'name = "host-{number}"', 'address = "127.0.0.1"']
        lines += [f"port = {host.port}", f'host_key = "{host.host_key}"']
    return "\n".join(lines)
