"""What is done with a group that was opened by hand, and how what goes wrong is reported."""

import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import anyio
from anyio.abc import TaskStatus
from attrs import define, field, frozen

from fleeting._clock import LoopClock
from fleeting._durations import format_duration, span
from fleeting._errors import FleetingError, InstanceNotFound, PluginNotFound, ProviderError, Unreachable
from fleeting._types import ConnectInfo, GroupInfo, Observation, Observed, Settings, State
from fleeting._wording import did_you_mean
from fleeting.cli._commandline import FAILED, SIGNALLED, SUCCEEDED, WRONG, WRONG_FILE, outcome, report_errors
from fleeting.cli._config import GroupFile, read_group_file
from fleeting.cli._text import print_table, remark, say
from fleeting.connectors import dial
from fleeting.runtime._driver import GroupDriver

ENDS = signal.SIGTERM, signal.SIGHUP
"""Signals that end a command as Ctrl-C does, unless they were to be ignored when it was started."""

CALL_TIMEOUT = 300.0
"""Seconds that the cloud has for each call."""

CLOSE_TIMEOUT = 10.0
"""Seconds that closing may take."""

ON_THE_WAY = frozenset({State.CREATING, State.RESUMING})
"""The states that an instance leaves for running, if it is let alone."""


@frozen(kw_only=True)
class OpenGroup:
    """A group that is open, and what it says of itself."""

    driver: GroupDriver
    clock: LoopClock
    info: GroupInfo

    async def look(self) -> Observation:
        """See the whole group once."""
        with _in_time():
            return await self.driver.group.update()

    async def connect_info(self, instance: str, view: Observation | None = None) -> ConnectInfo:
        """How to connect to a running instance; *view* is what was seen just now, if anything was.

        Raises:
            InstanceNotFound: It is not there.
            Unreachable: It does not run.
        """
        instances = (view or await self.look()).instances
        if instance not in instances:
            raise not_there(instance, instances)
        if (state := instances[instance].state) is not State.RUNNING:
            hope = "wait until it runs" if state in ON_THE_WAY else "it will not run again; use another"
            raise Unreachable(f"{instance} is {state.value}; {hope}")
        return await self.driver.calls.connect_info(instance)


Action = Callable[..., Awaitable[int]]
"""What a command does with its open group and its own arguments; returns the exit status."""


def perform(
    action: Action,
    config: Path,
    runner: str | None,
    *,
    manage: bool = False,
    failed: int = FAILED,
    **arguments: Any,  # noqa: ANN401  (the action knows)
) -> int:
    """Open the group that the file names, carry out the action, and return the exit status.

    Args:
        action: Gets an `OpenGroup` and the arguments.
        config: The file.
        runner: Which of its ``[[runners]]``.
        manage: Whether it changes the group, so that nobody else may manage it meanwhile.
        failed: The status if it could not be carried out.
        arguments: The action's own.
    """
    try:
        file = read_group_file(config, runner)
    except (*WRONG_FILE, PluginNotFound) as error:
        return report_errors([error], WRONG)
    for note in file.notes:
        remark(note)
    return outcome(partial(anyio.run, _perform, action, file, manage, arguments), failed=failed)


async def list_instances(group: OpenGroup, *, as_json: bool) -> int:
    """Print a line for each instance, and the cloud's problems."""
    view = await group.look()
    if as_json:
        for id_, seen in view.instances.items():
            say(json.dumps(await _as_dict(group, id_, seen)))
        return SUCCEEDED
    if not view.instances:
        say(f"no instances in {group.info.identity}")
    else:
        rows = [await _as_row(group, id_, seen) for id_, seen in view.instances.items()]
        print_table(("INSTANCE", "STATE", "AGE", "OFFERING", "ADDRESS"), rows)
    _print_problems(view)
    return SUCCEEDED


def _print_problems(view: Observation) -> None:
    for problem in view.problems:
        say(f"the cloud says: {problem.message} ({problem.kind.value})")


async def increase_group(group: OpenGroup, *, count: int) -> int:
    """Ask for more, and print how many the cloud accepted, and if not all, why."""
    with _in_time():
        accepted = await group.driver.group.increase(count, intent=f"by-hand-{os.urandom(6).hex()}")
    say(f"asked for {count}, {accepted} accepted")
    if accepted == count:
        return SUCCEEDED
    view = await group.look()
    ceiling = group.info.max_size if view.max_size is None else view.max_size
    if ceiling is not None and len(view.instances) + count - accepted > ceiling:
        say(f"the cloud's ceiling for this group is {ceiling}, and it has {len(view.instances)}")
    _print_problems(view)
    return FAILED


async def decrease_group(group: OpenGroup, *, instances: Sequence[str]) -> int:
    """Delete instances that are there, and print which were accepted for deletion, and if not all, why."""
    known = (await group.look()).instances
    for instance in instances:
        if instance not in known:
            raise not_there(instance, known)
    with _in_time():
        accepted = await group.driver.group.decrease(instances)
    for instance in instances:
        say(f"{instance}: {'is being deleted' if instance in accepted else 'was not accepted for deletion'}")
    if set(instances) <= set(accepted):
        return SUCCEEDED
    _print_problems(await group.look())
    return FAILED


async def _perform(action: Action, file: GroupFile, manage: bool, arguments: Mapping[str, Any]) -> int:  # noqa: FBT001  (`anyio.run` passes no keywords)
    """Carry it out; a signal cancels it, so that nothing is left behind here or on an instance."""
    status, ending = SUCCEEDED, _Ending()
    async with anyio.create_task_group() as tasks:
        with ending.scope:
            await tasks.start(ending.heed_signals)
            async with _open(file, manage=manage) as group:
                status = await action(group, **arguments)
        tasks.cancel_scope.cancel()
    return status if ending.by is None else SIGNALLED + ending.by


@define
class _Ending:
    """Lets signals end what is done in its scope."""

    scope: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    by: int | None = field(default=None, init=False)

    async def heed_signals(self, *, task_status: TaskStatus[None]) -> None:
        """Wait for one; Python gives them to its main thread alone."""
        heeded = [each for each in ENDS if signal.getsignal(each) != signal.SIG_IGN]
        if current_thread() is not main_thread() or not heeded:
            task_status.started()
            return
        with anyio.open_signal_receiver(*heeded) as signals:
            task_status.started()
            async for number in signals:
                self.by = self.by or number
                self.scope.cancel()


@asynccontextmanager
async def _open(file: GroupFile, *, manage: bool) -> AsyncIterator[OpenGroup]:
    clock = LoopClock()
    driver = GroupDriver(file.group, pool="by-hand", connector=file.connector, dial=dial)
    owner = f"{os.uname().nodename}-{os.urandom(4).hex()}"
    settings = Settings(owner=owner, clock=clock, connector=file.connector, observe_only=not manage)
    with _in_time():
        info = await driver.open(settings)
    try:
        yield OpenGroup(driver=driver, clock=clock, info=info)
    finally:
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await driver.close()


def not_there(instance: str, known: Iterable[str]) -> InstanceNotFound:
    """Make the error for an instance that the group does not have."""
    hint = did_you_mean(instance, known) or f"the group has {', '.join(known) or 'none'}"
    return InstanceNotFound(instance, hint=hint)


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        with anyio.fail_after(CALL_TIMEOUT):
            yield
    except TimeoutError as error:
        raise ProviderError(f"the cloud did not answer within {format_duration(CALL_TIMEOUT)}") from error


async def _as_row(group: OpenGroup, id_: str, seen: Observed) -> Sequence[str]:
    age = span(group.clock.now() - seen.created_at) if seen.created_at is not None else ""
    return id_, seen.state.value, age, seen.offering or "", await _address(group, id_, seen)


async def _as_dict(group: OpenGroup, id_: str, seen: Observed) -> Mapping[str, object]:
    return {
        "id": id_,
        "state": seen.state.value,
        "created_at": seen.created_at,
        "offering": seen.offering,
        "intent": seen.intent,
        "address": await _address(group, id_, seen) or None,
    }


async def _address(group: OpenGroup, id_: str, seen: Observed) -> str:
    """Where a running instance is reached; empty if it is not known yet."""
    if seen.state is not State.RUNNING:
        return ""
    try:
        info = await group.driver.calls.connect_info(id_)
    except FleetingError:
        return ""
    return info.external_addr or info.internal_addr or ""
