"""The catalogue of errors: every entry is complete, documented, and met on a way that users take.

Whoever adds an error is told by these tests what is missing; CONTRIBUTING has it in one place.
"""

import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import frozen
from click.testing import CliRunner, Result

import fleeting
import taskscaler
from fleeting import Completed, Connection, FleetingError, LoopClock, Settings
from fleeting.cli import main as by_hand
from fleeting.connectors import Collector, RunsDetached, listen_tcp
from fleeting.errors import CatalogueEntry, Mistake, catalogue
from fleeting.groups.local import LocalGroup
from fleeting.groups.local._config import LocalConfig
from fleeting.plugins import INTERFACE_VERSION
from fleeting.testing import Command, FakeCloud, FakeGroup, Fault, IncreaseFault, virtual_run
from taskscaler import Pool, Taskscaler
from taskscaler.batch import read_events
from taskscaler.cli import main
from taskscaler.futures import Call, FleetExecutor

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors.md"
CODE = re.compile(r"(?:FL|TS)[0-9]{3}")

PLUGIN = """
import fleeting
from attrs import frozen
from fleeting.testing import FakeGroup

@frozen
class Config:
    pass

class OfThePlugin(fleeting.{base}):
    def __init__(self):
        Exception.__init__(self, "the cloud said so")

class Group(FakeGroup):
    async def init(self, settings):
        raise OfThePlugin

@fleeting.hookimpl
def fleeting_group():
    return fleeting.GroupPlugin(config=Config, group=lambda config: Group(), interface_version={version})
"""


@frozen
class Place:
    """Where a user works: a directory, the command, and a Python that plugins can be installed into."""

    directory: Path

    def run(self, jobs: str = "", *, fleet: str = "", arguments: str = "run jobs.toml --output results") -> set[str]:
        """Run the command on a jobs file, and return the codes that it told."""
        file = (
            f'[autoscaler]\nplugin = "local"\nupdate_interval_when_expecting = "20ms"\n'
            f'plugin_config = {{ directory = "{self.directory}/fleet" }}\n{fleet}\n'
            f'[[jobs]]\nname = "a"\nscript = "true"\n{jobs}\n'
        )
        Path("jobs.toml").write_text(file)
        return self.run_file(arguments)

    def run_file(self, arguments: str = "run jobs.toml --output results") -> set[str]:
        """Run the command as things are, and return the codes that it told."""
        result = CliRunner().invoke(main, arguments.split(), prog_name="taskscaler")
        assert isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code in (1, 2), result.output
        return set(re.findall(rf"^error: .*\[({CODE.pattern})\]$", result.stderr, flags=re.MULTILINE))

    def install(self, source: str) -> None:
        """Install a plugin for groups, as pip would, and write a jobs file that uses it."""
        module = f"plugin_of_{self.directory.name}"
        (self.directory / f"{module}.py").write_text(source)
        info = self.directory / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: of-a-test\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[fleeting.groups]\ncloudy = {module}\n")
        Path("jobs.toml").write_text('[autoscaler]\nplugin = "cloudy"\n[[jobs]]\nname = "a"\nscript = "true"\n')


Provocation = Callable[[Place], set[str]]

PROVOCATIONS: dict[str, Provocation] = {}
"""For each code, how a user meets it; returns the codes that are told."""


def provokes(code: str) -> Callable[[Provocation], Provocation]:
    """Mark a function as the provocation of an error."""

    def note(provoke: Provocation) -> Provocation:
        PROVOCATIONS[code] = provoke
        return provoke

    return note


def caught(program: Callable[[], Awaitable[object]]) -> set[str]:
    """Run a program of a user's, and return the code of the error that it met."""
    return caught_in_real_time(program, **virtual_run("trio"))


def caught_in_real_time(program: Callable[[], Awaitable[object]], **options: Any) -> set[str]:  # noqa: ANN401  (anyio's)
    """As `caught`, for programs with real processes."""
    with pytest.raises(FleetingError) as error:
        anyio.run(program, **options)
    return {error.value.entry.code}


# --- configuration and plugins -----------------------------------------------------------------------------


@provokes("FL110")
def value(place: Place) -> set[str]:
    """Write a number that may not stand there."""
    return place.run(fleet="max_instances = -1")


@provokes("FL111")
def syntax(place: Place) -> set[str]:
    """Leave a bracket open."""
    return place.run("[report")


@provokes("FL112")
def unknown_key(place: Place) -> set[str]:
    """Mistype a key."""
    return place.run('artefacts = ["out"]')


@provokes("FL113")
def missing_key(place: Place) -> set[str]:
    """Forget a job's script."""
    return place.run('[[jobs]]\nname = "b"')


@provokes("FL114")
def wrong_type(place: Place) -> set[str]:
    """Put a number in quotes."""
    return place.run(fleet='max_instances = "4"')


@provokes("FL115")
def no_duration(place: Place) -> set[str]:
    """Leave out the unit."""
    return place.run("timeout = 90")


@provokes("FL116")
def missing_file(place: Place) -> set[str]:
    """Name a file that is not there."""
    return place.run('files = ["data.csv"]')


@provokes("FL120")
def not_installed(place: Place) -> set[str]:
    """Name an executor that nobody has installed."""
    return place.run('executor = "kubernetes"')


@provokes("FL121")
def broken_plugin(place: Place) -> set[str]:
    """Use a plugin whose SDK is missing."""
    place.install("import the_sdk_of_a_cloud_that_is_not_installed\n")
    return place.run_file()


@provokes("FL122")
def plugin_of_another_time(place: Place) -> set[str]:
    """Use a plugin that was written for a later interface."""
    place.install(PLUGIN.format(base="ProviderError", version=1000))
    return place.run_file()


@provokes("FL130")
def unsupported(_: Place) -> set[str]:
    """Open a tunnel over a connector that has none."""

    async def program() -> None:
        async with (
            Taskscaler(pool_on(FakeCloud())) as scaler,
            scaler.acquire("job") as lease,
            lease.dial() as connection,
        ):
            await connection.open_unix("/run/docker.sock")

    return caught(program)


# --- the group, its state, its cloud -----------------------------------------------------------------------


@provokes("FL201")
def group_of_others(place: Place) -> set[str]:
    """Give the fleet a directory that everybody can write into."""
    (place.directory / "fleet").mkdir()
    (place.directory / "fleet").chmod(0o777)
    return place.run()


@provokes("FL202")
def state_without_a_place(place: Place) -> set[str]:
    """Keep the state below a file."""
    return place.run(fleet='state_storage.dir = "/dev/null/state"')


def of_a_plugin(base: str) -> Provocation:
    """Use a plugin that raises an error of its own kind: it has the code of what it is derived from."""

    def provoke(place: Place) -> set[str]:
        place.install(PLUGIN.format(base=base, version=INTERFACE_VERSION))
        return place.run_file()

    return provoke


provokes("FL100")(of_a_plugin("FleetingError"))
provokes("FL300")(of_a_plugin("ProviderError"))
provokes("FL301")(of_a_plugin("CapacityUnavailable"))
provokes("FL302")(of_a_plugin("QuotaExceeded"))
provokes("FL303")(of_a_plugin("RateLimited"))
provokes("FL304")(of_a_plugin("AuthFailed"))


@provokes("FL305")
def unknown_instance(place: Place) -> set[str]:
    """Ask the local group for an instance that has ended."""

    async def program() -> None:
        group = LocalGroup(LocalConfig(directory=str(place.directory / "fleet")))
        await group.init(Settings(owner="me", clock=LoopClock()))
        try:
            await group.connect_info("default-0123456789ab")
        finally:
            await group.shutdown()

    return caught_in_real_time(program)


@provokes("FL306")
def lost_answer(_: Place) -> set[str]:
    """Lose the connection to the cloud while instances are asked for."""

    async def program() -> None:
        cloud = FakeCloud()
        cloud.faults.increase.once(IncreaseFault(lose=True))
        group = FakeGroup(cloud)
        await group.init(Settings(owner="me", clock=LoopClock()))
        await group.increase(1, intent="one")

    return caught(program)


# --- connections -------------------------------------------------------------------------------------------


@provokes("FL400")
def more_output_than_is_kept(place: Place) -> set[str]:
    """Collect the output of a command that never ends writing."""
    return caught_on_an_instance(place, lambda connection: connection.run("yes"))


@provokes("FL404")
def failing_command(place: Place) -> set[str]:
    """Run a command that fails."""
    return caught_on_an_instance(place, lambda connection: connection.run("exit 3", check=True))


@provokes("FL405")
def copy_of_nothing(place: Place) -> set[str]:
    """Copy a file that is not there to an instance."""
    config = place.directory / "fleet.toml"
    config.write_text(
        f'plugin = "local"\nplugin_config = {{ directory = "{place.directory}/fleet", orphan_ttl = "5s" }}'
    )

    def fleeting(*arguments: str) -> Result:
        return CliRunner().invoke(by_hand, [arguments[0], str(config), *arguments[1:]])

    fleeting("increase", "1")
    instance = fleeting("list").stdout.splitlines()[1].split()[0]
    while "running" not in fleeting("list").stdout:
        pass
    copied = fleeting("cp", "nothing", f"{instance}:")
    fleeting("decrease", instance)
    return set(CODE.findall(copied.stderr))


@provokes("FL406")
def name_that_is_taken(place: Place) -> set[str]:
    """Start two detached commands of one name."""

    async def start_twice(connection: Connection) -> None:
        assert isinstance(connection, RunsDetached)
        await connection.start("a", "true")
        await connection.start("a", "true")

    return caught_on_an_instance(place, start_twice)


@provokes("FL407")
def name_that_is_unknown(place: Place) -> set[str]:
    """Attach to a detached command that was never started."""

    async def attach(connection: Connection) -> None:
        assert isinstance(connection, RunsDetached)
        await connection.attach("a", output=Collector("the output"))

    return caught_on_an_instance(place, attach)


@provokes("FL408")
def command_that_removes_what_is_kept_of_it(place: Place) -> set[str]:
    """Attach to a detached command that removes its own files."""

    async def attach(connection: Connection) -> None:
        assert isinstance(connection, RunsDetached)
        await connection.start("a", "sleep 0.3; rm -r ../detached; exec sleep 1000")
        await connection.attach("a", output=Collector("the output"))

    return caught_on_an_instance(place, attach)


@provokes("FL409")
def port_that_is_taken(place: Place) -> set[str]:
    """Listen twice at one port of an instance."""

    async def listen_twice(connection: Connection) -> None:
        async with (
            listen_tcp(connection, "127.0.0.1", 0) as first,
            listen_tcp(connection, "127.0.0.1", first.port),
        ):
            pass

    return caught_on_an_instance(place, listen_twice)


def caught_on_an_instance(place: Place, act: Callable[[Connection], Awaitable[object]]) -> set[str]:
    """Do something with a connection to a real instance."""

    async def program() -> None:
        config = LocalConfig(directory=str(place.directory / "fleet"), orphan_ttl=0)
        pool = Pool(LocalGroup(config), update_interval_when_expecting=0.02)
        async with (
            Taskscaler(pool, delete_instances_on_shutdown=True) as scaler,
            scaler.acquire("job") as lease,
            lease.dial() as connection,
        ):
            await act(connection)

    return caught_in_real_time(program)


@provokes("FL401")
def cut_connection(_: Place) -> set[str]:
    """Lose the connection to an instance in the middle of a command."""

    async def program() -> None:
        async def cut(instance: str, _: Command) -> Completed:
            cloud.cut(instance)
            await anyio.sleep_forever()
            return Completed(exit_status=0)

        cloud = FakeCloud(on_command=cut)
        async with Taskscaler(pool_on(cloud)) as scaler:
            lease = await scaler.acquire_lease("job")
            async with lease.dial() as connection:
                await connection.run("true")

    return caught(program)


def refused_by_a_connector(base: type[FleetingError]) -> Provocation:
    """Dial by a connector that raises an error of its own kind."""

    def provoke(_: Place) -> set[str]:
        async def program() -> None:
            kind = type("OfTheConnector", (base,), {})
            cloud = FakeCloud()
            cloud.faults.dial.always(Fault(refuse=kind("the other side said so")))
            async with Taskscaler(pool_on(cloud)) as scaler:
                lease = await scaler.acquire_lease("job")
                async with lease.dial():
                    pass

        return caught(program)

    return provoke


provokes("FL402")(refused_by_a_connector(fleeting.HostKeyMismatch))
provokes("FL403")(refused_by_a_connector(fleeting.LoginRejected))


# --- the command line --------------------------------------------------------------------------------------


@provokes("FL101")
def wrong_arguments(place: Place) -> set[str]:
    """Mistype an option."""
    return place.run(arguments="run jobs.toml --outptu results")


@provokes("FL102")
def refused_by_the_system(place: Place) -> set[str]:
    """Ask for the results in a place where nothing can be made."""
    return place.run(arguments="run jobs.toml --output jobs.toml/results")


@provokes("TS103")
def results_in_the_way(place: Place) -> set[str]:
    """Ask for the results where something is."""
    return place.run(arguments="run jobs.toml --output .")


@provokes("TS104")
def nothing_to_resume(place: Place) -> set[str]:
    """Go on with what was never begun."""
    return place.run(arguments="run --resume .")


@provokes("TS105")
def failing_report(place: Place) -> set[str]:
    """Have a report made by a command that fails."""
    return place.run('[report]\ncommand = ["false"]')


@provokes("TS106")
def record_of_a_later_release(place: Place) -> set[str]:
    """Read what became of a batch with a release that is too old for it."""
    events = place.directory / "events.jsonl"
    events.write_text('{"format": "taskscaler events", "version": 1000}\n')

    async def program() -> None:
        read_events(events)

    return caught(program)


@provokes("TS107")
def nothing_to_explain(place: Place) -> set[str]:
    """Ask about a batch where there is none."""
    return place.run(arguments="explain .")


@provokes("TS108")
def timeline_without_matplotlib(place: Place) -> set[str]:
    """Ask for a timeline where nothing is installed that could draw it."""
    came = {"event": "instance", "at": 1.7e9, "pool": "p", "instance": "i", "state": "running"}
    (place.directory / "fleet.jsonl").write_text(f"{json.dumps(came)}\n")
    (place.directory / "results.json").write_text('{"started": "2026-03-02", "ended": "2026-03-03", "jobs": []}\n')
    drawing = {name: sys.modules.pop(name, None) for name in ("matplotlib", "taskscaler.report._draw")}
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # (so it cannot be imported)
    try:
        result = CliRunner().invoke(main, ["report", "."])
        assert result.exit_code == 0, "the figures need no picture"
        return set(re.findall(r"^note: .*\[(\w+)\]$", result.stderr, flags=re.MULTILINE))
    finally:
        del sys.modules["matplotlib"]
        sys.modules.update({name: module for name, module in drawing.items() if module is not None})


@provokes("TS109")
def no_daemon(place: Place) -> set[str]:
    """Ask a daemon that is not there."""
    return place.run(arguments=f"status --socket {place.directory}/no.sock")


@provokes("TS110")
def socket_with_a_long_name(place: Place) -> set[str]:
    """Serve on a path that no socket can have."""
    Path("fleet.toml").write_text('[autoscaler]\nplugin = "local"\n')
    return place.run(arguments=f"serve fleet.toml --socket {place.directory}/{'long' * 30}.sock")


@provokes("TS111")
def request_that_makes_no_sense(place: Place) -> set[str]:
    """Ask a server that is none of ours, which does not say what is wrong."""
    from tests.taskscaler.strange_server import strange_server

    with strange_server(place.directory / "strange.sock"):
        return place.run(arguments=f"status --socket {place.directory}/strange.sock")


@provokes("TS112")
def trace_without_a_header(place: Place) -> set[str]:
    """Simulate with a table whose columns nobody knows."""
    Path("fleet.toml").write_text('[autoscaler]\nplugin = "local"\n')
    Path("trace.csv").write_text("when,how_long\n1,2\n")
    return place.run(arguments="simulate fleet.toml --trace trace.csv")


@provokes("TS113")
def fleet_that_never_boots(place: Place) -> set[str]:
    """Simulate a cloud on which every instance fails."""
    Path("fleet.toml").write_text('[autoscaler]\nplugin = "local"\n')
    return place.run(arguments="simulate fleet.toml --synthetic jobs=1 --boot-failure 1")


# --- jobs and slots ----------------------------------------------------------------------------------------


def pool_on(cloud: FakeCloud) -> Pool:
    """A pool on a cloud in memory."""
    group = FakeGroup(cloud)
    return Pool(group, dial=group.dial)


def caught_with(use: Callable[[Taskscaler, FakeCloud], Awaitable[object]]) -> set[str]:
    """Use a scaler, and return the code of the error that this met."""

    async def program() -> None:
        cloud = FakeCloud()
        async with Taskscaler(pool_on(cloud)) as scaler:
            await use(scaler, cloud)

    return caught(program)


@provokes("TS100")
def scaler_that_is_not_open(_: Place) -> set[str]:
    """Ask a scaler for a slot before it is entered."""

    async def program() -> None:
        await Taskscaler(pool_on(FakeCloud())).acquire_lease("job")

    return caught(program)


@provokes("TS201")
def no_capacity(_: Place) -> set[str]:
    """Wait for a slot for less time than an instance takes."""
    return caught_with(lambda scaler, _: scaler.acquire_lease("job", timeout=0))


@provokes("TS202")
def key_in_use(_: Place) -> set[str]:
    """Reserve twice under the same key."""

    async def use(scaler: Taskscaler, _: FakeCloud) -> None:
        await scaler.reserve("job")
        await scaler.reserve("job")

    return caught_with(use)


@provokes("TS203")
def not_suspended(_: Place) -> set[str]:
    """Resume what was never suspended."""
    return caught_with(lambda scaler, _: scaler.resume("job"))


@provokes("TS208")
def expired_lease(_: Place) -> set[str]:
    """Come back for a suspended lease when its time is over."""

    async def use(scaler: Taskscaler, _: FakeCloud) -> None:
        lease = await scaler.acquire_lease("job")
        lease.suspend(ttl=60)
        await anyio.sleep(120)
        await scaler.resume("job")

    return caught_with(use)


@provokes("TS209")
def not_detached(_: Place) -> set[str]:
    """Reattach what no earlier manager has left."""
    return caught_with(lambda scaler, _: scaler.reattach("job"))


@provokes("TS210")
def not_held(_: Place) -> set[str]:
    """Replace what was never acquired."""
    return caught_with(lambda scaler, _: scaler.replace("job"))


@provokes("TS204")
def lost_lease(_: Place) -> set[str]:
    """Hold a slot on an instance that somebody else terminates."""

    async def use(scaler: Taskscaler, cloud: FakeCloud) -> None:
        async with scaler.acquire("job") as lease:
            cloud.vanish(lease.instance)
            await anyio.sleep_forever()

    return caught_with(use)


@provokes("TS205")
def unknown_instance_to_hold(_: Place) -> set[str]:
    """Cordon an instance that is not there."""

    async def use(scaler: Taskscaler, _: FakeCloud) -> None:
        await scaler.cordon("i-0")

    return caught_with(use)


@provokes("TS206")
def script_that_fails(place: Place) -> set[str]:
    """Ask for the result of a script that cannot succeed."""
    return caught_with_fleet(place, lambda fleet: fleet.submit("exit 3").result().check())


@provokes("TS207")
def call_that_fails(place: Place) -> set[str]:
    """Take the root of a negative number, on an instance."""
    return caught_with_fleet(place, lambda fleet: fleet.submit(Call("math:sqrt"), -1).result())


def caught_with_fleet(place: Place, use: Callable[[FleetExecutor], object]) -> set[str]:
    """Run a program of a user's that knows nothing of async, and return the code of the error that it met."""
    group = fleeting.load("local", {"directory": str(place.directory / "fleet")})
    pool = Pool(group, update_interval_when_expecting=0.02)
    with (
        pytest.raises(FleetingError) as error,
        taskscaler.sync.Taskscaler(pool, delete_instances_on_shutdown=True) as scaler,
        FleetExecutor(scaler) as fleet,
    ):
        use(fleet)
    return {error.value.entry.code}


# --- the tests ---------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A new one for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Place(tmp_path)


@pytest.mark.parametrize("code", list(catalogue()))
def test_a_user_can_meet_every_error(code: str, place: Place) -> None:
    """What a user does leads to the error, and its code is told."""
    assert code in PROVOCATIONS, (
        f"{code} is in the catalogue, but nothing here provokes it: add to tests/test_errors.py a function marked"
        f' @provokes("{code}") that does what a user does to meet it, and returns the codes that were told'
    )
    assert PROVOCATIONS[code](place) == {code}


def test_nothing_is_provoked_that_is_not_in_the_catalogue() -> None:
    """A provocation goes with its error."""
    assert sorted(PROVOCATIONS.keys() - catalogue().keys()) == []


def our_errors() -> Iterator[type[FleetingError]]:
    """Every class of errors that our own packages define, all of their modules imported."""
    for package in (fleeting, taskscaler):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    kinds: list[type[FleetingError]] = [FleetingError]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.partition(".")[0] in ("fleeting", "taskscaler"):
            yield kind


def test_every_class_of_errors_has_an_entry_of_its_own() -> None:
    """It stands in its package's ``_errors``, where whoever looks for it finds it, imported with the package.

    No item for each: every worker would import all modules only to know which items there are.
    """
    for kind in our_errors():
        package = kind.__module__.partition(".")[0]
        assert kind.__module__ == f"{package}._errors", f"move {kind.__name__} to {package}/_errors.py"
        prefix = {"fleeting": "FL", "taskscaler": "TS"}[package]
        assert "entry" in vars(kind), f'give {kind.__name__} an entry = CatalogueEntry("{prefix}…", "cause", "remedy")'
        assert kind.entry.code.startswith(prefix), f"{kind.__name__} has a code of another package"


def test_a_code_means_one_thing() -> None:
    """No two entries have the same code, and none has that of an error that is gone."""
    entries = {*(kind.entry for kind in our_errors()), *(mistake.value for mistake in Mistake)}
    codes = [entry.code for entry in entries]
    assert len(set(codes)) == len(codes), f"some of these are used twice: {sorted(codes)}"
    _, _, gone = PAGE.read_text().partition("## Codes that are gone")
    assert set(CODE.findall(gone)).isdisjoint(codes), "a code that is gone is never used again; take the next free one"


@pytest.mark.parametrize("entry", catalogue().values(), ids=lambda entry: entry.code)
def test_an_entry_is_a_sentence_of_cause_and_one_of_remedy(entry: CatalogueEntry) -> None:
    """Each begins with a capital letter and ends with its only full stop."""
    assert CODE.fullmatch(entry.code)
    for sentence in (entry.cause, entry.remedy):
        assert sentence[0].isupper()
        assert sentence.endswith(".")
        assert ". " not in sentence


def rows() -> Iterator[str]:
    """What the page must have of each entry."""
    for code, entry in catalogue().items():
        names = [kind.__name__ for kind in our_errors() if kind.entry is entry]
        names += [f"Mistake.{mistake.name}" for mistake in Mistake if mistake.value is entry]
        listed = ", ".join(f"`{name}`" for name in names)
        yield f'| <a id="{code}"></a>{code} | {listed} | {entry.cause} | {entry.remedy} |'


def test_the_page_has_every_entry() -> None:
    """In order, word for word, with an anchor, and nothing else."""
    written = [line for line in PAGE.read_text().splitlines() if line.startswith('| <a id="')]
    expected = list(rows())
    missing = "\n".join(row for row in expected if row not in written)
    assert written == expected, f"docs/reference/errors.md must have these rows, in the order of the codes:\n{missing}"


def test_the_command_tells_what_a_code_means() -> None:
    """In whichever way it was copied; without a code, it lists all."""
    entry = catalogue()["FL112"]
    for code in ("FL112", "fl112", "[FL112]"):
        told = CliRunner().invoke(main, ["errors", code]).stdout
        assert told == f"FL112\ncause   {entry.cause}\nremedy  {entry.remedy}\n"
    listed = CliRunner().invoke(main, ["errors"]).stdout.splitlines()
    assert [line.split("  ")[0] for line in listed] == list(catalogue())


def test_the_command_knows_every_code_before_anything_has_gone_wrong() -> None:
    """As a process of its own, in which nothing has imported our errors."""
    program = "import sys, taskscaler.cli; taskscaler.cli.main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", program, "errors"], check=True, capture_output=True, text=True)
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == list(catalogue())
