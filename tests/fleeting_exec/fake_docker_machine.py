"""What ``docker-machine`` 0.16 does, as far as `fleeting_docker_machine` sees it.

Its command line, its store in ``$MACHINE_STORAGE_PATH``, its messages and where they go, its exit statuses. The cloud
of its driver ``fake`` is the directory ``$FAKE_CLOUD``, with a file for each virtual machine, by an id of its own; what
goes wrong there is told by files in ``$FAKE_TROUBLE``.

Sources: docker/machine, commands/{create,inspect,ls,rm}.go, libmachine/{libmachine,persist/filestore}.go.
"""

# ruff: noqa: T201  (it is a command)

import argparse
import json
import os
import re
import sys
import uuid
from pathlib import Path
from typing import Any, NoReturn

STORE = Path(os.environ["MACHINE_STORAGE_PATH"])
CLOUD = Path(os.environ["FAKE_CLOUD"])
TROUBLE = Path(os.environ["FAKE_TROUBLE"])

Host = dict[str, Any]


def main() -> None:
    """Parse as codegangsta/cli does, and go."""
    parser = argparse.ArgumentParser(prog="docker-machine")
    commands = parser.add_subparsers(required=True)
    for name, run in {"create": create, "ls": ls, "inspect": inspect, "ip": ip, "rm": rm}.items():
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        if name == "create":
            command.add_argument("-d", "--driver", default="virtualbox")
            command.add_argument("--fake-region", default="nowhere")
            command.add_argument("--fake-access-token")
            command.add_argument("--engine-opt", action="append")
        if name == "ls":
            command.add_argument("-f", "--format", required=True)
            command.add_argument("--filter", default="")
            command.add_argument("-t", "--timeout", type=int, default=10)
        else:
            command.add_argument("name")
        if name == "rm":
            command.add_argument("-y", action="store_true")
            command.add_argument("-f", "--force", action="store_true")
    arguments = parser.parse_args()
    arguments.run(arguments)


def create(arguments: argparse.Namespace) -> None:
    """Save the host, have the driver create it, save it again; only then the id of its machine is known."""
    name = arguments.name
    if arguments.driver != "fake":
        fail(f'Driver "{arguments.driver}" not found. Do you have the plugin binary accessible in your PATH?')
    if not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9\-.]*", name):
        fail("Error creating machine: Invalid hostname specified. Allowed hostname chars are: 0-9a-zA-Z . -")
    if (STORE / "machines" / name).exists():
        fail(f'Docker machine "{name}" already exists')
    print("Running pre-create checks...")
    if message := trouble("pre-create"):
        fail(f'Error with pre-create check: "{message}"', 3)
    driver = {
        "IPAddress": "",
        "MachineName": name,
        "SSHUser": "ubuntu",
        "SSHPort": 22,
        "SSHKeyPath": "",
        "StorePath": str(STORE),
        "InstanceId": "",
        "Region": arguments.fake_region,
    }
    host = {"ConfigVersion": 3, "Driver": driver, "DriverName": "fake", "HostOptions": {}, "Name": name}
    save(host)
    print("Creating machine...", flush=True)
    if message := trouble("create"):
        fail(f"Error creating machine: Error in driver during machine creation: {message}")
    driver["InstanceId"] = f"vm-{uuid.uuid4().hex[:8]}"
    vm(host).write_text("Running")
    (STORE / "machines" / name / "id_rsa").write_text("the key")
    driver["IPAddress"] = "192.0.2.7"
    save(host)
    print("Waiting for machine to be running, this may take a few minutes...")
    if message := trouble("provision"):
        fail(f"Error creating machine: Error running provisioning: {message}")
    print("Docker is up and running!")


def ls(arguments: argparse.Namespace) -> None:
    """Hosts that can be loaded, filtered, then those that cannot, whatever the filter."""
    names = sorted(path.name for path in (STORE / "machines").glob("*") if path.is_dir())
    loaded = {name: host for name in names if (host := load(name))}
    wanted = arguments.filter.removeprefix("name=")
    rows = [(name, state(host)) for name, host in loaded.items() if re.search(wanted, name)]
    rows += [(name, "Error") for name in names if name not in loaded]
    for name, current in rows:
        row = arguments.format.replace(r"\t", "\t").replace(r"\n", "\n")
        print(row.replace("{{.Name}}", name).replace("{{.State}}", current))


def inspect(arguments: argparse.Namespace) -> None:
    """The host as it is stored."""
    print(json.dumps(existing(arguments.name), indent=4))


def ip(arguments: argparse.Namespace) -> None:
    """What the driver says."""
    print(existing(arguments.name)["Driver"]["IPAddress"] or "192.0.2.8")


def rm(arguments: argparse.Namespace) -> None:
    """Remove it at the cloud, then from the store; without an id there is nothing to remove at the cloud."""
    print(
        f"About to remove {arguments.name}\nWARNING: This action will delete both local reference and remote instance."
    )
    if not (arguments.y or arguments.force):
        fail("Error: cannot ask for a confirmation")
    host = load(arguments.name)
    if host is None and not (STORE / "machines" / arguments.name).exists():
        fail(f'Can\'t remove "{arguments.name}"')
    message = trouble("rm") if host else "unexpected end of JSON input"
    if message and not arguments.force:
        print(f'Error removing host "{arguments.name}": {message}', file=sys.stderr)
        sys.exit(0 if trouble("old-release") else 1)
    if host and host["Driver"]["InstanceId"]:
        vm(host).unlink(missing_ok=True)
    for path in (STORE / "machines" / arguments.name).iterdir():
        path.unlink()
    (STORE / "machines" / arguments.name).rmdir()
    print(f"Successfully removed {arguments.name}")


def state(host: Host) -> str:
    """What the driver says; an address is enough for a running machine."""
    if trouble("state"):
        return "Error" if host["Driver"]["InstanceId"] else ""
    if not host["Driver"]["InstanceId"]:
        return "Error"
    return vm(host).read_text() if vm(host).exists() else "Error"


def vm(host: Host) -> Path:
    """The machine at the cloud."""
    return CLOUD / str(host["Driver"]["InstanceId"])


def save(host: Host) -> None:
    """Write it into the store."""
    directory = STORE / "machines" / str(host["Name"])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(host))


def load(name: str) -> Host | None:
    """Read it from the store; None if it is not there or cannot be read."""
    try:
        host: Host = json.loads((STORE / "machines" / name / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return host


def existing(name: str) -> Host:
    """Read it, or fail as Docker Machine does."""
    host = load(name)
    if host is None:
        fail(
            f'Docker machine "{name}" does not exist. Use "docker-machine ls" to list machines.'
            ' Use "docker-machine create" to add a new one.'
        )
    return host


def trouble(stage: str) -> str:
    """What goes wrong at a stage; empty if nothing does."""
    path = TROUBLE / stage
    return path.read_text() if path.exists() else ""


def fail(message: str, code: int = 1) -> NoReturn:
    """Say it where Docker Machine says it."""
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
