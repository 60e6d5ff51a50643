"""What keeps a job from running: each with one clear sentence."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from attrs import evolve

from executor_docker import DockerError, PullPolicy, Service
from fleeting import Connection, LoopClock, Settings, Unsupported
from fleeting_docker import DockerGroup, DockerGroupConfig, _image
from fleeting_docker_engine import Entry
from taskscaler.executors import Verdict
from tests.executor_docker.benches import Bench, bench_on
from tests.fleeting.sshd import dialled
from tests.fleeting_docker_engine.daemons import IMAGE, Daemon
from tests.taskscaler.leased import Slot

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
async def bench(docker: Daemon, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance."""
    async with bench_on(docker, tmp_path) as bench:
        yield bench


async def refusal(bench: Bench, script: str = "true", **given: Any) -> str:  # noqa: ANN401
    """Try to run a job that cannot be run; returns why, with the instance's name cut short."""
    with pytest.raises(DockerError) as error:
        await bench.run(script, **given)
    said = str(error.value)
    assert "\n" not in said
    return said.replace(bench.slot.instance, "i-1")


@pytest.mark.parametrize(
    ("options", "config", "why"),
    [
        (
            {"image": "evil/miner:1"},
            {},
            "the job may not use the image evil/miner:1; to allow it, add it to allowed_images in [executors.docker]",
        ),
        (
            {"volumes": ("/:/host",)},
            {"allowed_volumes": ("/srv/*",)},
            (
                "the job may not use the directory of the instance /; to allow it,"
                " add it to allowed_volumes in [executors.docker]"
            ),
        ),
        (
            {"volumes": ("/srv/../etc:/host",)},
            {"allowed_volumes": ("/srv/*",)},
            (
                "the job may not use the directory of the instance /etc; to allow it, add it to allowed_volumes in"
                " [executors.docker]"
            ),
        ),
        (
            {"volumes": ("nosuch:/data",)},
            {"allowed_volumes": ("*",)},
            "the volume nosuch cannot be used on i-1: get nosuch: no such volume",
        ),
        (
            {"volumes": ("/nosuch/here:/data",)},
            {"allowed_volumes": ("*",)},
            (
                'the job\'s container cannot be made on i-1: invalid mount config for type "bind": bind source path'
                " does not exist: /nosuch/here"
            ),
        ),
        (
            {"image": "taskscaler-test/nosuch:1"},
            {"allowed_images": ("taskscaler-test/*",), "pull_policy": ()},
            "i-1 does not have the image taskscaler-test/nosuch:1, and pull_policy is never",
        ),
        (
            {"services": ({"image": IMAGE, "health": "false", "health_timeout": 1.0},)},
            {"network": "job", "allowed_services": ("taskscaler-test/*",)},
            f"the service busybox ({IMAGE}) did not become healthy within 1s; its log is above",
        ),
    ],
    ids=["image", "bind", "detour", "no volume", "no directory", "no image", "unhealthy"],
)
async def test_what_keeps_a_job_from_running_is_told_in_one_sentence(
    bench: Bench, options: dict[str, Any], config: dict[str, Any], why: str
) -> None:
    """What was found and, where something can be done about it, what."""
    if "services" in options:
        command = ("/bin/sh", "-c", "echo starting; sleep 1000")
        options = {"services": tuple(Service(**each, command=command) for each in options["services"])}
    if "pull_policy" in config:
        config = {**config, "pull_policy": (PullPolicy.NEVER,)}
    assert await refusal(bench, options=options, config=config) == why
    assert ("starting" in bench.said) == ("services" in options)


async def test_an_instance_without_a_daemon_is_told_from_one_that_may_not_be_used(bench: Bench) -> None:
    """There is no socket; it is no socket; nobody listens at it; each has another remedy."""
    place = bench.directory / "docker.sock"
    none = f"there is no Docker daemon's socket {place} on i-1; start dockerd there, or set socket"
    assert await refusal(bench, config={"socket": str(place)}) == none
    place.touch()
    wrong = f"{place} on i-1 is not a socket; set socket in [executors.docker]"
    assert await refusal(bench, config={"socket": str(place)}) == wrong
    place.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(place))
    dead_one = f"the Docker daemon on i-1 is not running: nothing answers at {place}; start it"
    assert await refusal(bench, config={"socket": str(place)}) == dead_one


async def test_a_user_who_may_not_use_the_socket_is_told(docker: Daemon, tmp_path: Path) -> None:
    """He is logged in over SSH, on an instance where the socket is root's."""
    entries, links = await _image.own_root_file_system()
    entries["etc/passwd"] = Entry((entries["etc/passwd"].content or b"") + b"ci:x:1000:1000::/:/bin/sh\n")
    async with docker.engine() as engine:
        image = await _image._make(engine, "with-a-user", _image._with_links(entries, links))
    name = f"test-{uuid4().hex[:8]}"
    volumes = (f"{docker.socket}:/var/run/docker.sock",)
    config = DockerGroupConfig(name=name, socket=docker.socket, image=image, user="ci", volumes=volumes)
    group = DockerGroup(config)
    await group.init(Settings(owner="test", clock=LoopClock()))
    try:
        await group.increase(1, intent="a")
        (instance,) = (await group.update()).instances
        info = await group.connect_info(instance)
        bench = Bench(docker, Slot(instance, lambda: dialled(info)), tmp_path)
        said = await refusal(bench, config={"socket": "/var/run/docker.sock"})
    finally:
        await group.decrease([*(await group.update()).instances])
    remedy = "make the user a member of its group (docker)"
    assert said == f"the user of the connection may not use /var/run/docker.sock on i-1; {remedy}"


async def test_whoever_answers_must_be_a_docker_daemon(bench: Bench) -> None:
    """Something else that listens there is told of as such."""
    place = bench.directory / "other.sock"

    async def answer(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"220 mail.example ESMTP\r\n")

    async with await anyio.create_unix_listener(place) as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        said = await refusal(bench, config={"socket": str(place)})
        tasks.cancel_scope.cancel()
    assert said == f"the Docker daemon on i-1 is not running: nothing answers at {place}; start it"


async def test_a_full_disk_is_told_as_such(bench: Bench) -> None:
    """The job's files do not fit where they are to go: a volume of one megabyte."""
    big = bench.directory / "big"
    big.write_bytes(bytes(3 << 20))
    async with bench.docker.engine() as engine:
        options = {"type": "tmpfs", "device": "tmpfs", "o": "size=1m"}
        await engine.ask("POST", "/volumes/create", json={"Name": "test-small", "DriverOpts": options})
    try:
        said = await refusal(
            bench,
            files={"big": big},
            options={"volumes": ("test-small:/job",)},
            config={"allowed_volumes": ("test-small",)},
        )
    finally:
        await bench.remove_volume("test-small")
    assert said == "the disk of i-1 is full: the job's files cannot be uploaded; make room there, or remove images"


async def test_a_command_that_is_not_found_is_told(bench: Bench) -> None:
    """In a script, as an interpreter, and as an entrypoint: the job has run, and failed."""
    for script, entrypoint in (("nosuchcommand", ()), ("#!/no/such\n", ()), ("true", ("/no/such/entrypoint",))):
        outcome = await bench.run(script, options={"entrypoint": entrypoint})
        why = "exited with 127: a command was not found; see the log for which"
        assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 127, why)
    assert "nosuchcommand: not found" in bench.said


@pytest.mark.parametrize("init", [True, False])
async def test_an_image_without_a_shell_is_told(bench: Bench, init: bool) -> None:  # noqa: FBT001
    """Whoever it is that cannot start it: Docker's init, or Docker."""
    await bench.import_empty("taskscaler-test/empty", "1")
    options, config = {"image": "taskscaler-test/empty:1", "init": init}, {"allowed_images": ("taskscaler-test/*",)}
    if init:
        outcome = await bench.run("true", options=options, config=config)
        why = "the command /bin/sh was not found in the image taskscaler-test/empty:1; use one that has a shell"
        assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 127, why)
    else:
        said = await refusal(bench, options=options, config=config)
        assert said.startswith("the job's container cannot be run on i-1: ")
        assert 'exec: "/bin/sh": stat /bin/sh: no such file or directory' in said


async def test_without_tunnels_a_command_on_the_instance_leads_to_the_daemon(bench: Bench) -> None:
    """Docker's own client passes the stream on."""

    class NoTunnels:
        def __init__(self, connection: Connection) -> None:
            self.run = connection.run

        async def open_unix(self, path: str) -> None:
            raise Unsupported("no tunnels")

    @asynccontextmanager
    async def dial() -> AsyncIterator[Any]:
        async with bench.slot.dial() as connection:
            yield NoTunnels(connection)

    without = evolve(bench, slot=Slot(bench.slot.instance, dial))
    outcome = await without.run("head -c 300000 /dev/zero; exit 3")
    assert (outcome.exit_code, len(bench.output.data)) == (3, 300_000)
    said = await refusal(without, config={"stdio_command": ("/bin/sh", "-c", "echo no such thing >&2; exit 5")})
    remedy = "install that command there, or set stdio_command"
    assert said == f"no way to reach the Docker daemon on i-1: /bin/sh exited with 5: no such thing; {remedy}"
