"""Notices that a command finds on the instance itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import isfinite

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleeting import (
    Capability,
    Completed,
    ConnectInfo,
    ConnectorConfig,
    GroupInfo,
    LoopClock,
    Notice,
    NoticeKind,
    Provisioner,
    Settings,
    Unreachable,
    Unsupported,
)
from fleeting.core import messages
from fleeting.runtime._instances import InstanceCalls, Upkeep
from fleeting.runtime._notices import READ, Announced, parse_notices
from fleeting.testing import Command, FakeCloud, FakeGroup, Fault, virtual_time

anyio_backend = virtual_time

PROBE = "what is announced"

kinds = st.sampled_from(NoticeKind)
blanks = st.sampled_from([" ", "  ", "\t"])
notices = st.builds(Announced, kinds, st.floats(0, 1e6))


@given(st.lists(notices), blanks, st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_what_is_printed_is_what_is_understood(announced: list[Announced], blank: str, end: str) -> None:
    """However the lines are spaced and ended."""
    text = "".join(f"{each.kind.value}{blank}{each.seconds!r}{end}" for each in announced)
    assert parse_notices(text.encode()) == (tuple(announced), ())


@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Zl", "Zp"])) | notices.map(str), max_size=4), notices)
def test_what_is_not_understood_spoils_nothing_else(lines: list[str], notice: Announced) -> None:
    """Whatever else is printed, a notice is one; each line is a notice, strange, or empty."""
    text = "\n".join([*lines, f"{notice.kind.value} {notice.seconds!r}"])
    heard = parse_notices(text.encode(errors="replace"))
    assert heard.notices[-1] == notice
    assert all(isfinite(each.seconds) and each.seconds >= 0 for each in heard.notices)
    assert len(heard.notices) + len(heard.strange) <= len(text.splitlines())


@given(st.binary())
def test_anything_may_be_printed(output: bytes) -> None:
    """It need not even be text."""
    parse_notices(output)


@pytest.mark.parametrize("line", ["preemption", "preemption soon", "preemption nan", "PREEMPTION 5", "a b c"])
def test_strange_lines_are_told(line: str) -> None:
    """Word for word."""
    assert parse_notices(line.encode()) == ((), (line,))


def test_what_is_overdue_goes_now() -> None:
    """A cloud's clock may be a little ahead."""
    assert parse_notices(b"rebalance -3\n").notices == (Announced(NoticeKind.REBALANCE, 0.0),)


@asynccontextmanager
async def watching(cloud: FakeCloud, group: FakeGroup | None = None) -> AsyncIterator[tuple[Provisioner, list[Notice]]]:
    """A provisioner with one instance, and the notice that could be read each time that one had changed."""
    group, doomed = group or FakeGroup(cloud), list[Notice]()

    def note(event: messages.Event) -> None:
        known = provisioner.instances.get(event.instance) if isinstance(event, messages.Changed) else None
        if known is not None and known.notice is not None:
            doomed.append(known.notice)

    provisioner = Provisioner(group, dial=group.dial, on_event=note, notice_interval=10)
    async with provisioner:
        provisioner.request(1)
        await anyio.sleep(5)
        yield provisioner, doomed


@pytest.mark.anyio
async def test_what_the_instance_says_dooms_it_once() -> None:
    """Within an interval, with the deadline that was announced, however often it is found after that."""
    cloud = FakeCloud(notice_probe=PROBE)
    async with watching(cloud) as (_, doomed):
        await anyio.sleep(100)
        assert not doomed
        notice = cloud.notice("i-1", in_seconds=100)
        await anyio.sleep(50)
        (told,) = doomed
        assert told.deadline == pytest.approx(notice.deadline, abs=1)
        assert told.kind is NoticeKind.PREEMPTION
        assert sum(call.method == "dial" for call in cloud.calls) == len(cloud.commands) > 10  # none is kept open


@pytest.mark.anyio
async def test_a_probe_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again, over a new connection; that it fails is told once, not each time."""
    cloud = FakeCloud(notice_probe=PROBE)
    async with watching(cloud) as (provisioner, doomed):
        cloud.faults.dial.once(Fault(refuse=Unreachable("no route")), times=3)
        cloud.cut("i-1")
        await anyio.sleep(60)
        assert provisioner.instances["i-1"].up
        cloud.notice("i-1", in_seconds=100)
        await anyio.sleep(20)
        assert doomed
    assert [record.message for record in caplog.records].count("notice_probe_failed") == 1


@pytest.mark.anyio
async def test_an_instance_that_is_forgotten_while_it_is_made_ready_is_not_probed() -> None:
    """Its readiness steps may end in the very moment in which it is gone, when nothing can be cancelled any more."""
    cloud, fed = FakeCloud(notice_probe=PROBE), list[messages.Fact]()
    group, clock = FakeGroup(cloud), LoopClock(epoch=0)

    async def forget(info: ConnectInfo) -> None:
        calls.forget(info.id)

    calls = InstanceCalls(group, "default", ConnectorConfig(), group.dial, clock, Upkeep(ready_hook=forget))
    await group.init(Settings(owner="test", clock=clock))
    await group.increase(1, intent="one")
    async with anyio.create_task_group() as tasks:
        calls.start(tasks, fed.append, PROBE)
        await anyio.sleep(5)
        await group.update()
        calls.prepare("i-1")
        await anyio.sleep(100)
        tasks.cancel_scope.cancel()
    assert (fed, cloud.commands) == ([], [])


@pytest.mark.anyio
async def test_nonsense_is_no_notice() -> None:
    """What cannot be understood changes nothing."""

    async def talk(_: str, __: Command) -> Completed:
        return Completed(exit_status=0, stdout=b"<html>not found</html>")

    cloud = FakeCloud(on_command=talk)

    class Talking(FakeGroup):
        async def init(self, settings: Settings) -> GroupInfo:
            await super().init(settings)
            return GroupInfo(identity="talking", notice_probe=PROBE)

    async with watching(cloud, Talking(cloud)) as (provisioner, doomed):
        await anyio.sleep(55)
        assert provisioner.instances["i-1"].up
    assert not doomed


@pytest.mark.anyio
async def test_nobody_is_probed_after_it_is_gone() -> None:
    """The look for notices ends with the instance."""
    cloud = FakeCloud(notice_probe=PROBE)
    async with watching(cloud) as (provisioner, _):
        provisioner.remove(["i-1"], "not needed")
        await anyio.sleep(60)
        before = len(cloud.calls)
        await anyio.sleep(500)
        assert not [call for call in cloud.calls[before:] if call.method == "dial"]


@pytest.mark.anyio
async def test_who_claims_notices_has_to_tell_them() -> None:
    """By itself or by a probe."""

    class Silent:
        """A group without notices()."""

        def __init__(self) -> None:
            self._group = FakeGroup(FakeCloud(capabilities=frozenset({Capability.NOTICES})))
            for method in ("init", "update", "increase", "decrease", "connect_info", "heartbeat", "shutdown"):
                setattr(self, method, getattr(self._group, method))

    group = Silent()
    with pytest.raises(Unsupported, match=r"claims Capability\.NOTICES but lacks the methods of GivesNotice"):
        async with Provisioner(group, dial=FakeGroup().dial, on_event=lambda _: None):  # type: ignore[arg-type]
            pass


def test_of_endless_output_the_beginning_is_read() -> None:
    """As far as its lines are whole: a number that was cut would be another one."""
    line = b"preemption 1000\n"
    heard = parse_notices(b"xxx\n" + line * READ)
    assert heard.strange == ("xxx",)
    assert set(heard.notices) == {Announced(NoticeKind.PREEMPTION, 1000.0)}
    assert len(heard.notices) < READ
    assert parse_notices(b"preemption 1" * READ) == ((), ())


@pytest.mark.anyio
async def test_a_probe_that_says_more_than_it_should_is_heard_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of all that it prints the soonest end counts; that the rest is strange repeats nothing."""

    async def talk(_: str, __: Command) -> Completed:
        return Completed(
            exit_status=0, stdout=b"preemption 900\npreemption 600\n\xff\x00 rebalance -1\npreemption 700\n"
        )

    cloud = FakeCloud(on_command=talk)

    class Talking(FakeGroup):
        async def init(self, settings: Settings) -> GroupInfo:
            await super().init(settings)
            return GroupInfo(identity="talking", notice_probe=PROBE)

    async with watching(cloud, Talking(cloud)) as (_, doomed):
        await anyio.sleep(195)
    (notice,) = doomed
    assert notice.kind is NoticeKind.PREEMPTION
    assert [record.message for record in caplog.records].count("notice_probe_failed") == 1
