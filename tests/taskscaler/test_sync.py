"""The façade for threads: the same scaler, real agents, and nothing that gets stuck or lost."""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from anyio.lowlevel import cancel_shielded_checkpoint

import taskscaler
from fleeting import CommandFailed, GroupRefused, Unreachable, load
from fleeting.errors import CopyFailed, PortTaken
from fleeting.events import LossKind
from taskscaler import (
    KeyInUse,
    LeaseLost,
    NoCapacity,
    NoSuchInstance,
    NotDetached,
    NotSuspended,
    Policy,
    Pool,
    TaskscalerError,
)
from taskscaler.sync import Taskscaler
from taskscaler.sync._portal import Portal
from tests.fleeting import local_agents
from tests.time_limits import NEVER_REACHED


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run on both event loops."""
    name: str = request.param
    monkeypatch.setattr(Taskscaler, "backend", name)
    return name


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    """A pool of agents, two slots on each."""
    return a_pool(tmp_path, capacity_per_instance=2, max_instances=2)


@pytest.fixture
def scaler(backend: str, pool: Pool) -> Iterator[Taskscaler]:  # noqa: ARG001  (sets where it runs)
    """An open scaler."""
    with Taskscaler(pool, acquire_timeout=NEVER_REACHED, delete_instances_on_shutdown=True) as scaler:
        yield scaler


def a_pool(directory: Path, **settings: Any) -> Pool:  # noqa: ANN401
    """A pool of agents that live in a directory of their own."""
    group = load("local", {"directory": str(directory / "group")})
    return Pool(group, update_interval_when_expecting=0.02, shutdown_deletion_interval=0.1, **settings)


def kill(directory: Path, instance: str) -> None:
    """Kill an instance's agent."""
    local_agents.kill(local_agents.agent_of(directory / "group", instance))


def test_a_script_runs_commands_on_an_instance(scaler: Taskscaler) -> None:
    """Slots, connections and results are those of the asynchronous scaler."""
    with scaler.acquire("job") as lease, lease.dial() as connection:
        assert (lease.key, lease.pool, lease.slot, lease.loss) == ("job", "default", 0, None)
        assert lease.connect_info().id == lease.instance
        done = connection.run("cat; echo $A; pwd", stdin=b"in\n", env={"A": "a"}, cwd="/", check=True)
        assert done.stdout == b"in\na\n/\n"
        with pytest.raises(CommandFailed, match="exited with 3"):
            connection.run(["sh", "-c", "exit 3"], check=True)
        assert scaler.capacity().acquired == 1
        assert [view.slots for view in scaler.instances()] == [("job", None)]
        assert "1 in use" in str(scaler.explain())
        assert scaler.explain(instance=lease.instance).jobs[0].key == lease.key
        assert scaler.explain(key=lease.key).instance == lease.instance
    assert scaler.capacity().acquired == 0


@pytest.mark.needs("tar")
def test_files_are_copied_there_and_back(scaler: Taskscaler, tmp_path: Path) -> None:
    """To where commands start, and into a directory; what is wrong is said with its side."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("content")
    with scaler.acquire("job") as lease, lease.dial() as connection:
        connection.put(tmp_path / "in", "there")
        assert connection.run("cat there/file; cp -r there back", check=True).stdout == b"content"
        connection.get("back", tmp_path / "out")
        connection.get("back/file", f"{tmp_path}/in/")
        assert (tmp_path / "out" / "file").read_text() == (tmp_path / "in" / "file").read_text() == "content"
        with pytest.raises(CopyFailed, match="the copy failed on the instance: there is no nothing"):
            connection.get("nothing", tmp_path)
        with pytest.raises(CopyFailed, match="the copy failed here: "):
            connection.put(tmp_path / "nothing", "there")


def test_a_command_that_takes_too_long_is_ended(scaler: Taskscaler) -> None:
    """With all that it has started; the connection is good for more."""
    with scaler.acquire("job") as lease, lease.dial() as connection:
        with pytest.raises(TimeoutError, match="the command took longer than 100ms, and was ended"):
            connection.run("sleep 300 & wait", timeout=0.1)
        assert connection.run("echo on").stdout == b"on\n"


def test_a_body_is_tried_again_on_another_instance(scaler: Taskscaler, tmp_path: Path) -> None:
    """As with the asynchronous scaler."""
    seen = []
    for attempt in scaler.attempts("job", tries=2):
        with attempt as lease, lease.dial() as connection:
            seen.append(lease.instance)
            if attempt.number == 1:
                kill(tmp_path, lease.instance)
                connection.wait_closed()
            assert connection.run("echo on").stdout == b"on\n"
    assert len(set(seen)) == 2


def test_a_reservation_waits(scaler: Taskscaler) -> None:
    """As long as it is asked to."""
    leases = [scaler.acquire_lease(f"job-{number}") for number in range(4)]
    with pytest.raises(NoCapacity, match="no slot could be reserved within 10ms"):
        scaler.reserve("next", timeout=0.01)
    with ThreadPoolExecutor() as threads:
        reserved = threads.submit(scaler.reserve, "next", timeout=NEVER_REACHED)
        leases[0].release()
        reserved.result()
    for lease in leases[1:]:
        lease.release()


def test_a_sink_gets_the_output_as_it_comes(scaler: Taskscaler) -> None:
    """In order and while the command runs; it may call back into the scaler, and its error ends the command."""
    heard = bytearray()

    def sink(chunk: bytes) -> None:
        heard.extend(chunk)
        assert scaler.capacity().acquired == 1

    def broken(_: bytes) -> None:
        raise ZeroDivisionError

    with scaler.acquire("job") as lease, lease.dial() as connection:
        connection.run("for n in 1 2 3; do echo $n; done", stdout=sink)
        assert heard == b"1\n2\n3\n"
        with pytest.raises(ZeroDivisionError):
            connection.run("echo; sleep 1000", stdout=broken)


def test_streams_go_both_ways(scaler: Taskscaler) -> None:
    """To a port on the instance, until the other side has no more to say."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                while data := peer.recv(100):
                    peer.sendall(data.upper())

        served = threads.submit(answer)
        with scaler.acquire("job") as lease, lease.dial() as connection:
            with connection.open_tcp(*server.getsockname()) as stream:
                stream.send(b"hello")
                assert stream.receive() == b"HELLO"
                stream.send_eof()
                assert stream.receive() == b""
            with pytest.raises(Unreachable):
                connection.open_unix("/nowhere")
        served.result()


def test_an_instance_connects_to_a_thread(scaler: Taskscaler) -> None:
    """By a port that the instance listens at; each connection is a stream, and leaving frees the port."""
    with scaler.acquire("job") as lease, lease.dial() as connection:
        with connection.listen_tcp("127.0.0.1", 0) as listener:
            with socket.create_connection(("127.0.0.1", listener.port)) as peer, listener.accept() as stream:
                peer.sendall(b"hello")
                assert stream.receive() == b"hello"
                stream.send(b"HELLO")
                assert peer.recv(100) == b"HELLO"
            with pytest.raises(PortTaken), connection.listen_tcp("127.0.0.1", listener.port):
                pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listener.port))
        with pytest.raises(anyio.ClosedResourceError):
            listener.accept()


def test_threads_share_a_scaler(scaler: Taskscaler) -> None:
    """Sixteen jobs of eight threads on four slots: never more at once, and each is alone in its slot."""
    lock, held, most = threading.Lock(), set[tuple[str, int]](), 0

    def job(number: int) -> None:
        nonlocal most
        with scaler.acquire(f"job-{number}") as lease, lease.dial() as connection:
            slot = (lease.instance, lease.slot)
            with lock:
                assert slot not in held
                held.add(slot)
                most = max(most, len(held))
            connection.run("true", check=True)
            with lock:
                held.remove(slot)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(job, range(16)))
    assert 1 < most <= 4


def test_a_loss_while_the_body_runs_is_raised_on_leaving(scaler: Taskscaler, tmp_path: Path) -> None:
    """Also if the body has noticed nothing."""
    with pytest.raises(LeaseLost, match="job lost its slot"), scaler.acquire("job") as lease, lease.dial():
        assert lease.lost(timeout=0) is None
        kill(tmp_path, lease.instance)
        loss = lease.lost()
        assert loss is not None
        assert loss == lease.loss == lease.lost()


def test_a_loss_ends_what_waits_on_a_connection(scaler: Taskscaler, tmp_path: Path) -> None:
    """A command that would run for long raises the loss, whoever tells of it first: the cloud, or the heartbeat."""
    with pytest.raises(LeaseLost) as raised, scaler.acquire("job") as lease, lease.dial() as connection:

        def kill_it(_: bytes) -> None:
            kill(tmp_path, lease.instance)

        connection.run("echo; exec sleep 1000", stdout=kill_it)
    assert raised.value.loss.kind in (LossKind.VANISHED, LossKind.DELETED, LossKind.UNHEALTHY)


def test_an_error_of_the_body_s_own_comes_out_as_it_is(scaler: Taskscaler) -> None:
    """And the slot is given back."""
    with pytest.raises(ZeroDivisionError), scaler.acquire("job"):
        raise ZeroDivisionError
    assert scaler.capacity().acquired == 0


def test_a_lease_may_outlive_any_scope(scaler: Taskscaler) -> None:
    """It is held until it is released, which may be said twice, and whoever waits for its loss is told."""
    lease = scaler.acquire_lease("job")
    assert repr(lease) == f"<Lease job on {lease.instance} slot 0>"
    with pytest.raises(KeyInUse):
        scaler.acquire_lease("job")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(lease.lost)
        lease.release()
        lease.release()
        assert waiting.result() is None
    assert scaler.capacity().acquired == 0


def test_only_a_daemon_keeps_leases_for_a_bound(scaler: Taskscaler) -> None:
    """The program's own fleet says what to use instead, and nobody else's lease is taken for one."""
    with scaler.acquire("job") as lease:
        with pytest.raises(TaskscalerError, match="only a daemon keeps leases for a bound; use"):
            scaler.keep(lease, ttl=60)
        with pytest.raises(TypeError, match="lease"):
            scaler.keep("job")  # type: ignore[arg-type]


def test_reservations_and_refusals_are_the_same(scaler: Taskscaler) -> None:
    """Same calls, same errors."""
    scaler.reserve("job")
    with pytest.raises(KeyInUse):
        scaler.reserve("job")
    assert scaler.capacity().promised == 1
    scaler.unreserve("job")
    assert scaler.capacity().promised == 0
    with pytest.raises(NoCapacity, match="no slot became free within"):
        scaler.acquire_lease("job", timeout=0)
    with pytest.raises(NotSuspended):
        scaler.resume("job")
    scaler.configure(policies=[Policy(idle_count=1)])
    with scaler.acquire("job"):
        assert scaler.drain(timeout=0) is False
    assert scaler.drain() is True
    with pytest.raises(NoCapacity, match="draining"):
        scaler.acquire_lease("job")


def test_persistent_leases_are_let_go_of_and_taken_up(scaler: Taskscaler) -> None:
    """Same calls, same errors, as far as one scaler sees them."""
    lease = scaler.acquire_lease("job", persistent=True)
    assert lease.persistent
    lease.detach()
    assert [left.key for left in scaler.detached] == ["job"]
    again = scaler.reattach("job")
    assert (again.instance, again.slot) == (lease.instance, lease.slot)
    with pytest.raises(NotDetached):
        scaler.reattach("job")
    assert scaler.detached == []
    again.release()


def test_instances_can_be_held(scaler: Taskscaler) -> None:
    """Cordoned and retained, and let go again."""
    with scaler.acquire("job") as lease:
        scaler.cordon(lease.instance, "to look at")
        scaler.retain(lease.instance)
        assert scaler.instances()[0].cordoned == "to look at"
        scaler.uncordon(lease.instance)
        scaler.unretain(lease.instance)
        with pytest.raises(NoSuchInstance):
            scaler.cordon("another")
    assert scaler.groups["default"].identity.startswith("local:")


@pytest.mark.usefixtures("backend")
def test_an_asynchronous_scaler_can_be_made_one_for_threads(pool: Pool) -> None:
    """As a configuration gives it."""
    with Taskscaler.of(taskscaler.Taskscaler(pool, delete_instances_on_shutdown=True)) as scaler:
        assert scaler.capacity().acquired == 0


def test_stopping_breaks_what_other_threads_hold_and_wait_for(scaler: Taskscaler) -> None:
    """They hear of it at once."""
    with ThreadPoolExecutor() as threads, pytest.raises(LeaseLost), scaler.acquire("job") as lease:
        waiting = threads.submit(lease.lost)
        scaler.stop()
        assert waiting.result() is not None


@pytest.mark.usefixtures("backend")
def test_a_scaler_that_is_not_open_says_so(pool: Pool) -> None:
    """Before it is entered, and after it was left; a lease that was left over is over."""
    scaler = Taskscaler(pool, delete_instances_on_shutdown=True)
    with pytest.raises(TaskscalerError, match="not open yet: enter it first, with `with`"):
        scaler.capacity()
    with scaler:
        lease = scaler.acquire_lease("job")
    with pytest.raises(TaskscalerError, match="the scaler has ended"):
        scaler.capacity()
    lease.release()
    assert lease.lost() is not None


@pytest.mark.usefixtures("backend")
def test_a_connection_that_nobody_closed_keeps_no_scaler_open(pool: Pool) -> None:
    """It ends with the scaler, and may be left after that."""
    with Taskscaler(pool, delete_instances_on_shutdown=True) as scaler:
        dialled = scaler.acquire_lease("job").dial()
        connection = dialled.__enter__()
    with pytest.raises(TaskscalerError, match="the scaler has ended"):
        connection.run("true")
    dialled.__exit__(None, None, None)


def test_what_cannot_be_opened_is_told_as_by_the_asynchronous_one(scaler: Taskscaler, tmp_path: Path) -> None:
    """The constructor refuses the same, and so does entering."""
    with pytest.raises(ValueError, match="at least one pool"):
        Taskscaler([])
    with pytest.raises(GroupRefused, match="managed by another process or pool"), Taskscaler(a_pool(tmp_path)):
        pass
    assert scaler.capacity().pending == 0


def test_it_has_what_the_asynchronous_one_has() -> None:
    """Every public name of scaler and lease is there, but for what only coroutines and the daemon need."""
    for ours, theirs, missing in (
        (Taskscaler, taskscaler.Taskscaler, {"delete_instances_on_shutdown", "tracer", "use_meter"}),
        (taskscaler.sync.Lease, taskscaler.Lease, {"ended", "unless_lost", "wait_ended"}),
    ):
        names = {name for name in dir(theirs) if not name.startswith("_")}
        assert names - set(dir(ours)) <= missing


def test_what_an_interrupted_thread_would_have_got_is_undone(backend: str) -> None:
    """The call had succeeded when its cancellation came: its result is not lost with nobody to hold it."""

    async def succeed() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        while anyio.current_effective_deadline() > -math.inf:  # until it is cancelled
            await cancel_shielded_checkpoint()
        return "a lease"

    undone: list[str] = []
    with start_blocking_portal(backend) as blocking, pytest.raises(KeyboardInterrupt):
        Portal(blocking).call(succeed, undo=undone.append)
    assert undone == ["a lease"]


# --- interrupts -----------------------------------------------------------------------------------------

PROGRAM = """
import sys
from fleeting import load
from taskscaler import Pool
from taskscaler.sync import Taskscaler
from taskscaler.sync._portal import Portal

pool = Pool(load("local", {{"directory": sys.argv[1]}}), update_interval_when_expecting=0.02, max_instances=1)
Taskscaler.backend = sys.argv[2]
with Taskscaler(pool, delete_instances_on_shutdown=True) as scaler:
    try:
        {body}
    finally:
        print("acquired", scaler.capacity().acquired, "waiting", scaler.capacity().pending, flush=True)
"""
BODIES = {
    "the body": """
        with scaler.acquire("job"):
            print("now", flush=True)
            sys.stdin.read()
""",
    "a command": """
        with scaler.acquire("job") as lease, lease.dial() as connection:
            connection.run("echo now; exec sleep 1000", stdout=lambda chunk: print(chunk.decode(), end="", flush=True))
""",
    "an acquire": """
        with scaler.acquire("job"):
            print("now", flush=True)
            scaler.acquire_lease("other")
""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_an_interrupt_shuts_down_cleanly(tmp_path: Path, backend: str, body: str) -> None:
    """Wherever it meets the thread: slots are given back, instances deleted, and the interrupt comes out."""
    directory = tmp_path / "group"
    program = PROGRAM.format(body=body.strip())
    with subprocess.Popen(
        [sys.executable, "-c", program, str(directory), backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        said, wrong = process.communicate()
    assert said == "acquired 0 waiting 0\n", wrong
    assert wrong.splitlines()[-1] == "KeyboardInterrupt"
    assert process.returncode == -signal.SIGINT
    assert not directory.exists()
