"""The fake cloud: behaves as its settings say, and goes wrong exactly when it is told to."""

import math
from collections.abc import AsyncIterator

import anyio
import pytest

from fleeting import (
    Capability,
    CapacityUnavailable,
    CommandFailed,
    Completed,
    ConnectInfo,
    ConnectorConfig,
    GroupRefused,
    InstanceNotFound,
    LoopClock,
    Notice,
    NoticeKind,
    OutcomeUnknown,
    ProblemKind,
    ProviderError,
    Settings,
    State,
    Unreachable,
    Unsupported,
)
from fleeting.plugins import Mark
from fleeting.testing import (
    Command,
    DecreaseFault,
    FakeCloud,
    FakeGroup,
    Fault,
    IncreaseFault,
    SuspendFault,
    UpdateFault,
    virtual_time,
)

pytestmark = pytest.mark.anyio
anyio_backend = virtual_time


async def opened(cloud: FakeCloud) -> FakeGroup:
    """Open a group on the cloud, with a clock that starts at 0."""
    group = FakeGroup(cloud)
    await group.init(Settings(owner="test", clock=LoopClock(epoch=0)))
    return group


async def states(group: FakeGroup) -> dict[str, State]:
    """What the group shows."""
    view = await group.update()
    return {instance: observed.state for instance, observed in view.instances.items()}


# --- behaviour ------------------------------------------------------------------------------------------


async def test_an_instance_goes_through_its_life() -> None:
    """It exists, is shown, boots, runs, is deleted, is shown as deleted, and is forgotten."""
    group = await opened(FakeCloud(appear_after=5, boot_time=30, delete_time=20, linger=10))
    assert await group.increase(1, intent="a") == 1
    seen = []
    for seconds in (4, 2, 25):
        await anyio.sleep(seconds)
        seen.append(await states(group))
    assert await group.decrease(["i-1"]) == ("i-1",)
    for seconds in (1, 20, 10):
        await anyio.sleep(seconds)
        seen.append(await states(group))
    shown = (None, State.CREATING, State.RUNNING, State.DELETING, State.DELETED, None)
    assert seen == [{} if state is None else {"i-1": state} for state in shown]


async def test_the_view_tells_origin_and_time() -> None:
    """An instance shows when it was made, by which intent, and where."""
    group = await opened(FakeCloud(offering="zone-b/large"))
    await anyio.sleep(100)
    await group.increase(1, intent="a")
    observed = (await group.update()).instances["i-1"]
    assert observed.created_at == pytest.approx(100)
    assert (observed.intent, observed.offering) == ("a", "zone-b/large")


async def test_each_method_has_its_latency() -> None:
    """A call takes as long as was set for it, and has its effect half-way."""
    cloud = FakeCloud(latency={"increase": 10})
    group = await opened(cloud)
    with anyio.move_on_after(6):
        await group.increase(1, intent="a")
    assert anyio.current_time() == pytest.approx(6)
    assert cloud.alive == {"i-1"}


async def test_max_size_is_kept() -> None:
    """Beyond its ceiling the cloud accepts a part, and what is being deleted still counts."""
    group = await opened(FakeCloud(max_size=3, delete_time=10))
    assert await group.increase(5, intent="a") == 3
    await group.decrease(["i-1"])
    assert await group.increase(1, intent="b") == 0
    await anyio.sleep(10)
    assert await group.increase(1, intent="c") == 1


@pytest.mark.parametrize(("capabilities", "expected"), [({Capability.NAMED_CREATE}, 2), (set(), 4)])
async def test_named_create(capabilities: set[Capability], expected: int) -> None:
    """A repeat under the same intent brings something new only without `NAMED_CREATE`."""
    cloud = FakeCloud(capabilities=frozenset(capabilities))
    group = await opened(cloud)
    assert [await group.increase(2, intent="a") for _ in range(2)] == [2, 2]
    assert len(cloud.alive) == expected
    carried = {observed.intent for observed in (await group.update()).instances.values()}
    assert carried == ({"a"} if capabilities else {None})


async def test_the_cloud_outlives_its_groups() -> None:
    """Another group on the same cloud sees what the first one made, and what was there before both."""
    cloud = FakeCloud(boot_time=60)
    cloud.launch(2)
    first = await opened(cloud)
    await first.increase(1, intent="a")
    await first.shutdown()
    second = await opened(cloud)
    assert await states(second) == {"i-1": State.RUNNING, "i-2": State.RUNNING, "i-3": State.CREATING}


async def test_everything_that_ever_existed_is_billed() -> None:
    """The bill has each instance with its time, gone or not, and no request that was never filled."""
    cloud = FakeCloud(capabilities=frozenset({Capability.WITHDRAW}))
    group = await opened(cloud)
    await group.increase(2, intent="a")
    await anyio.sleep(50)
    await group.decrease(["i-1"])
    cloud.run_out()
    await group.increase(1, intent="b")
    gone, alive = cloud.billed
    assert [(bill.instance, bill.intent) for bill in (gone, alive)] == [("i-1", "a"), ("i-2", "a")]
    assert [gone.since, gone.until, alive.since] == pytest.approx([0, 50, 0])
    assert alive.until is None


async def test_calls_are_recorded() -> None:
    """Every call is kept with its time and arguments, failed ones included."""
    cloud = FakeCloud()
    group = await opened(cloud)
    cloud.faults.increase.once(IncreaseFault(refuse=CapacityUnavailable("none left")))
    await anyio.sleep(3)
    with pytest.raises(CapacityUnavailable, match="none left"):
        await group.increase(2, intent="a")
    call = cloud.calls[-1]
    assert (call.method, call.arguments) == ("increase", {"count": 2, "intent": "a"})
    assert call.at == pytest.approx(3)


async def test_using_a_group_before_init_is_an_error() -> None:
    """Who forgets to open the group is told so."""
    with pytest.raises(RuntimeError, match="call init first"):
        await FakeGroup().update()


# --- faults ---------------------------------------------------------------------------------------------


async def test_faults_come_once_or_always() -> None:
    """Faults for one call come first and in order, then those for every call, until cleared."""
    cloud = FakeCloud(capabilities=frozenset())
    group = await opened(cloud)
    cloud.faults.increase.always(IncreaseFault(accept=2))
    cloud.faults.increase.once(IncreaseFault(accept=1), times=2)
    accepted = [await group.increase(3, intent="a") for _ in range(4)]
    cloud.faults.clear()
    assert [*accepted, await group.increase(3, intent="a")] == [1, 1, 2, 2, 3]


async def test_a_lost_answer_leaves_its_effect() -> None:
    """The call raises that its outcome is unknown, and was carried out."""
    cloud = FakeCloud()
    group = await opened(cloud)
    cloud.faults.increase.once(IncreaseFault(lose=True))
    with pytest.raises(OutcomeUnknown):
        await group.increase(2, intent="a")
    assert len(cloud.alive) == 2
    assert await group.increase(2, intent="a") == 2
    assert len(cloud.alive) == 2


@pytest.mark.parametrize(
    ("fault", "accepted", "made"),
    [
        (IncreaseFault(accept=1), 1, 1),
        (IncreaseFault(accept=1, overstate=2), 3, 1),
        (IncreaseFault(surplus=2), 3, 5),
        (IncreaseFault(accept=0), 0, 0),
    ],
    ids=["partial", "overstated", "surplus", "nothing"],
)
async def test_increase_lies(fault: IncreaseFault, accepted: int, made: int) -> None:
    """What is said to be accepted and what is made can each be wrong."""
    cloud = FakeCloud()
    group = await opened(cloud)
    cloud.faults.increase.once(fault)
    assert await group.increase(3, intent="a") == accepted
    assert len(cloud.alive) == made


async def test_late_arrival() -> None:
    """What was accepted begins to exist only later."""
    cloud = FakeCloud(boot_time=10)
    group = await opened(cloud)
    cloud.faults.increase.once(IncreaseFault(late=1000))
    await group.increase(1, intent="a")
    await anyio.sleep(999)
    assert (cloud.alive, await states(group)) == (frozenset(), {})
    await anyio.sleep(2)
    assert await states(group) == {"i-1": State.CREATING}


async def test_slow_call() -> None:
    """A call can take longer than usual."""
    cloud = FakeCloud(latency={"update": 1})
    group = await opened(cloud)
    cloud.faults.update.once(UpdateFault(slow=90))
    await group.update()
    await group.update()
    assert anyio.current_time() == pytest.approx(92)


async def test_wrong_views() -> None:
    """A view can be stale, lack an instance, or make up a state; the next one is right again."""
    cloud = FakeCloud()
    group = await opened(cloud)
    await group.increase(1, intent="a")
    await group.update()
    await group.increase(1, intent="b")
    faults = (UpdateFault(stale=True), UpdateFault(hide={"i-1"}), UpdateFault(states={"i-2": State.FAILED}))
    for fault in faults:
        cloud.faults.update.once(fault)
    running = State.RUNNING
    assert [await states(group) for _ in range(4)] == [
        {"i-1": running},
        {"i-2": running},
        {"i-1": running, "i-2": State.FAILED},
        {"i-1": running, "i-2": running},
    ]


async def test_partial_and_ignored_deletions() -> None:
    """Deletions can be accepted in part, or be accepted and not happen."""
    cloud = FakeCloud()
    group = await opened(cloud)
    await group.increase(3, intent="a")
    cloud.faults.decrease.once(DecreaseFault(accept=1))
    cloud.faults.decrease.once(DecreaseFault(ignore=True))
    assert await group.decrease(["i-1", "i-2"]) == ("i-1",)
    assert await group.decrease(["i-2"]) == ("i-2",)
    assert cloud.alive == {"i-2", "i-3"}


async def test_hanging_until_released() -> None:
    """Creating and deleting can take for ever, until told otherwise."""
    cloud = FakeCloud(boot_time=5, delete_time=5)
    group = await opened(cloud)
    cloud.faults.increase.once(IncreaseFault(hang=True))
    await group.increase(1, intent="a")
    await anyio.sleep(86400)
    assert await states(group) == {"i-1": State.CREATING}
    cloud.release("i-1")
    assert await states(group) == {"i-1": State.RUNNING}
    cloud.hang("i-1")
    await group.decrease(["i-1"])
    await anyio.sleep(86400)
    assert await states(group) == {"i-1": State.DELETING}
    cloud.release("i-1")
    assert await states(group) == {}


async def test_failed_instances() -> None:
    """An instance can fail instead of running, or after it ran."""
    cloud = FakeCloud(boot_time=5)
    group = await opened(cloud)
    cloud.faults.increase.once(IncreaseFault(broken=True))
    await group.increase(1, intent="a")
    await group.increase(1, intent="b")
    await anyio.sleep(5)
    assert await states(group) == {"i-1": State.FAILED, "i-2": State.RUNNING}
    cloud.fail("i-2")
    assert (await states(group))["i-2"] is State.FAILED


async def test_vanishing_and_coming_back() -> None:
    """An instance can be gone without a trace, and be there again."""
    cloud = FakeCloud()
    group = await opened(cloud)
    await group.increase(1, intent="a")
    cloud.vanish("i-1")
    assert (await states(group), cloud.alive) == ({}, frozenset())
    assert await group.decrease(["i-1", "i-unknown"]) == ("i-1", "i-unknown")
    cloud.come_back("i-1")
    assert await states(group) == {"i-1": State.RUNNING}


async def test_deleting_what_has_vanished_changes_nothing() -> None:
    """It is accepted, as what is gone already, and takes no room from then on either."""
    cloud = FakeCloud(max_size=1, delete_time=10)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    cloud.vanish("i-1")
    assert await group.decrease(["i-1"]) == ("i-1",)
    assert (cloud.size, await group.increase(1, intent="b")) == (0, 1)


async def test_running_out_of_stock() -> None:
    """Requests stay unfilled, the view says why and since when, and restocking fills them."""
    cloud = FakeCloud(max_size=2)
    group = await opened(cloud)
    await anyio.sleep(10)
    cloud.run_out("none in zone-a")
    assert await group.increase(3, intent="a") == 2
    await anyio.sleep(1000)
    view = await group.update()
    (problem,) = view.problems
    assert (dict(view.instances), problem.kind, problem.message) == ({}, ProblemKind.CAPACITY, "none in zone-a")
    assert problem.since == pytest.approx(10)
    assert problem.offering == "zone-a/small"
    cloud.restock()
    view = await group.update()
    assert (len(view.instances), view.problems) == (2, ())


async def test_withdrawing_takes_requests_only() -> None:
    """What is taken back was not filled; instances stay."""
    cloud = FakeCloud(capabilities=frozenset({Capability.WITHDRAW}))
    group = await opened(cloud)
    await group.increase(1, intent="a")
    cloud.run_out()
    await group.increase(2, intent="b")
    assert [await group.withdraw(1), await group.withdraw(5)] == [1, 1]
    cloud.restock()
    assert await states(group) == {"i-1": State.RUNNING}


async def test_notices() -> None:
    """Notices come as they are given; a preempted instance is gone by then, one under maintenance is not."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NOTICES}))
    group = await opened(cloud)
    await group.increase(2, intent="a")
    heard: list[Notice] = []

    async def listen(notices: AsyncIterator[Notice]) -> None:
        async for notice in notices:
            heard.append(notice)
            if len(heard) == 2:
                break

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen, group.notices())
        cloud.notice("i-1", in_seconds=120)
        await anyio.sleep(1)
        cloud.notice("i-2", in_seconds=60, kind=NoticeKind.MAINTENANCE)
    assert [notice.instance for notice in heard] == ["i-1", "i-2"]
    assert [notice.deadline for notice in heard] == pytest.approx([120, 61])
    await anyio.sleep(120)
    assert await states(group) == {"i-2": State.RUNNING}


async def test_an_instance_sleeps_and_wakes_as_often_as_it_is_told() -> None:
    """It takes its time both ways; one that is on the way cannot be turned round, and one that is gone is left out."""
    cloud = FakeCloud(capabilities=frozenset({Capability.SUSPEND_RESUME}), suspend_time=10, resume_time=20)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    for _ in range(2):
        assert await group.suspend(["i-1", "i-9"]) == ["i-1"]
        assert await group.resume(["i-1"]) == []
        assert await states(group) == {"i-1": State.SUSPENDING}
        await anyio.sleep(10)
        assert await states(group) == {"i-1": State.SUSPENDED}
        assert await group.resume(["i-1", "i-9"]) == ["i-1"]
        assert await group.suspend(["i-1"]) == []
        assert await states(group) == {"i-1": State.RESUMING}
        await anyio.sleep(20)
        assert await states(group) == {"i-1": State.RUNNING}


async def test_what_sleeps_answers_nobody_and_exists() -> None:
    """Connections to it break; it is billed, takes room, and can be deleted."""
    cloud = FakeCloud(capabilities=frozenset({Capability.SUSPEND_RESUME}), max_size=1)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    info = await group.connect_info("i-1")
    async with group.dial(info, ConnectorConfig()) as connection:
        await group.suspend(["i-1"])
        assert await connection.wait_closed() == "the connection was cut"
    with pytest.raises(Unreachable):
        await group.dial(info, ConnectorConfig()).__aenter__()
    with pytest.raises(ProviderError, match="suspended"):
        await group.heartbeat("i-1")
    assert await group.increase(1, intent="b") == 0
    assert cloud.alive == {"i-1"}
    await group.decrease(["i-1"])
    assert cloud.alive == frozenset()


async def test_sleep_goes_wrong_as_told() -> None:
    """In part, in word only, or for ever; and without stock nothing wakes."""
    cloud = FakeCloud(capabilities=frozenset({Capability.SUSPEND_RESUME}))
    group = await opened(cloud)
    await group.increase(2, intent="a")
    cloud.faults.suspend.once(SuspendFault(ignore=True))
    assert await group.suspend(["i-1"]) == ["i-1"]
    cloud.faults.suspend.once(SuspendFault(accept=1, hang=True))
    assert await group.suspend(["i-1", "i-2"]) == ["i-1"]
    assert await states(group) == {"i-1": State.SUSPENDING, "i-2": State.RUNNING}
    cloud.release("i-1")
    cloud.run_out("none left")
    with pytest.raises(CapacityUnavailable, match="none left"):
        await group.resume(["i-1"])
    assert (await states(group))["i-1"] is State.SUSPENDED
    cloud.restock()
    cloud.faults.resume.once(SuspendFault(hang=True))
    await group.resume(["i-1"])
    assert (await states(group))["i-1"] is State.RESUMING
    cloud.release("i-1")
    assert (await states(group))["i-1"] is State.RUNNING


async def test_a_mark_keeps_others_out_until_it_expires() -> None:
    """It is seen on the cloud; only its owner takes it away."""
    cloud = FakeCloud(capabilities=frozenset({Capability.OWNER_MARK}))
    one, other = await opened(cloud), FakeGroup(cloud)
    await other.init(Settings(owner="other", clock=LoopClock(epoch=0)))
    await one.mark_owner(100)
    with pytest.raises(GroupRefused, match="managed by test until 100"):
        await other.mark_owner(200)
    await other.mark_owner(None)
    assert cloud.owner_mark == Mark(owner="test", until=100)
    await anyio.sleep(100)
    await other.mark_owner(200)
    assert cloud.owner_mark == Mark(owner="other", until=200)
    await other.mark_owner(None)
    assert cloud.owner_mark is None


async def test_the_probe_tells_the_notices_of_its_instance() -> None:
    """A line each, with the seconds that are left; other commands are played as ever."""
    cloud = FakeCloud(capabilities=frozenset({Capability.NOTICES}), notice_probe="tell")
    group = await opened(cloud)
    assert (await group.init(Settings(owner="test", clock=LoopClock(epoch=0)))).notice_probe == "tell"
    await group.increase(2, intent="a")
    cloud.notice("i-1", in_seconds=120)
    await anyio.sleep(8)
    said = []
    for instance in ("i-1", "i-2"):
        async with group.dial(await group.connect_info(instance), ConnectorConfig()) as connection:
            said.append((await connection.run("tell")).stdout)
            assert await connection.run("tell me") == Completed(exit_status=0)
    assert said == [b"preemption 112\n", b""]


async def test_what_is_not_claimed_is_refused() -> None:
    """Without the capability, its methods say so."""
    group = await opened(FakeCloud(capabilities=frozenset()))
    with pytest.raises(Unsupported, match="withdraw"):
        await group.withdraw(1)
    with pytest.raises(Unsupported, match="notices"):
        group.notices()
    with pytest.raises(Unsupported, match="suspend_resume"):
        await group.suspend(["i-1"])
    with pytest.raises(Unsupported, match="suspend_resume"):
        await group.resume(["i-1"])
    with pytest.raises(Unsupported, match="owner_mark"):
        await group.mark_owner(None)


# --- one instance ---------------------------------------------------------------------------------------


async def test_heartbeats() -> None:
    """They pass while it runs and is well, and raise when it is sick, not running yet, or gone."""
    cloud = FakeCloud(boot_time=10)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    with pytest.raises(ProviderError, match="creating"):
        await group.heartbeat("i-1")
    await anyio.sleep(10)
    await group.heartbeat("i-1")
    cloud.sicken("i-1", "its disk is full")
    with pytest.raises(ProviderError, match="its disk is full"):
        await group.heartbeat("i-1")
    cloud.heal("i-1")
    await group.heartbeat("i-1")
    cloud.vanish("i-1")
    with pytest.raises(InstanceNotFound):
        await group.heartbeat("i-1")


async def test_commands_are_played() -> None:
    """A command is given to the callable of the cloud, and its output goes where it was asked to go."""
    output: list[bytes] = []

    async def play(instance: str, command: Command) -> Completed:
        return Completed(exit_status=3, stdout=f"{instance} {command.cwd}".encode(), stderr=b"oops")

    async def sink(chunk: bytes) -> None:
        output.append(chunk)

    cloud = FakeCloud(on_command=play)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    async with group.dial(await group.connect_info("i-1"), ConnectorConfig()) as connection:
        completed = await connection.run("make", cwd="/src", env={"A": "1"}, stdout=sink)
        assert completed == Completed(exit_status=3, stderr=b"oops")
        with pytest.raises(CommandFailed, match="'cc -v' exited with 3: oops"):
            await connection.run(["cc", "-v"], check=True)
        with pytest.raises(Unsupported):
            await connection.open_tcp("localhost", 80)
    assert output == [b"i-1 /src"]
    assert cloud.commands[0] == ("i-1", Command(command="make", cwd="/src", env={"A": "1"}))


async def test_what_a_command_raises_is_passed_on() -> None:
    """An error of the callable arrives as it is, not wrapped in a group."""

    async def play(_instance: str, command: Command) -> Completed:
        raise LookupError(command.command)

    group = await opened(FakeCloud(on_command=play))
    await group.increase(1, intent="a")
    async with group.dial(await group.connect_info("i-1"), ConnectorConfig()) as connection:
        with pytest.raises(LookupError, match="ls"):
            await connection.run("ls")


async def for_ever(_instance: str, _command: Command) -> Completed:
    """Play an instance on which every command takes for ever."""
    await anyio.sleep(math.inf)
    return Completed(exit_status=0)


async def test_a_connection_dies_with_its_instance() -> None:
    """When the instance goes, at whatever time, what runs on it fails and the connection says why."""
    group = await opened(FakeCloud(on_command=for_ever, delete_time=40))
    await group.increase(1, intent="a")
    info = await group.connect_info("i-1")
    async with group.dial(info, ConnectorConfig()) as connection:
        await group.decrease(["i-1"])
        with pytest.raises(Unreachable, match="i-1 is gone"):
            await connection.run("sleep infinity")
        assert anyio.current_time() == pytest.approx(40)
        assert await connection.wait_closed() == "instance i-1 is gone"
    with pytest.raises(Unreachable, match="does not answer"):
        async with group.dial(info, ConnectorConfig()):
            pytest.fail("an instance that is gone answered")


async def test_a_cut_connection_leaves_the_instance() -> None:
    """Connections can break while their instance lives on; a new one works."""
    cloud = FakeCloud(on_command=for_ever)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    info = await group.connect_info("i-1")
    async with group.dial(info, ConnectorConfig()) as connection, anyio.create_task_group() as tasks:

        async def cut() -> None:
            await anyio.sleep(5)
            cloud.cut("i-1")

        tasks.start_soon(cut)
        with pytest.raises(Unreachable, match="cut"):
            await connection.run("sleep infinity")
    async with group.dial(info, ConnectorConfig()) as connection:
        with anyio.move_on_after(10) as scope:
            await connection.wait_closed()
        assert scope.cancelled_caught
    assert await connection.wait_closed() == "the connection was closed"


async def test_dialling_can_fail() -> None:
    """Nothing answers while an instance boots; and the script of `dial` works as that of a method."""
    cloud = FakeCloud(boot_time=10)
    group = await opened(cloud)
    await group.increase(1, intent="a")
    with pytest.raises(Unreachable, match="does not answer"):
        async with group.dial(ConnectInfo(id="i-1"), ConnectorConfig()):
            pytest.fail("it was to fail")
    await anyio.sleep(10)
    cloud.faults.dial.once(Fault(refuse=Unreachable("no route")))
    info = await group.connect_info("i-1")
    with pytest.raises(Unreachable, match="no route"):
        async with group.dial(info, ConnectorConfig()):
            pytest.fail("it was to fail")
    async with group.dial(info, ConnectorConfig()) as connection:
        assert (await connection.run("true")).ok
