"""Steps in containers, with the real agent in each, and in place of Docker a command that behaves like it."""

import json
import sys

import anyio
import pytest

from job_steps import Limits, Status, StepResult, Variable
from job_steps._containers import remove_containers
from job_steps._delegation import MAX_CONTAINERS
from job_steps._policy import Policy
from tests.job_steps import fake_docker
from tests.job_steps.benches import INNER, Bench

pytestmark = pytest.mark.anyio


async def test_a_container_in_a_container_is_one_tree(bench: Bench) -> None:
    """Inputs, variables, exports and outputs go in and come out; what is sensitive is masked on both sides."""
    steps = """
- {name: first, func: ./export}
- name: build
  func: ./outer
  container: test/a
  inputs: {who: world, token: "${{ vars.TOKEN }}"}
  env: {A: aaa}
- {name: after, script: 'echo "${{ steps.build.outputs.text }} ${{ steps.build.outputs.secret }} $MADE $A"'}
"""
    bench.project.add_script("export", """printf '{"name":"EARLIER","value":"before"}' > EXP""")
    variables = [Variable(key="TOKEN", value="hunter2hunter2"), Variable(key="V", value="var")]
    result = await bench.run(steps, variables=variables)
    assert result.status is Status.SUCCESS, result.error
    assert bench.project.lines == [
        'Running step "first"',
        'Running step "build" in docker.io/test/a:latest',
        'Running step "say"',
        "outer world [MASKED] aaa before var",
        'Running step "below" in docker.io/test/b:latest',
        "inner world! [MASKED]",
        'Running step "after"',
        "hi world! [MASKED] 42 ",
    ]
    build = result.steps[1]
    assert (build.reference, build.container, build.inputs["token"]) == (
        "./outer",
        "docker.io/test/a:latest",
        "[MASKED]",
    )
    assert dict(build.outputs) == {"text": "hi world!", "secret": "[MASKED]"}
    below = result.at(("build", "below"))
    assert (below.container, below.exit_code, dict(below.exports)) == ("docker.io/test/b:latest", 0, {"MADE": "42"})
    assert StepResult.from_dict(result.as_dict()) == result
    assert "hunter2" not in json.dumps(result.as_dict())


async def test_a_container_gets_the_job_and_nothing_of_the_host(bench: Bench) -> None:
    """Its directory at the same place, what the job adds to the environment, this user, and the label of the job."""
    result = await bench.run("- {name: s, script: 'pwd; env', container: test/a}\n", own_env={"MINE": "1"})
    assert result.status is Status.SUCCESS, result.error
    assert str(bench.project.directory) in bench.project.lines
    assert "MINE=1" in bench.project.lines
    assert not any(line.startswith("HOME=") for line in bench.project.lines)
    (made,) = bench.made
    where = str(bench.project.directory)
    assert made["--label"] == ["job-steps.job=m"]
    assert made["--mount"] == [
        f"type=bind,source={bench.agent},target=/.job-steps/agent.pyz,readonly",
        f"type=bind,source={where},target={where}",
    ]


async def test_a_step_that_fails_in_a_container_fails_as_others_do(bench: Bench) -> None:
    """With its exit code, its path, and the steps after it not begun."""
    bench.project.add("twice", "spec: {}\n---\nrun:\n- {name: no, script: exit 7}\n")
    steps = "- {name: s, func: ./twice, container: test/a}\n- {name: t, script: echo}\n"
    result = await bench.run(steps)
    assert result.error == "step `s`: step `no`: the command ended with exit status 7"
    failed = result.failed()
    assert failed
    assert (failed.name, failed.exit_code, len(result.steps)) == ("no", 7, 1)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (
            "has no Python",
            "the image docker.io/test/x:latest has no Python 3.10 or later, which its steps need; it has none",
        ),
        (
            "has no sh",
            "the image docker.io/test/x:latest has no /bin/sh, which its steps need beside Python 3.10 or later",
        ),
        ("exit 9", "the container of docker.io/test/x:latest ended before its steps had (exit status 9)"),
        ("kill -9 $$", "the container of docker.io/test/x:latest ended before its steps had (exit status 137)"),
        ("echo hello", "what runs in the container says something that no agent says: b'hello'"),
        (
            "echo '{\"to\":7}'",
            "what runs in the container says something that no agent says: `to` where it has no place",
        ),
        ("echo '{\"end\":{}}'", "what runs in the container says something that no agent says: KeyError: 'tree'"),
        (
            "echo '{\"log\":7}'",
            "what runs in the container says something that no agent says: a log that cannot be read",
        ),
        (fake_docker.FLOOD, "the agent in the container says more than 16 MiB at once"),
    ],
)
async def test_what_is_wrong_with_a_container_is_named(bench: Bench, behaviour: str, error: str) -> None:
    """Whatever it is, and the step fails."""
    bench.image("x", behaviour)
    result = await bench.run("- {name: s, script: echo, container: test/x}\n")
    assert result.status is Status.FAILURE
    assert result.error == f"step `s`: {error}"


async def test_an_image_that_is_not_there_is_named(bench: Bench) -> None:
    """With what Docker says; and so is an engine that is none."""
    result = await bench.run("- {name: s, script: echo, container: test/none}\n")
    why = "is not here, and cannot be pulled: pull access denied for docker.io/test/none:latest"
    assert result.error == f"step `s`: the image docker.io/test/none:latest {why}"
    for file in sorted(bench.engine.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    bench.engine.rmdir()
    result = await bench.project.run("- {name: s, script: echo, container: test/a}\n", delegation=bench.delegation())
    assert "Docker's command cannot be used for the container of docker.io/test/a:latest: Cannot connect" in str(
        result.error
    )


async def test_without_dockers_command_the_step_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where nobody has foreseen containers."""
    monkeypatch.setenv("PATH", "/nonexistent")
    result = await bench.run("- {name: s, script: echo, container: test/a}\n")
    assert result.error == (
        "step `s`: steps in containers need Docker's command `docker` here, with an engine behind it: "
        "there is no program `docker` in PATH"
    )
    result = await bench.project.run("- {name: s, script: echo, container: test/a}\n")
    assert result.error == "step `s`: steps in containers cannot be run here"


async def test_a_container_that_dies_midway_fails_its_step(bench: Bench) -> None:
    """What it had printed is there, and what its steps had come to."""
    script = "echo last words; until [ -e die ]; do sleep 0.1; done; kill -9 $PPID"
    bench.project.add("dies", f"spec: {{}}\n---\nrun:\n- {{name: dying, script: '{script}'}}\n")

    def has_come() -> bool:
        return any(path == ("s", "dying") for tree in bench.project.trees[-1:] for path, _ in tree.walk())

    async def watch() -> None:
        while not has_come():  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(0.02)
        (bench.project.directory / "die").touch()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        result = await bench.run("- {name: s, func: ./dies, container: test/a}\n")
    why = "the container of docker.io/test/a:latest ended before its steps had (exit status 137)"
    assert result.error == f"step `s`: {why}"
    assert "last words" in bench.project.lines
    assert result.at(("s", "dying")).status is Status.CANCELLED


async def test_a_cycle_through_containers_is_named(bench: Bench) -> None:
    """As one without containers is, at the first time round."""
    bench.project.add("a", "spec: {}\n---\nrun:\n- {name: b, func: ../b, container: test/b}\n")
    bench.project.add("b", "spec: {}\n---\nrun:\n- {name: a, func: ../a, container: test/a}\n")
    result = await bench.run("- {name: a, func: ./a, container: test/a}\n")
    cycle = "`../a` is a function that is running already (./a → ../b → ../a); it would call itself for ever"
    assert result.error == f"step `a`: step `b`: step `a`: {cycle}"


async def test_there_is_an_end_to_containers_in_containers(bench: Bench) -> None:
    """Also where nobody can see beforehand that a function calls itself."""
    call = "{name: a, func: '${{ inputs.where }}', container: test/a, inputs: {where: '${{ inputs.where }}'}}"
    bench.project.add("a", f"spec: {{inputs: {{where: {{type: string}}}}}}\n---\nrun:\n- {call}\n")
    where = bench.project.directory / "a"
    steps = f"spec: {{inputs: {{where: {{type: string, default: {where}}}}}}}\n---\nrun:\n- {call}\n"
    result = await bench.run(steps)
    assert result.error
    assert result.error.endswith(
        "more than 5 containers inside one another: " + " → ".join(["docker.io/test/a:latest"] * 6)
    )
    assert len(bench.made) == MAX_CONTAINERS


async def test_a_cancelled_run_leaves_no_container(bench: Bench) -> None:
    """Its commands are told to end, in the innermost container, too."""
    bench.project.add(
        "wait", "spec: {}\n---\nrun:\n- {name: w, script: 'echo waiting; exec sleep 1000', container: test/b}\n"
    )
    steps = "- {name: s, func: ./wait, container: test/a}\n"
    result: StepResult | None = None
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            await bench.run(steps)

        tasks.start_soon(run)
        while "waiting" not in bench.project.lines:  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(0.02)
        assert len(bench.containers) == 2
        tasks.cancel_scope.cancel()
    assert bench.containers == []
    result = bench.project.trees[-1]
    assert (result.status, result.at(("s",)).status) == (Status.CANCELLED, Status.CANCELLED)
    assert not any(each.status is Status.RUNNING for _, each in result.walk())


async def test_what_ignores_its_end_is_removed(bench: Bench) -> None:
    """An agent in a container that listens to nobody has some seconds."""
    bench.image("x", "trap '' TERM; echo '{\"log\":\"aGVsbG8K\"}'; while :; do sleep 1; done")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(bench.run, "- {name: s, script: echo, container: test/x}\n")
        while "hello" not in bench.project.lines:  # noqa: ASYNC110  (nobody tells)
            await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert bench.containers == []


async def test_what_is_left_is_found_by_its_label(bench: Bench) -> None:
    """Containers of the job, and no others."""
    async with await anyio.open_process(["sleep", "1000"], start_new_session=True) as process:
        for name, label in (("mine", "job-steps.job=m"), ("other", "job-steps.job=n")):
            record = {"process": process.pid, "label": label}
            (bench.engine / "containers" / name).write_text(json.dumps(record))
        await remove_containers("m")
        await process.wait()
    assert bench.containers == ["other"]


async def test_100_mib_from_inside_are_a_log_or_an_error(bench: Bench) -> None:
    """A log of that size arrives whole; in a file of outputs, it is too much, there as here."""
    script = "head -c 104857600 /dev/zero | tr '\\\\000' x"
    result = await bench.run(f'- {{name: s, script: "{script}", container: test/a}}\n')
    assert result.status is Status.SUCCESS, result.error
    assert len(bench.project.log) == 104857600 + len('Running step "s" in docker.io/test/a:latest\n')
    bench.project.add_script("big", "head -c 104857600 /dev/zero > OUT")
    result = await bench.run("- {name: s, func: ./big, container: test/a}\n")
    assert result.error == "step `s`: the file of the outputs has more than 4194304 bytes"


ONLY_A = Policy(allowed_images=("docker.io/test/a",), allowed_paths=("*",))


async def test_the_gate_inside_refuses_what_the_one_outside_does(bench: Bench) -> None:
    """Rule and step are named, with the names of the steps around it; no second container is made."""
    steps = "- {name: build, func: ./outer, container: test/a, inputs: {who: x, token: y}}\n"
    result = await bench.run(steps, policy=ONLY_A, variables=[Variable(key="V", value="v")])
    assert result.error
    refusal = "the policy's `allowed_images` refuses the step `build/below`: expected docker.io/test/a"
    assert refusal in result.error
    assert len(bench.made) == 1
    result = await bench.run("- {name: build, script: echo, container: test/b}\n", policy=ONLY_A)
    assert "the policy's `allowed_images` refuses the step `build`" in str(result.error)
    assert len(bench.made) == 1


async def test_who_has_taken_over_a_container_gets_no_other_one(bench: Bench) -> None:
    """An agent inside that was replaced asks for what the policy forbids, and for what it must not: none is made."""
    ask = """read -r request; echo '{"open":{"image":"%s","path":["s","t"]}}'; read -r answer; echo "$answer" > %s"""
    answer = bench.project.directory / "answer"
    for image, error in (("test/b", "`allowed_images` refuses the step `s/t`"), ("-v", "not an image; expected one")):
        bench.image("a", ask % (image, answer))
        await bench.run("- {name: s, func: ./inner, container: test/a}\n", policy=ONLY_A)
        assert error in json.loads(answer.read_text())["closed"]
    assert len(bench.made) == 2


FILES = {
    "func.yml": "spec: {}\n---\nrun:\n- {name: near, func: ./sub, inputs: {who: near}}\n",
    "sub/my.yml": INNER,
    "sub/func.yml": "spec: {inputs: {who: {type: string}}}\n---\nexec: {command: [cat, '${{ func_dir }}/text']}\n",
    "sub/text": "the text\n",
}


async def test_a_function_from_an_image_runs_where_its_caller_does(bench: Bench) -> None:
    """As GitLab has it: its files are fetched, once; nothing of it is started, and it needs no Python."""
    bench.files("f", FILES)
    steps = """
- {name: root, func: docker.io/test/f:latest}
- {name: file, func: {oci: {registry: docker.io, repository: test/f, tag: latest, dir: sub, file: my.yml}},
   inputs: {who: world, token: t}}
- {name: out, script: "echo ${{ steps.file.outputs.text }}"}
"""
    result = await bench.run(steps, policy=Policy(allowed_images=("docker.io/test/*",)))
    assert result.status is Status.SUCCESS, result.error
    assert [line for line in bench.project.lines if not line.startswith("Running")] == [
        "the text",
        "inner world t",
        "hi world",
    ]
    assert not (bench.engine / "made").exists()
    result = await bench.run(steps, policy=Policy(allowed_images=()))
    assert "`allowed_images` refuses the step `root`" in str(result.error)


async def test_what_cannot_be_had_of_an_image_is_named(bench: Bench) -> None:
    """An image that is not there, or too big; a file that is not in it, or leads out; and one wanted in a container."""
    bench.files("f", FILES)
    bench.files("big", FILES, size=2**30 + 1)
    outside = bench.project.directory / "echo/func.yml"
    (bench.engine / "files/docker.io+test+f:latest/sub/link.yml").symlink_to(outside)
    oci = "func: {oci: {registry: docker.io, repository: test/f, tag: latest, dir: sub, file: %s}}"
    wrong = {
        "func: docker.io/test/none:1": "the image docker.io/test/none:1 is not here, and cannot be pulled: ",
        "func: docker.io/test/big:latest": "test/big:latest has 1073741825 bytes of files; at most 1073741824",
        oci % "no.yml": "there is no `no.yml` in `",
        oci % "link.yml": "sub/link.yml` leads out of where the function comes from",
        "func: docker.io/test/f:latest, container: test/a": "cannot be fetched in a container; let a step outside have",
    }
    for step, error in wrong.items():
        result = await bench.run(f"- {{name: s, {step}}}\n")
        assert error in str(result.error)


async def test_an_image_is_as_big_as_its_files_are(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its engine says: some count what is packed. And what is fetched is the image that was looked at."""
    monkeypatch.setattr("job_steps._containers.MAX_SIZE", 1 << 20)
    bench.files("bomb", {**FILES, "zeros": "0" * (1 << 20)}, size=2000)
    result = await bench.run("- {name: s, func: docker.io/test/bomb:latest}\n")
    assert (
        result.error == "step `s`: docker.io/test/bomb:latest has more than 1048576 bytes of files; it is not fetched"
    )
    assert list((bench.engine / "containers").iterdir()) == []


LEAK = f"exec {sys.executable} -I -S -c 'import time; x = bytearray(100 << 20); time.sleep(1000)'"

LIMITED = Policy(memory=64 << 20, network="none")


async def test_nothing_escapes_a_limit_by_a_container(bench: Bench) -> None:
    """The engine keeps it for all in a container, also in one inside another; the agent in there, for each command."""
    bench.project.add_script("leak", LEAK)
    bench.project.add(
        "outer",
        "spec: {}\n---\nrun:\n- {name: quiet, script: cat /proc/net/route}\n"
        "- {name: below, func: ../leak, container: test/b}\n",
    )
    result = await bench.run("- {name: build, func: ./outer, container: test/a}\n", policy=LIMITED)
    assert result.status is Status.FAILURE
    quiet, below = result.at(("build", "quiet")), result.at(("build", "below"))
    assert (quiet.status, below.cause) == (Status.SUCCESS, "out_of_memory")
    assert below.error
    assert below.error.startswith(
        "the command was killed: it needed more memory than its limit `memory` allows, which is 64 MiB; it had "
    )
    assert bench.project.lines[-1] == below.error.replace("the", "The", 1)
    assert len([line for line in bench.project.lines if line.startswith("Iface")]) == 1
    assert len(bench.project.lines) == 5, "and no route behind that heading"
    for made in bench.made:
        assert made["--network"] == ["none"]
        assert made["--memory"] == made["--memory-swap"] == [str(128 << 20)]


async def test_limits_of_a_library_call_reach_its_containers(bench: Bench) -> None:
    """Not only those of a policy."""
    await bench.run("- {name: s, script: echo, container: test/a}\n", limits=Limits(memory=32 << 20, network="none"))
    (made,) = bench.made
    assert (made["--network"], made["--memory"]) == (["none"], [str(96 << 20)])


async def test_an_engine_that_cannot_limit_memory_makes_no_container(bench: Bench) -> None:
    """It would only warn, and make one without the limit."""
    (bench.engine / "info").write_text("WARNING: No memory limit support\nfalse")
    result = await bench.run("- {name: s, script: echo, container: test/a}\n", policy=LIMITED)
    assert result.error == (
        "step `s`: the limit `memory` cannot be kept in a container here, so it is not started: this engine cannot"
        " limit memory, for which its host needs control groups with the controller `memory`"
    )
    assert not (bench.engine / "made").exists()
    fine = await bench.run("- {name: s, script: echo, container: test/a}\n", policy=Policy(network="none"))
    assert fine.status is Status.SUCCESS


async def test_a_container_that_is_killed_as_a_whole_is_named_with_its_limit(bench: Bench) -> None:
    """The kernel may kill the agent in it, too."""
    bench.image("killed", "kill -9 $$")
    result = await bench.run("- {name: s, script: echo, container: test/killed}\n", policy=LIMITED)
    assert result.error == (
        "step `s`: the container of docker.io/test/killed:latest ended before its steps had (exit status 137: it was"
        " killed; it may have needed more memory than its limit `memory` allows, which is 64 MiB)"
    )
