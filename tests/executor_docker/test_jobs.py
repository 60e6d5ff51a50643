"""What a job gets in its container, and what is told of it afterwards; on a real daemon."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from executor_docker import DockerError
from fleeting_docker_engine import Entry, tar_of
from taskscaler.executors import MemoryLimit, Verdict
from tests.executor_docker.benches import Bench, bench_on, bench_over_ssh, followed
from tests.fleeting_docker_engine.daemons import Daemon
from tests.time_limits import longer_and_longer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("nothing_left")]

NAP = "exec sleep 1000"


@pytest.fixture
async def bench(docker: Daemon, tmp_path: Path) -> AsyncIterator[Bench]:
    """Start an instance."""
    async with bench_on(docker, tmp_path) as bench:
        yield bench


async def test_a_script_that_ends_well_has_succeeded_and_what_it_used_is_known(bench: Bench) -> None:
    """Exit code 0; CPU and memory come from the container's own control group, what was written from the kernel.

    Its trace has the phases that those of other executors have.
    """
    with followed() as phases:
        outcome = await bench.run("echo hello; i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    assert phases == ["ready", "collect", "run", "try"]  # what has run is given away last: when it is known how it went
    assert (outcome.verdict, outcome.exit_code, outcome.why, outcome.warnings) == (Verdict.SUCCEEDED, 0, "", ())
    assert bench.said == "hello\n"
    assert outcome.cpu_time is not None
    assert 0.01 < outcome.cpu_time < 60
    assert outcome.peak_memory is not None
    assert 2**16 < outcome.peak_memory < 2**30
    assert outcome.disk_written is not None  # how much depends on what Docker's directory is on here


async def test_both_outputs_are_one_in_the_order_of_writing(bench: Bench) -> None:
    """What goes to standard error stands between what goes to standard output; nothing of ours is in it."""
    await bench.run("for n in 1 2 3 4 5 6; do echo out $n; echo err $n >&2; done")
    assert bench.lines() == [f"{where} {n}" for n in range(1, 7) for where in ("out", "err")]


async def test_the_first_command_that_fails_ends_a_script(bench: Bench) -> None:
    """As with the instance executor."""
    outcome = await bench.run("echo before\n(exit 3)\necho after")
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 3, "exited with 3")
    assert bench.said == "before\n"


async def test_a_shebang_is_respected_and_standard_input_is_empty(bench: Bench) -> None:
    """The interpreter that the script names runs it, with its own rules."""
    outcome = await bench.run("#!/bin/busybox sh\nfalse\ncat\necho after\nkill -TERM $$\n")
    assert (outcome.exit_code, outcome.why, bench.said) == (143, "exited with 143, as after SIGTERM", "after\n")


async def test_the_environment_is_the_image_s_the_job_s_and_the_place(bench: Bench) -> None:
    """Beside the job's own variables it is told instance and slot; the working directory is its own, and empty."""
    await bench.run('echo "$A|$TASKSCALER_INSTANCE|$TASKSCALER_SLOT|$PWD"; ls -A', env={"A": "a b $HOME"}, slot=3)
    assert bench.said == f"a b $HOME|{bench.slot.instance}|3|/job\n"


async def test_a_great_deal_of_output_arrives_whole(bench: Bench) -> None:
    """Every byte, in order, whatever they are."""
    await bench.run("head -c 5000000 /dev/zero | tr '\\0' 'x'; printf '\\377\\000end'")
    assert len(bench.output.data) == 5_000_000 + 5
    assert bench.output.data.endswith(b"x\xff\0end")
    assert not bench.output.data[:-5].strip(b"x")


async def test_output_is_told_while_the_job_runs_and_a_cancelled_job_is_gone(bench: Bench) -> None:
    """What was printed is there before the job ends; cancelling leaves nothing, and does not wait for the job."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run, f"echo here; {NAP}")
        await bench.output.lines(1)
        tasks.cancel_scope.cancel()


async def test_a_job_that_takes_too_long_is_ended_and_its_artifacts_are_brought_back(bench: Bench) -> None:
    """What it had used by then is told; what it leaves may tell why it took so long."""
    limits = longer_and_longer(1.0)
    while True:
        limit = next(limits)
        outcome = await bench.run(f"echo x >left; {NAP}", timeout=limit, artifacts=("left",))
        assert (outcome.verdict, outcome.why) == (Verdict.TIMED_OUT, f"took longer than {limit:g}s")
        if (bench.artifacts / "left").exists():
            break
    assert outcome.peak_memory
    assert (bench.artifacts / "left").read_text() == "x\n"


async def test_files_belong_to_the_job_s_user(bench: Bench) -> None:
    """By name, too: the files, the directory and the script are his, and he is no one else."""
    source = bench.directory / "source"
    (source / "data").mkdir(parents=True)
    (source / "data" / "a b").write_text("content")
    (source / "tool.sh").write_text("#!/bin/sh\ncat 'sub/data/a b'\n")
    (source / "tool.sh").chmod(0o755)
    script = (
        "./tool.sh; echo; id -u; id -g; echo more >>'sub/data/a b'; touch new; stat -c %u:%g . tool.sh sub/data new"
    )
    outcome = await bench.run(
        script,
        files={"tool.sh": source / "tool.sh", "sub/data": source / "data"},
        options={"user": "worker", "working_dir": "/home/worker/deep/place"},
    )
    assert (outcome.verdict, bench.lines()) == (Verdict.SUCCEEDED, ["content", "1000", "1001", *["1000:1001"] * 4])


async def test_an_entrypoint_is_given_the_script(bench: Bench) -> None:
    """It prepares the environment, and runs what it is given."""
    entrypoint = ("/bin/env", "FROM=entrypoint")
    outcome = await bench.run("echo $FROM; exit 7", options={"entrypoint": entrypoint})
    assert (outcome.exit_code, bench.said) == (7, "entrypoint\n")


async def test_artifacts_are_brought_back_and_nothing_else_is(bench: Bench) -> None:
    """Files, directories and globs, hidden ones only by name, long names, and links that stay inside."""
    long = "n" * 120
    script = (
        f"mkdir -p out/{long} deep/er; echo 1 >'out/{long}/a b'; echo 2 >x.log; echo 3 >'y z.log'; ln -s x.log last;"
        " echo 4 >.hidden.log; echo 5 >deep/er/one.txt; echo 6 >deep/er/two.bin; ln out/*/a* hard; echo 7 >other"
    )
    outcome = await bench.run(script, artifacts=("out", "*.log", "last", "deep/*/*.txt", "hard"))
    assert (outcome.verdict, outcome.why) == (Verdict.SUCCEEDED, "")
    found = {str(path.relative_to(bench.artifacts)) for path in bench.artifacts.rglob("*") if not path.is_dir()}
    assert found == {f"out/{long}/a b", "x.log", "y z.log", "last", "deep/er/one.txt", "hard"}
    assert (bench.artifacts / "last").read_text() == "2\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo > a", r"no such artifact: gone, none/\*"),
        ("ln -s /etc/passwd gone", 'the artifacts were refused: the link "gone" leads outside its directory'),
        ("head -c 200000 /dev/zero >gone", "the artifacts were refused: .* 100000 bytes; raise artifact_limit"),
    ],
    ids=["missing", "a link that leaves", "too large"],
)
async def test_artifacts_that_cannot_be_taken_fail_the_job(bench: Bench, script: str, why: str) -> None:
    """As with the instance executor; nothing is taken then."""
    outcome = await bench.run(script, artifacts=("gone", "none/*"), config={"artifact_limit": 100_000})
    assert outcome.verdict is Verdict.FAILED
    assert re.fullmatch(why, outcome.why)


async def test_limits_hold_and_a_slot_has_its_share(bench: Bench) -> None:
    """A job may ask for less than it could have; of two slots each has a half of what there is."""
    script = """
    cd /sys/fs/cgroup
    cat memory/memory.limit_in_bytes || cat memory.max
    cat pids/pids.max || cat pids.max
    cat cpu/cpu.cfs_quota_us || cut -d ' ' -f 1 cpu.max
    df -k /dev/shm | tail -n 1 | awk '{print $2}'
    """
    config = {"memory": "128m", "cpus": 0.5, "pids": 50, "shm_size": "1m"}
    await bench.run(script, config=config, options={"memory": "64m"})
    assert bench.lines() == [str(64 << 20), "50", "50000", "1024"]
    memory, cpus, *_ = await bench.halves()
    bench.output.data = b""
    await bench.run(script, config={"shares": 2})
    found = bench.lines()
    assert abs(int(found[0]) - memory) < 2**20
    assert found[2] == str(int(cpus * 100_000))


async def test_a_job_that_needs_too_much_memory_is_told_so(bench: Bench) -> None:
    """Whatever was killed for it: here a child, whose parent went on to fail."""
    outcome = await bench.run("head -c 200m /dev/zero | tail", config={"memory": "32m"})
    assert outcome.memory_limit == MemoryLimit(size=32 << 20, reached=True)
    why = "exited with 137: it needed more memory than its 32 MiB and was killed; raise memory"
    assert (outcome.verdict, outcome.exit_code, outcome.why) == (Verdict.FAILED, 137, why)


async def test_volumes_caches_and_tmpfs_are_where_they_are_wanted(bench: Bench) -> None:
    """A directory of the instance, read-only; a cache that the next job finds, whoever it is; memory as a disk."""
    shared = bench.directory / "shared"
    shared.mkdir()
    (shared / "file").write_text("of the instance\n")
    options = {
        "volumes": (f"{shared}:/shared:ro",),
        "caches": {"test-kept": "/var/kept"},
        "tmpfs": {"/fast": "size=1m"},
    }
    config = {"allowed_volumes": (f"{bench.directory}/*",)}
    try:
        first = "cat /shared/file; touch /shared/x 2>&1 || ls /var/kept; echo kept >/var/kept/it; df /fast | tail -n 1"
        await bench.run(first, options={**options, "user": "1000:1000"}, config=config)
        assert bench.lines()[0] == "of the instance"
        assert bench.lines()[1].endswith("Read-only file system")
        assert bench.lines()[2].startswith("tmpfs ")
        await bench.run("cat /var/kept/it", options=options, config=config)
        assert bench.lines()[3:] == ["kept"]
    finally:
        await bench.remove_volume("taskscaler-cache-test-kept")


async def test_a_cache_outlives_its_instance_on_the_manager(bench: Bench) -> None:
    """What a job that succeeds leaves there, the first job on another instance finds; a device is not kept."""
    config = {"cache_dir": str(bench.directory / "caches"), "allowed_capabilities": ("mknod",)}
    options = {"caches": {"test-moved": "/var/moved"}}
    for script in ("mkdir /var/moved/d; echo it >/var/moved/d/f; mknod /var/moved/null c 1 3", "cd /var/moved; find"):
        try:
            outcome = await bench.run(script, options=options, config=config)
            assert (outcome.verdict, outcome.warnings) == (Verdict.SUCCEEDED, ())
        finally:
            await bench.remove_volume("taskscaler-cache-test-moved")
    assert sorted(bench.lines()) == [".", "./d", "./d/f"]


async def test_a_directory_of_caches_that_others_can_write_is_used_by_no_job_and_ends_none(bench: Bench) -> None:
    """Neither what is there is taken, which another user may have put there, nor is anything kept."""
    directory = bench.directory / "caches"
    config, options = {"cache_dir": str(directory)}, {"caches": {"test-open": "/var/open"}}
    directory.mkdir()
    directory.chmod(0o777)
    (directory / "test-open.tar").write_bytes(tar_of({"planted": Entry(b"x")}))
    before = (directory / "test-open.tar").read_bytes()
    refused = f"{directory} cannot be used: it belongs to or can be written by another user"
    try:
        outcome = await bench.run("ls /var/open; : >/var/open/new", options=options, config=config)
    finally:
        await bench.remove_volume("taskscaler-cache-test-open")
    assert (outcome.verdict, outcome.why, bench.said) == (Verdict.SUCCEEDED, "", "")
    assert outcome.warnings == (
        f"the cache test-open was not taken from the manager: {refused}",
        f"the cache test-open was not kept on the manager: {refused}",
    )
    assert (directory / "test-open.tar").read_bytes() == before


async def test_the_way_to_the_daemon_may_be_a_tunnel_through_ssh(docker: Daemon, tmp_path: Path) -> None:
    """The same job, with files, much output and artifacts, as far away as SSH leads."""
    (tmp_path / "in").write_text("content")
    async with bench_over_ssh(docker, tmp_path) as (bench, _):
        outcome = await bench.run(
            "head -c 1000000 /dev/zero; cp in out", files={"in": tmp_path / "in"}, artifacts=("o*",)
        )
    assert (outcome.verdict, len(bench.output.data)) == (Verdict.SUCCEEDED, 1_000_000)
    assert (bench.artifacts / "out").read_text() == "content"


async def test_a_working_directory_may_be_the_instance_s(bench: Bench) -> None:
    """Then it stays whose it is, and what the job leaves stays there."""
    place = bench.directory / "work"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    config = {"allowed_volumes": (str(place),)}
    options = {"volumes": (f"{place}:/job",), "user": "worker"}
    outcome = await bench.run("echo here >left", config=config, options=options, artifacts=("left",))
    assert outcome.verdict is Verdict.SUCCEEDED
    assert ((place / "left").read_text(), place.stat().st_mode & 0o777, place.stat().st_uid) == ("here\n", 0o777, 0)


async def test_what_the_operator_allows_of_the_instance_a_job_has(bench: Bench) -> None:
    """A device, a capability, the instance's processes; and of Docker's usual capabilities one less."""
    config = {
        "allowed_devices": ("/dev/n*",),
        "allowed_capabilities": ("SYS_TIME",),
        "allowed_namespaces": ("pid",),
        "allow_privileged": True,
    }
    options = {
        "devices": ("/dev/null:/dev/nothing",),
        "capabilities": ("CAP_SYS_TIME",),
        "drop_capabilities": ("chown",),
        "namespaces": ("pid",),
    }
    script = (
        "ls /dev/nothing; grep CapEff /proc/self/status | cut -f 2; grep -c . /proc/1/cmdline; ls -d /dev/kmsg || true"
    )
    await bench.run(script, config=config, options=options)
    device, capabilities, *_, last = bench.lines()
    assert (device, last) == ("/dev/nothing", "ls: /dev/kmsg: No such file or directory")
    assert int(capabilities, 16) >> 25 & 1, "no CAP_SYS_TIME"
    assert not int(capabilities, 16) & 1, "CAP_CHOWN is still there"
    if has_every_capability():
        bench.output.data = b""
        await bench.run(script.partition(";")[2], config=config, options={"privileged": True})
        assert bench.lines()[-1] == "/dev/kmsg"
    else:  # nor can this machine give it to anyone
        with pytest.raises(DockerError, match="unable to apply caps: operation not permitted"):
            await bench.run("true", config=config, options={"privileged": True})


def has_every_capability() -> bool:
    """Whether this machine lets its root have all that the kernel knows."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    return int(line.split()[1], 16) == (1 << last + 1) - 1


async def test_everything_that_is_made_bears_labels(bench: Bench) -> None:
    """While the job runs: its container, with labels of its own too, its network, its cache."""
    config, options = {"network": "job"}, {"labels": {"mine": "x"}, "caches": {"test-labels": "/cache"}}
    try:
        async with anyio.create_task_group() as tasks, bench.docker.engine() as engine:

            async def run() -> None:
                await bench.run(f"echo up; {NAP}", config=config, options=options)

            tasks.start_soon(run)
            await bench.output.lines(1)
            query = {"filters": {"label": [f"taskscaler.instance={bench.slot.instance}"]}}
            (container,) = await engine.ask("GET", "/containers/json", query=query)
            (network,) = await engine.ask("GET", "/networks", query=query)
            ours = {"label": ["taskscaler.kind=cache"], "name": ["test-labels"]}  # others' stay
            (volume,) = (await engine.ask("GET", "/volumes", query={"filters": ours}))["Volumes"]
            tasks.cancel_scope.cancel()
        assert container["Labels"]["mine"] == "x"
        assert container["Labels"]["taskscaler.job"] == network["Labels"]["taskscaler.job"] == "job"
        assert container["Labels"]["taskscaler.unit"] == network["Labels"]["taskscaler.unit"]
        assert volume["Name"] == "taskscaler-cache-test-labels"
    finally:
        await bench.remove_volume("taskscaler-cache-test-labels")
