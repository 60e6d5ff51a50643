"""The `exec` group over scripts that behave, and over all kinds that do not."""

import json
import os
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from attrs import evolve

import fleeting
from fleeting import (
    AuthFailed,
    Capability,
    CapacityUnavailable,
    ConfigError,
    GroupRefused,
    InstanceNotFound,
    LoopClock,
    Observed,
    ProblemKind,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Settings,
    State,
    Unsupported,
)
from fleeting_exec import ExecGroup, _config, _program
from fleeting_exec._contract import OUTPUT_LIMIT
from tests.fleeting_exec.clouds import EMPTY, Cloud, is_alive

pytestmark = pytest.mark.anyio

TOUCH = 'touch "$CLOUD/i-$2"'
LIST = """
printf '{"instances": ['; comma=
for file in "$CLOUD"/i-*; do
    [ -e "$file" ] || continue
    printf '%s{"name": "%s", "state": "running"}' "$comma" "${file##*/i-}"; comma=,
done
echo ']}'
"""
REMOVE = 'rm -f "$CLOUD/i-$2"'
FILES = {"create": TOUCH, "list": LIST, "destroy": REMOVE}
"""A cloud whose instances are empty files."""

HANG = 'trap "" TERM; sleep 1000 & echo $! $$ >"$CLOUD/hanging"; wait; sleep 1000 & wait'
"""Shell text that neither ends nor lets itself be told to, with a child that must not be left either."""


def one(name: str, state: str = "running", **fields: object) -> str:
    """Shell text that lists one instance."""
    return f"echo '{json.dumps({'instances': [{'name': name, 'state': state, **fields}]})}'"


async def view(group: ExecGroup) -> dict[str, Observed]:
    """What the group shows."""
    return dict((await group.update()).instances)


async def states(group: ExecGroup) -> list[State]:
    """What the group shows, in the order of the names."""
    shown = await view(group)
    return [shown[name].state for name in sorted(shown)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    while not condition():
        await checkpoint()


async def until_gone(pids: Sequence[int]) -> None:
    """Wait until none of these processes runs."""
    await until(lambda: not any(map(is_alive, pids)))


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what ignores SIGTERM be killed soon."""
    monkeypatch.setattr(_program, "GRACE", 0.05)


@asynccontextmanager
async def crashed(cloud: Cloud, **settings: object) -> AsyncIterator[ExecGroup]:
    """Open the group as a manager that is killed in the end: nothing is released but by the system."""
    group = cloud.group(**settings)
    await group.init(Settings(owner="test", clock=LoopClock()))
    yield group
    group._store.close()


# --- what it is ------------------------------------------------------------------------------------------


async def test_init_tells_where_it_is_and_what_it_can_do(tmp_path: Path) -> None:
    """The identity is the directory on this host, or what the user says that it is."""
    cloud = Cloud.that(tmp_path)
    group = cloud.group(max_size=5)
    info = await group.init(Settings(owner="test", clock=LoopClock()))
    assert info.identity == f"exec:{os.uname().nodename}:{tmp_path / 'state' / 'default'}"
    assert (info.max_size, set(info.capabilities)) == (5, {Capability.NAMED_CREATE})
    await group.shutdown()
    named = cloud.group(identity="hetzner:ci")
    assert (await named.init(Settings(owner="test", clock=LoopClock()))).identity == "hetzner:ci"
    await named.shutdown()


async def test_a_second_manager_is_refused(tmp_path: Path) -> None:
    """Until the first one lets go; an observer is not."""
    cloud = Cloud.that(tmp_path, **FILES)
    async with cloud.opened():
        with pytest.raises(GroupRefused, match="managed by another process or pool; end that one first"):
            async with cloud.opened():
                pass
        async with cloud.opened(observe_only=True) as observer:
            with pytest.raises(Unsupported, match="observe only; open it to manage it"):
                await observer.increase(1, intent="a")
    async with cloud.opened():
        pass


async def test_an_observer_writes_nothing(tmp_path: Path) -> None:
    """Not even the directory for the group's records; and it sees what the manager does meanwhile."""
    cloud = Cloud.that(tmp_path, **FILES)
    async with cloud.opened(observe_only=True) as observer:
        assert not (tmp_path / "state").exists()
        async with cloud.opened() as group:
            await group.increase(1, intent="a")
            assert await view(observer) == await view(group)
            assert [seen.intent for seen in (await view(observer)).values()] == ["a"]


async def test_records_are_for_our_own_eyes(tmp_path: Path) -> None:
    """The directory is 0700; one that others can write to is refused."""
    cloud = Cloud.that(tmp_path)
    async with cloud.opened():
        assert stat.S_IMODE((tmp_path / "state" / "default").stat().st_mode) == 0o700
    (tmp_path / "state" / "default").chmod(0o777)
    with pytest.raises(GroupRefused, match="a directory of its own with mode 0700"):
        async with cloud.opened():
            pass


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("./no-such-program",), f"there is no executable program ./no-such-program in {Path.cwd()}; correct the"),
        (("no-such-program",), "there is no executable program no-such-program on the PATH; correct the first"),
        (("/etc/passwd",), "there is no executable program /etc/passwd here"),
    ],
)
async def test_a_program_that_cannot_be_run_is_told_of_at_once(
    tmp_path: Path, command: tuple[str, ...], said: str
) -> None:
    """When the group is opened, not when the first instance is asked for."""
    with pytest.raises(GroupRefused, match=said):
        async with Cloud.that(tmp_path).opened(command=command):
            pass


async def test_a_script_without_an_interpreter_cannot_be_started(tmp_path: Path) -> None:
    """No shell reads it for us."""
    cloud = Cloud.of(tmp_path, "echo hello\n")
    with pytest.raises(ProviderError, match=r"^provision list could not be started: Exec .*; begin .* #!/bin/sh$"):
        async with cloud.opened():
            pass


async def test_a_failure_to_open_releases_the_group(tmp_path: Path) -> None:
    """So that it can be tried again."""
    cloud = Cloud.that(tmp_path, list="exit 77")
    with pytest.raises(AuthFailed):
        async with cloud.opened():
            pass
    cloud.now(list=EMPTY)
    async with cloud.opened():
        pass


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "missing key `command` in [plugin_config]"),
        ({"command": "./provision"}, 'write ["./provision"]'),
        ({"command": []}, "plugin_config.command: expected at least 1 entry, found an empty array"),
        ({"command": ["x"], "name": "Ci"}, "1 to 32 lower-case letters"),
        ({"command": ["x"], "list_timeout": "5m"}, 'expected at most "1m40s", found "5m0s"'),
        ({"command": ["x"], "env": {"A-B": "secret"}}, "names of environment variables"),
        ({"command": ["x"], "concurrency": 0}, "expected at least 1, found 0"),
    ],
)
async def test_a_mistake_in_the_settings_is_told_by_its_key(settings: dict[str, object], said: str) -> None:
    """As everywhere; and no value of a variable is shown."""
    with pytest.raises(ConfigError) as error:
        fleeting.load("exec", settings)
    assert said in str(error.value)
    assert "secret" not in str(error.value)


# --- what programs get -----------------------------------------------------------------------------------


async def test_programs_see_only_what_they_are_allowed_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little of the manager's environment, what is allowed by name, and what they are told."""
    monkeypatch.setenv("MANAGERS_TOKEN", "t0ken")
    monkeypatch.setenv("CLOUD_TOKEN", "allowed")
    cloud = Cloud.that(tmp_path, create='env >"$CLOUD/env"')
    async with cloud.opened(name="ci", pass_env=("CLOUD_TOKEN",), env={"REGION": "eu"}) as group:
        await group.increase(1, intent="an intent")
    seen = dict(line.split("=", 1) for line in (cloud.instances / "env").read_text().splitlines())
    told = {key: value for key, value in seen.items() if key.startswith("FLEETING")}
    assert told == {
        "FLEETING_INTERFACE": "1",
        "FLEETING_GROUP": "ci",
        "FLEETING_OWNER": "test",
        "FLEETING_INTENT": "an intent",
    }
    assert (seen["CLOUD_TOKEN"], seen["REGION"], seen["PATH"]) == ("allowed", "eu", os.environ["PATH"])
    assert "MANAGERS_TOKEN" not in seen


async def test_no_shell_touches_the_command(tmp_path: Path) -> None:
    """Arguments arrive as they are written."""
    cloud = Cloud.of(tmp_path, """#!/bin/sh\necho "$1" >"$CLOUD/said"\necho '{"instances": []}'\n""")
    async with cloud.opened(command=(str(cloud.program), "$(id) `id` ; *")):
        pass
    assert (cloud.instances / "said").read_text() == "$(id) `id` ; *\n"


async def test_arguments_are_not_said(tmp_path: Path) -> None:
    """A program that is used wrongly often repeats them all; the script that an interpreter runs stays."""
    script = tmp_path / "script"
    script.write_text('echo "$0: bad usage: $* (token ${1#*=})" >&2; exit 1')
    arguments = ("--token=s3cret-token", "other-s3cret")
    group = ExecGroup(_config.ExecConfig(command=("sh", str(script), *arguments), state_dir=str(tmp_path / "state")))
    with pytest.raises(ProviderError) as caught:
        await group.init(Settings(owner="test", clock=LoopClock()))
    assert "s3cret" not in str(caught.value)
    assert f"{script}: bad usage: *** *** list (token ***)" in str(caught.value)


async def test_secrets_are_not_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither values from the configuration nor those that are passed on, whatever the program writes."""
    monkeypatch.setenv("CLOUD_TOKEN", "passed-secret")
    cloud = Cloud.that(tmp_path, create='echo "with $CLOUD_TOKEN and $PASSWORD: no" >&2; exit 77')
    async with cloud.opened(env={"PASSWORD": "configured-secret"}, pass_env=("CLOUD_TOKEN",)) as group:
        with pytest.raises(AuthFailed, match=r"exited with 77: with \*\*\* and \*\*\*: no$"):
            await group.increase(1, intent="a")
        for shown in (repr(group), repr(group._config), repr(group._program)):
            assert "d-secret" not in shown


# --- growing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [(69, CapacityUnavailable), (73, QuotaExceeded), (75, RateLimited), (77, AuthFailed), (1, ProviderError)],
)
async def test_a_create_that_fails_leaves_nothing(tmp_path: Path, code: int, kind: type[ProviderError]) -> None:
    """What it had made before it failed is destroyed; the error is of the class that the exit status stands for."""
    cloud = Cloud.that(tmp_path, **{**FILES, "create": f"{TOUCH}; echo none left >&2; exit {code}"})
    async with cloud.opened() as group:
        with pytest.raises(kind, match=f"provision create default-.*-1 exited with {code}: none left"):
            await group.increase(1, intent="a")
        assert await view(group) == {}
        (created,) = [line for line in cloud.log() if line.startswith("create")]
        assert cloud.log().count(created.replace("create", "destroy")) == 1


async def test_what_cannot_be_cleared_away_is_shown_until_it_is(tmp_path: Path) -> None:
    """Failed, explained by nothing, listed or not; so the manager asks for its end until that succeeds."""
    cloud = Cloud.that(tmp_path, create="exit 1", list=EMPTY, destroy="exit 1")
    async with cloud.opened() as group:
        with pytest.raises(ProviderError):
            await group.increase(1, intent="a")
        ((name, seen),) = (await view(group)).items()
        assert (seen.state, seen.intent) == (State.FAILED, None)
        cloud.now(list=one(name, "running"))
        assert (await view(group))[name] == seen
        with pytest.raises(ProviderError, match=f"provision destroy {name} exited with 1"):
            await group.decrease([name])
        cloud.now(destroy=":", list=EMPTY)
        assert await group.decrease([name]) == [name]
        assert await view(group) == {}


async def test_some_of_several_may_fail(tmp_path: Path) -> None:
    """What was made is accepted; why it is not more is a problem, until a request is wholly carried out."""
    lucky = f"{TOUCH}; case $2 in *-2) echo sold out >&2; exit 69 ;; esac"
    cloud = Cloud.that(tmp_path, **{**FILES, "create": lucky})
    async with cloud.opened() as group:
        assert await group.increase(3, intent="a") == 2
        observation = await group.update()
        assert len(observation.instances) == 2
        (problem,) = observation.problems
        assert problem.kind is ProblemKind.CAPACITY
        assert problem.message.endswith("exited with 69: sold out")
        assert await group.increase(2, intent="b") == 1
        assert (await group.update()).problems[0].since == problem.since
        cloud.now(create=TOUCH)
        assert await group.increase(1, intent="c") == 1
        assert (await group.update()).problems == ()


async def test_a_refused_intent_may_be_tried_again_under_new_names(tmp_path: Path) -> None:
    """A name is never used twice, so what the cloud may bring late is not taken for what was made later."""
    cloud = Cloud.that(tmp_path, **{**FILES, "create": "exit 69"})
    async with cloud.opened() as group:
        with pytest.raises(CapacityUnavailable):
            await group.increase(1, intent="a")
        cloud.now(create=TOUCH)
        assert await group.increase(1, intent="a") == 1
        (name,) = await view(group)
        assert name.endswith("-2")
        late = name.removesuffix("2") + "1"
        (cloud.instances / f"i-{late}").touch()
        assert {name: seen.intent for name, seen in (await view(group)).items()} == {late: None, name: "a"}


async def test_an_intent_is_answered_as_before_by_the_next_manager_too(tmp_path: Path) -> None:
    """And for what is gone since: nothing new is made, no name comes back."""
    cloud = Cloud.that(tmp_path, **FILES)
    async with crashed(cloud) as group:
        assert await group.increase(2, intent="a") == 2
        gone, _ = sorted(await view(group))
        assert await group.decrease([gone]) == [gone]
        assert await group.increase(2, intent="a") == 2
    async with cloud.opened() as group:
        assert await group.increase(2, intent="a") == 2
        assert [seen.intent for seen in (await view(group)).values()] == ["a"]
        assert await group.decrease([gone]) == [gone]
        assert await group.increase(2, intent="a") == 2
    assert sum(line.startswith("create") for line in cloud.log()) == 2


async def test_what_a_killed_manager_left_half_made_is_destroyed(tmp_path: Path) -> None:
    """Nobody has seen its end, so it is shown as failed, whatever the cloud says, and explains what was asked for."""
    cloud = Cloud.that(tmp_path, **FILES)
    async with crashed(cloud) as group:
        await group.increase(1, intent="a")
        (name,) = await view(group)
    (record,) = (tmp_path / "state" / "default").glob("*.json")
    record.write_text(record.read_text().replace("made", "open"))
    async with cloud.opened(observe_only=True) as observer:
        assert await states(observer) == [State.CREATING]
    async with cloud.opened() as group:
        assert await view(group) == {name: Observed(state=State.FAILED, intent="a")}
        assert await group.increase(1, intent="a") == 1
        await group.decrease([name])
        assert await states(group) == [State.RUNNING]


async def test_a_record_that_is_none_is_refused(tmp_path: Path) -> None:
    """It is told which file it is."""
    cloud = Cloud.that(tmp_path, **FILES)
    async with cloud.opened():
        (tmp_path / "state" / "default" / "x.json").write_text("{}")
    with pytest.raises(ProviderError, match=r"x\.json is not a record of this group .*; remove it"):
        async with cloud.opened():
            pass


async def test_nothing_is_made_that_cannot_be_written_down(tmp_path: Path) -> None:
    """Its name would be forgotten in a crash."""
    cloud = Cloud.that(tmp_path, **FILES)
    async with cloud.opened(max_size=1) as group:
        state = tmp_path / "state" / "default"
        state.rename(tmp_path / "aside")
        with pytest.raises(ProviderError, match=r"\.json cannot be written: No such file or directory"):
            await group.increase(1, intent="a")
        assert not any(line.startswith("create") for line in cloud.log())
        (tmp_path / "aside").rename(state)
        assert await group.increase(1, intent="a") == 1


@pytest.mark.usefixtures("soon")
async def test_a_create_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """At its time limit; and what it had made is destroyed."""
    cloud = Cloud.that(tmp_path, **{**FILES, "create": f"{TOUCH}; {HANG}"})
    async with cloud.opened(create_timeout=0.3) as group:
        with pytest.raises(ProviderError, match=r"create default-.*-1 did not end within 300ms and was killed$"):
            await group.increase(1, intent="a")
        await until_gone(cloud.hanging())
        assert await view(group) == {}


async def test_one_that_is_being_made_is_not_to_be_used_yet(tmp_path: Path) -> None:
    """Whatever the cloud says. If it is to go, it goes once it is made, and the answer is that it was."""
    wait = f'{TOUCH}; while [ ! -e "$CLOUD/go" ]; do sleep 0.01; done'
    cloud = Cloud.that(tmp_path, **{**FILES, "create": wait})
    answers = []

    async def ask() -> None:
        answers.append(await group.increase(1, intent="a"))

    async with cloud.opened() as group, anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        while not (shown := await view(group)):
            pass
        ((name, seen),) = shown.items()
        assert (seen.state, seen.intent) == (State.CREATING, "a")
        assert await group.decrease([name]) == [name]
        assert await states(group) == [State.DELETING]
        assert not any(line.startswith("destroy") for line in cloud.log())
        (cloud.instances / "go").touch()
        await until(lambda: answers == [1])
        assert await view(group) == {}


async def test_a_create_may_take_longer_than_its_caller_waits(tmp_path: Path) -> None:
    """It is not broken off, and the answer is the true one: the manager need not ask again."""
    cloud = Cloud.that(tmp_path, **{**FILES, "create": f"sleep 0.3; {TOUCH}"})
    async with cloud.opened() as group:
        with anyio.fail_after(0.1):
            assert await group.increase(1, intent="a") == 1


async def test_two_who_ask_under_one_intent_get_one_answer(tmp_path: Path) -> None:
    """Also at the same time."""
    cloud = Cloud.that(tmp_path, **{**FILES, "create": f"sleep 0.1; {TOUCH}"})
    answers = []

    async def ask() -> None:
        answers.append(await group.increase(2, intent="a"))

    async with cloud.opened() as group:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)
        assert answers == [2, 2, 2]
        assert len(await view(group)) == 2
        assert group._asking == {}


async def test_no_more_run_at_once_than_are_allowed(tmp_path: Path) -> None:
    """However many are asked for."""
    busy = f'echo + >>"$CLOUD/busy"; sleep 0.05; echo - >>"$CLOUD/busy"; {TOUCH}'
    cloud = Cloud.that(tmp_path, **{**FILES, "create": busy})
    async with cloud.opened(concurrency=2) as group:
        assert await group.increase(5, intent="a") == 5
    level = most = 0
    for line in (cloud.instances / "busy").read_text().split():
        level += 1 if line == "+" else -1
        most = max(most, level)
    assert (level, most) == (0, 2)


async def test_a_lie_about_success_brings_nothing_and_costs_a_place_for_a_while(tmp_path: Path) -> None:
    """It was accepted and never appears; until it is given up, it may still come, so it counts."""
    cloud = Cloud.that(tmp_path, create=":", list=EMPTY)
    async with cloud.opened(max_size=1) as group:
        assert await group.increase(1, intent="a") == 1
        assert await view(group) == {}
        assert await group.increase(1, intent="b") == 0
        group._expected = dict.fromkeys(group._expected, 0.0)
        await group.update()
        assert await group.increase(1, intent="c") == 1


async def test_other_names_than_ours_explain_nothing(tmp_path: Path) -> None:
    """A script that lists what it made under a name of its own is told of by what becomes of it: it is unexplained."""
    cloud = Cloud.that(tmp_path, create=":", list=one("i-0815"))
    async with cloud.opened() as group:
        await group.increase(1, intent="a")
        assert await view(group) == {"i-0815": Observed(state=State.RUNNING)}


# --- looking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo not JSON", "printed invalid output: it is not JSON"),
        (":", "printed invalid output: nothing"),
        ("exit 75", "exited with 75"),
        ("kill -9 $$", "was ended by signal 9"),
        ("printf '\\377'", "printed invalid output: it is not JSON"),
        ("exec yes", f"printed more than {OUTPUT_LIMIT >> 20} MiB and was killed"),
        ("yes >&2 & sleep 0.2; exit 3", "exited with 3: y y y"),
    ],
)
async def test_a_view_that_is_none_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """Not a part of one, and not an empty one: the manager would take all for lost."""
    cloud = Cloud.that(tmp_path)
    async with cloud.opened() as group:
        cloud.now(list=text)
        with pytest.raises(ProviderError) as error:
            await group.update()
        assert str(error.value).startswith(f"provision list {said}")
        cloud.now(list=EMPTY)
        assert await view(group) == {}


@pytest.mark.usefixtures("soon")
async def test_a_list_that_hangs_is_killed(tmp_path: Path) -> None:
    """With all of its children, at its time limit."""
    cloud = Cloud.that(tmp_path)
    async with cloud.opened() as group:
        group._config = evolve(group._config, list_timeout=0.3)  # now: who opens it has it list, too
        cloud.now(list=HANG)
        with pytest.raises(ProviderError, match="provision list did not end within 300ms and was killed"):
            await group.update()
        await until_gone(cloud.hanging())


@pytest.mark.usefixtures("soon")
async def test_a_look_that_is_cancelled_ends_at_once(tmp_path: Path) -> None:
    """Nothing of it runs on."""
    cloud = Cloud.that(tmp_path)
    async with cloud.opened() as group, anyio.create_task_group() as tasks:
        cloud.now(list=HANG)
        tasks.start_soon(group.update)
        await until(lambda: bool(cloud.hanging()))
        tasks.cancel_scope.cancel()
    await until_gone(cloud.hanging())


async def test_a_child_that_keeps_the_pipe_open_holds_up_nobody(tmp_path: Path) -> None:
    """What the program itself has written is taken, and that is that."""
    cloud = Cloud.that(tmp_path)
    async with cloud.opened() as group:
        cloud.now(list='sleep 1000 & echo $! >"$CLOUD/child"; ' + one("a"))
        assert list(await view(group)) == ["a"]
        child = int((cloud.instances / "child").read_text())
        assert is_alive(child)
        os.kill(child, 9)


async def test_an_unknown_state_is_the_last_that_was_known(tmp_path: Path) -> None:
    """So one bad moment of the cloud's breaks nothing; an instance that was never seen otherwise is being created."""
    cloud = Cloud.that(tmp_path, list=one("a", "unknown"))
    async with cloud.opened() as group:
        assert await states(group) == [State.CREATING]
        cloud.now(list=one("a", "running"))
        assert await states(group) == [State.RUNNING]
        cloud.now(list=one("a", "unknown"))
        assert await states(group) == [State.RUNNING]
        with pytest.raises(ProviderError, match="a is not running: its state is unknown"):
            await group.heartbeat("a")


async def test_the_view_has_what_the_program_tells(tmp_path: Path) -> None:
    """Times, offerings, problems."""
    text = {
        "instances": [{"name": "a", "state": "suspended", "created_at": 17, "offering": "eu/large\n"}],
        "problems": [{"kind": "image", "message": "no such image"}],
    }
    cloud = Cloud.that(tmp_path, list=f"cat <<'END'\n{json.dumps(text)}\nEND")
    async with cloud.opened() as group:
        observation = await group.update()
        assert observation.instances == {"a": Observed(state=State.SUSPENDED, created_at=17.0, offering="eu/large")}
        assert [(problem.kind, problem.message) for problem in observation.problems] == [
            (ProblemKind.IMAGE, "no such image")
        ]


# --- connecting ------------------------------------------------------------------------------------------


async def test_what_list_says_is_enough_to_connect(tmp_path: Path) -> None:
    """No other call is made."""
    (tmp_path / "key").write_text("the key")
    details: dict[str, Any] = {
        "external_addr": "192.0.2.1",
        "port": 2222,
        "user": "ci",
        "password": "t0p secret",
        "key_path": str(tmp_path / "key"),
        "host_key": "ssh-ed25519 AAAA",
        "os": "windows",
        "arch": "arm64",
        "protocol": "winrm+https",
    }
    cloud = Cloud.that(tmp_path, list=one("a", **details), status="exit 1")
    async with cloud.opened() as group:
        await group.update()
        info = await group.connect_info("a")
        told = {name: getattr(info, name) for name in details if name != "key_path"}
        assert told == {name: value for name, value in details.items() if name != "key_path"}
        assert info.key == "the key"
        assert "t0p" not in repr(group)
        assert cloud.log() == ["list", "list"]


async def test_status_is_asked_where_list_does_not_say_enough(tmp_path: Path) -> None:
    """Or where what it said is over."""
    status = 'echo \'{"name": "a", "state": "running", "internal_addr": "10.0.0.1", "expires_at": 1}\''
    cloud = Cloud.that(tmp_path, list=one("a"), status=status)
    async with cloud.opened() as group:
        assert (await group.connect_info("a")).internal_addr == "10.0.0.1"
        cloud.now(list=one("a", internal_addr="10.0.0.2", expires_at=1))
        await group.update()
        assert (await group.connect_info("a")).internal_addr == "10.0.0.1"
        await group.heartbeat("a")


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        ("exit 66", InstanceNotFound, "instance a does not exist"),
        ('echo \'{"name": "a", "state": "deleted"}\'', InstanceNotFound, "instance a does not exist"),
        ('echo \'{"name": "a", "state": "running"}\'', ProviderError, "neither internal_addr nor external_addr"),
        ('echo \'{"name": "b", "state": "running"}\'', ProviderError, "asked about a, and describes b"),
        ("exit 1", ProviderError, "provision status a exited with 1"),
    ],
)
async def test_status_may_not_help(tmp_path: Path, status: str, kind: type[ProviderError], said: str) -> None:
    """Then it is said why."""
    async with Cloud.that(tmp_path, list=one("a"), status=status).opened() as group:
        with pytest.raises(kind, match=said) as error:
            await group.connect_info("a")
        assert type(error.value) is kind


async def test_a_key_that_cannot_be_read_is_told_of(tmp_path: Path) -> None:
    """By the path and the reason."""
    cloud = Cloud.that(tmp_path, list=one("a", internal_addr="h", key_path=str(tmp_path / "none")))
    async with cloud.opened() as group:
        with pytest.raises(ProviderError, match="none cannot be read: No such file or directory"):
            await group.connect_info("a")


async def test_a_key_that_would_never_end_is_not_read(tmp_path: Path) -> None:
    """A pipe that nobody writes to would hold up the group for ever."""
    os.mkfifo(tmp_path / "pipe")
    cloud = Cloud.that(tmp_path, list=one("a", internal_addr="h", key_path=str(tmp_path / "pipe")))
    async with cloud.opened() as group:
        with pytest.raises(ProviderError, match="pipe is not a file"):
            await group.connect_info("a")


async def test_without_status_one_list_answers_all_who_ask_at_once(tmp_path: Path) -> None:
    """And that there is no status is learnt once."""
    cloud = Cloud.that(tmp_path, list=one("a"))
    async with cloud.opened() as group:
        await group.heartbeat("a")
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(group.heartbeat, "a")
        with pytest.raises(InstanceNotFound):
            await group.heartbeat("b")
        with pytest.raises(InstanceNotFound):
            await group.heartbeat("--help")
    assert cloud.log().count("status a") == 1
    assert cloud.log().count("list") <= 10


# --- shrinking -------------------------------------------------------------------------------------------


async def test_what_cannot_be_destroyed_is_not_accepted(tmp_path: Path) -> None:
    """The rest is; if nothing is, it is an error that says why."""
    cloud = Cloud.that(tmp_path, destroy="case $2 in b) echo busy >&2; exit 75 ;; c) exit 66 ;; esac")
    async with cloud.opened() as group:
        assert await group.decrease(["a", "b", "c"]) == ["a", "c"]
        with pytest.raises(RateLimited, match="provision destroy b exited with 75: busy"):
            await group.decrease(["b"])


async def test_a_lie_about_the_end_is_no_end(tmp_path: Path) -> None:
    """It is shown for as long as it is listed."""
    cloud = Cloud.that(tmp_path, list=one("a"), destroy=":")
    async with cloud.opened() as group:
        assert await group.decrease(["a"]) == ["a"]
        assert await states(group) == [State.RUNNING]


async def test_one_that_is_being_destroyed_is_not_destroyed_twice(tmp_path: Path) -> None:
    """It is asked for again later, if it is still there."""
    cloud = Cloud.that(tmp_path, destroy='while [ ! -e "$CLOUD/go" ]; do sleep 0.01; done')
    async with cloud.opened() as group, anyio.create_task_group() as tasks:
        tasks.start_soon(group.decrease, ["a"])
        await until(lambda: "destroy a" in cloud.log())
        with pytest.raises(ProviderError, match="a is already being destroyed"):
            await group.decrease(["a"])
        (cloud.instances / "go").touch()
    assert cloud.log().count("destroy a") == 1


async def test_a_destroy_is_not_broken_off(tmp_path: Path) -> None:
    """Whoever asked for it has gone; it is carried out all the same."""
    cloud = Cloud.that(tmp_path, destroy='echo begun >"$CLOUD/begun"; sleep 0.2; echo done >"$CLOUD/done"')
    async with cloud.opened() as group:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(group.decrease, ["a"])
            await until((cloud.instances / "begun").exists)
            tasks.cancel_scope.cancel()
        assert (cloud.instances / "done").exists()
