"""Docker's command as far as steps in containers use it, with an engine that is a directory, for fast tests.

An image is a file that says how its containers behave; a container is a process of this host, with a file that names
it for as long as it is there. What is said, and how the command ends, is as Docker 28.2 has it, which
`tests/job_steps/test_containers_on_docker.py` compares; of what it does, isolation is missing.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

AGENT = "/.job-steps/agent.pyz"

FLOOD = "head -c 40000000 /dev/zero | tr '\\0' x"
SH_IS_MISSING = (
    "docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime"
    " create failed: runc create failed: unable to start container process: error during container init: exec:"
    ' "/bin/sh": stat /bin/sh: no such file or directory: unknown\n\n'
    "Run 'docker run --help' for more information\n"
)


def main(engine: Path, command: str, *arguments: str) -> int:
    """Do what is asked for; returns the exit status."""
    if not engine.exists():
        sys.stderr.write(
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n"
        )
        return 1
    if command == "info":  # whether it can limit memory
        sys.stdout.write(f"{(engine / 'info').read_text() if (engine / 'info').exists() else 'true'}\n")
        return 0
    if (engine / "warns").exists():
        sys.stderr.write("WARNING: Error loading config file: /config.json: permission denied\n")
    if (engine / "hangs").exists():
        signal.pause()
    if command in (engine / "refuses").read_text().split() if (engine / "refuses").exists() else ():
        sys.stderr.write("Error response from daemon: context deadline exceeded\n")
        return 1
    commands = {"cp": _copy, "create": _create, "image": _inspect, "ps": _list, "pull": _pull, "rm": _remove_all}
    return commands.get(command, _run)(engine, [*arguments])


def _pull(_: Path, arguments: list[str]) -> int:
    sys.stderr.write(f"Error response from daemon: pull access denied for {arguments[-1]}\n")
    return 1


def _list(engine: Path, arguments: list[str]) -> int:
    wanted = arguments[-1].removeprefix("label=")
    for file in (engine / "containers").iterdir():
        if json.loads(file.read_text())["label"] == wanted:
            sys.stdout.write(f"{_id(file.name)}\n")
    return 0


def _id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _copy(engine: Path, arguments: list[str]) -> int:
    """Copy the files of a container's image into a directory, or write them as an archive."""
    name = arguments[0].partition(":")[0]
    image = json.loads((engine / "containers" / name).read_text())["image"]
    (found,) = (each for each in (engine / "images").iterdir() if f"sha256:{_id(each.name)}" == image)
    files = engine / "files" / found.name
    if arguments[1] == "-":
        with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
            archive.add(files, "")
    else:
        shutil.copytree(files, arguments[1], symlinks=True, dirs_exist_ok=True)
    return 0


def _remove_all(engine: Path, arguments: list[str]) -> int:
    for name in arguments:
        _remove(engine, name)
    return 0


def _inspect(engine: Path, arguments: list[str]) -> int:
    image = arguments[-1]
    if (engine / "images" / _file(image)).exists():
        sizes = engine / "sizes" / _file(image)
        sys.stdout.write(f"sha256:{_id(_file(image))} {sizes.read_text() if sizes.exists() else 1}\n")
        return 0
    sys.stderr.write(f"[]\nError response from daemon: No such image: {image}\n")
    return 1


def _create(engine: Path, arguments: list[str]) -> int:
    """Make a container that is not started."""
    name, label = (arguments[arguments.index(option) + 1] for option in ("--name", "--label"))
    record = {"process": 0, "label": label, "image": arguments[-2]}
    (engine / "containers" / name).write_text(json.dumps(record))
    return 0


def _remove(engine: Path, name: str) -> None:
    files = (engine / "containers").iterdir()
    for file in [each for each in files if name in (each.name, _id(each.name))]:
        if process := json.loads(file.read_text())["process"]:
            os.killpg(process, signal.SIGKILL)
        file.unlink()


def _run(engine: Path, arguments: list[str]) -> int:
    """Run a container: what its image does with the command."""
    options: dict[str, list[str]] = {}
    while arguments[0].startswith("--"):
        option = arguments.pop(0)
        flag = option in ("--rm", "--init", "--interactive")
        options.setdefault(option, []).append("" if flag else arguments.pop(0))
    image, *command = arguments
    behaviour = (engine / "images" / _file(image)).read_text()
    (mount,) = (each for each in options["--mount"] if f"target={AGENT}," in each)
    agent = mount.removeprefix("type=bind,source=").split(",")[0]
    with (engine / "made").open("a") as made:
        made.write(json.dumps({"image": image, **options}) + "\n")
    env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    whole = ["/bin/sh", *(each.replace(AGENT, agent) for each in command)]
    if behaviour == "has no sh":
        sys.stderr.write(SH_IS_MISSING)
        return 127
    if behaviour == "has no Python":
        env["PATH"] = "/nonexistent"
    elif behaviour == "dies midway":
        env["DIES"] = "1"
    elif behaviour != "works":
        whole = ["/bin/sh", "-c", behaviour]
    work_dir = options["--workdir"][0]
    with subprocess.Popen(whole, env=env, cwd=work_dir, start_new_session=True) as process:
        (name,), (label,) = options["--name"], options["--label"]
        record = engine / "containers" / name
        record.write_text(json.dumps({"process": process.pid, "label": label}))
        code = process.wait()
        record.unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


def _file(image: str) -> str:
    return image.replace("/", "+")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
