"""The environment of a job: who wins, what is exported, what is hidden."""

import base64
import os
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from gitlab_jobs import Credential, Dependency, GitInfo, Image, Job, JobInfo, Variable
from taskscaler_gitlab import RunnerSettings
from taskscaler_gitlab.runner._errors import JobInvalid
from taskscaler_gitlab.runner._variables import MAX_WRITTEN, JobEnvironment, Place, environment_of
from tests.taskscaler_gitlab.projects import SHELLS, Slot

TOKEN = "glcbt-0123456789"


def job(*variables: Variable, **plain: str) -> Job:
    """A job with these variables, the plain ones last."""
    return Job(
        id=5,
        token=TOKEN,
        git_info=GitInfo(repo_url=f"https://gitlab-ci-token:{TOKEN}@gitlab.example.com/group/its.project.git"),
        job_info=JobInfo(project_id=7),
        variables=(*variables, *(Variable(key=key, value=value) for key, value in plain.items())),
    )


def runner(*environment: str) -> RunnerSettings:
    """A runner with this in its configuration."""
    url = "https://gitlab.example.com"
    return RunnerSettings(url=url, token="glrt-t1_abcdefghijkl", executor="instance", environment=environment)


PLACE = Place(builds_dir="/builds", instance="i-1", slot=2, concurrent_id=3, concurrent_project_id=1)


def of(*variables: Variable, place: Place = PLACE, **plain: str) -> JobEnvironment:
    """The environment of such a job."""
    return environment_of(job(*variables, **plain), runner(), place)


def test_what_the_runner_says() -> None:
    """Directories, numbers, versions and the status, as GitLab Runner names them."""
    environment = of()
    expected = {
        "CI_BUILDS_DIR": "/builds",
        "CI_PROJECT_DIR": "/builds/abcdefghi/2/group/its.project",
        "RUNNER_TEMP_PROJECT_DIR": "/builds/abcdefghi/2/group/its.project.tmp",
        "CI_CONCURRENT_ID": "3",
        "CI_CONCURRENT_PROJECT_ID": "1",
        "CI_SERVER": "yes",
        "CI_JOB_STATUS": "running",
        "CI_JOB_TIMEOUT": "7200",
        "CI_JOB_TOKEN": TOKEN,
        "CI_RUNNER_SHORT_TOKEN": "abcdefghi",
        "CI_RUNNER_EXECUTABLE_ARCH": "linux/amd64",
        "CI_SHARED_ENVIRONMENT": "true",
        "TASKSCALER_INSTANCE": "i-1",
        "TASKSCALER_SLOT": "2",
    }
    assert expected.items() <= environment.exports.items()
    assert "CI_DISPOSABLE_ENVIRONMENT" not in environment.exports
    assert environment.exports["CI_RUNNER_VERSION"]
    alone = of(place=evolve(PLACE, shared=False, private_builds=True)).exports
    assert (alone["CI_DISPOSABLE_ENVIRONMENT"], alone["CI_PROJECT_DIR"]) == ("true", "/builds/group/its.project")


def test_who_wins() -> None:
    """The configuration, then the job, of which the later counts, then what nobody overrides."""
    configured = runner("A=runner", "B=runner", "CI_SERVER=no")
    both = [Variable(key="B", value="first"), Variable(key="B", value="second")]
    environment = environment_of(job(*both, CI_CONCURRENT_ID="9", CI_RUNNER_VERSION="99"), configured, PLACE)
    exports = environment.exports
    assert (exports["A"], exports["B"], exports["CI_CONCURRENT_ID"]) == ("runner", "second", "9")
    assert exports["CI_RUNNER_VERSION"] != "99"
    assert exports["CI_SERVER"] == "yes"


def test_references_are_replaced_once() -> None:
    """To what variables had before, and not in raw ones."""
    variables = [
        Variable(key="DIR", value="$CI_PROJECT_DIR/x"),
        Variable(key="RAW", value="$DIR", raw=True),
        Variable(key="ONE", value="<$TWO>"),
        Variable(key="TWO", value="[$ONE]"),
    ]
    environment = of(*variables)
    assert environment.get("DIR") == "/builds/abcdefghi/2/group/its.project/x"
    assert environment.get("RAW") == "$DIR"
    assert (environment.get("ONE"), environment.get("TWO")) == ("<[$ONE]>", "[<$TWO>]")
    assert environment.expand("$RAW-${ONE}-$NONE") == "$DIR-<[$ONE]>-"


def test_a_variable_in_a_file_is_its_path() -> None:
    """For the shell and for references; what it configures is what is in it."""
    kubeconfig = Variable(key="KUBE", value="a: $B", file=True)
    environment = of(kubeconfig, Variable(key="GIT_STRATEGY", value="none", file=True), B="b", C="$KUBE")
    path = f"{environment.temp_dir}/KUBE"
    assert (environment.get("KUBE"), environment.get("C"), environment.exports["KUBE"]) == (path, path, path)
    assert environment.content("KUBE") == "a: b"
    assert environment.files[path] == "a: b"
    assert environment.git.strategy == "none"


def test_certificates_are_files() -> None:
    """Those of the runner's configuration, for scripts that talk to GitLab."""
    settings = evolve(runner(), ca_chain="CA", tls_cert="CERT", tls_key="KEY")
    environment = environment_of(job(), settings, PLACE)
    named = {name: environment.files[environment.get(f"CI_SERVER_TLS_{name}_FILE")] for name in ("CA", "CERT", "KEY")}
    assert named == {"CA": "CA", "CERT": "CERT", "KEY": "KEY"}


def test_services_have_what_is_public() -> None:
    """And what they declare, which may refer to everything; a value that refers to a secret comes as it is."""
    variables = [
        Variable(key="SECRET", value="s3cret", masked=True),
        Variable(key="PUBLIC", value="<$SECRET>", public=True),
    ]
    service = Image(variables=(Variable(key="OWN", value="$SECRET $OTHER $RAW"), Variable(key="OTHER", value="$OWN")))
    environment = of(*variables, Variable(key="RAW", value="$SECRET", raw=True)).of_service(service)
    assert "SECRET" not in environment
    assert (environment["PUBLIC"], environment["CI_SERVER"]) == ("<s3cret>", "yes")
    assert environment["OWN"] == "s3cret $OWN $SECRET"


def test_what_no_log_may_show() -> None:
    """Masked values as sent and as they are, those that are overridden too; tokens and passwords."""
    wanted = evolve(
        job(
            Variable(key="A", value="old-secret", masked=True),
            Variable(key="A", value="new-$B", masked=True),
            Variable(key="E", value="", masked=True),
            B="part",
        ),
        dependencies=(Dependency(token="glcbt-other-job"),),
        credentials=(Credential(password="registry-password"),),
    )
    phrases = environment_of(wanted, runner(), PLACE).phrases
    http = base64.b64encode(f"gitlab-ci-token:{TOKEN}".encode()).decode()
    assert {"old-secret", "new-$B", "new-part", TOKEN, "glcbt-other-job", "registry-password", http} <= set(phrases)
    assert "" not in phrases


def test_a_representation_shows_nothing() -> None:
    """Neither values nor secrets are in what a debugger prints."""
    shown = repr(of(Variable(key="A", value="some-secret", masked=True), B="some-value"))
    assert "some-" not in shown
    assert TOKEN not in shown


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("A;B", "variable 'A;B': not exported, a shell cannot have a variable of this name; use letters, digits and"),
        ("", "variable '': not exported"),
        ("1A", "variable '1A': not exported"),
        ("../A", "variable '../A': not exported"),
        ("UID", "variable 'UID': not exported, bash sets this by itself; choose another name"),
    ],
)
def test_names_that_no_shell_can_have(name: str, line: str) -> None:
    """They are left out with a line in the log, and others may still refer to them."""
    environment = of(Variable(key=name, value="its", file=name.startswith("..")), C="${" + name + "}")
    assert [problem for problem in environment.problems if problem.startswith(line)]
    assert name not in environment.exports
    assert not any(".." in path for path in environment.files)
    if name and not name.startswith(".."):
        assert environment.exports["C"] == "its"


def test_many_such_names_make_one_line() -> None:
    """However many there are."""
    environment = of(*(Variable(key=f"a-{number}", value="x") for number in range(10_000)))
    assert [problem[-130:] for problem in environment.problems if "9995 more" in problem]
    assert len(environment.problems) == 1


@pytest.mark.parametrize("value", ["$B" * 100_000, "$LONG" * 10])
def test_many_values_grow_together(value: str) -> None:
    """The limit holds for all variables of a job, not for each."""
    many = [Variable(key=f"A{number}", value=value) for number in range(20)]
    with pytest.raises(JobInvalid, match="refer to long values less often"):
        of(*many, LONG="x" * 1_000_000)


@pytest.mark.parametrize(("value", "is_file"), [("x" * MAX_WRITTEN, False), ("'" * (MAX_WRITTEN // 5), True)])
def test_variables_fit_into_memory_as_a_shell_reads_them(value: str, *, is_file: bool) -> None:
    """Each stage has them, and quotation marks become several characters: one job does not end the manager."""
    with pytest.raises(JobInvalid, match="as a shell reads them; make them shorter"):
        of(Variable(key="LONG", value=value, file=is_file))
    of(Variable(key="LONG", value=value[: MAX_WRITTEN // 10], file=is_file))


def test_a_value_with_nul_is_refused() -> None:
    """With one line that names the variable, not its value, and what to do."""
    with pytest.raises(JobInvalid, match="the variable `BIN` has a NUL character in its value") as raised:
        of(BIN="x\0y")
    assert raised.value.reason == "script_failure"


def test_halves_of_surrogate_pairs() -> None:
    """JSON can have them and no shell can: they are what GitLab Runner makes of them."""
    assert of(A="x\ud800y").exports["A"] == "x\ufffdy"


def test_an_error_shows_no_secret() -> None:
    """A message that quotes a value has it masked, as the log would."""
    with pytest.raises(JobInvalid, match=r"expected none, normal or recursive, found '\[MASKED\]'"):
        of(Variable(key="SECRET", value="s3cret-value", masked=True), GIT_SUBMODULE_STRATEGY="$SECRET")


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        ("$CI_BUILDS_DIR/go/src/x", "/builds/go/src/x"),
        ("/builds/a/../b", "/builds/b"),
        ("/builds", None),
        ("/builds/../etc", None),
        ("/buildsx", None),
        ("relative", None),
    ],
)
def test_a_directory_of_the_jobs_choice(path: str, directory: str | None) -> None:
    """Below the runner's, nowhere else."""
    if directory:
        assert of(GIT_CLONE_PATH=path).project_dir == directory
        return
    with pytest.raises(JobInvalid, match="GIT_CLONE_PATH: expected a directory below /builds"):
        of(GIT_CLONE_PATH=path)


def test_a_runner_may_forbid_that() -> None:
    """As GitLab Runner does by its configuration."""
    with pytest.raises(JobInvalid, match="does not let jobs choose a directory"):
        of(place=evolve(PLACE, custom_build_dir=False), GIT_CLONE_PATH="/builds/x")


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("https://x:y@host/group/sub/project.git", "/builds/abcdefghi/2/group/sub/project"),
        ("https://host/relative%20root/p.git", "/builds/abcdefghi/2/relative root/p"),
        ("https://host/../../etc", "/builds/abcdefghi/2/etc"),
        ("https://host/a%2e%2e/b", "/builds/abcdefghi/2/project-7"),
        ("https://host/a%0ab", "/builds/abcdefghi/2/project-7"),
        ("http://[", "/builds/abcdefghi/2/project-7"),
        ("", "/builds/abcdefghi/2/project-7"),
    ],
)
def test_where_a_project_is(url: str, directory: str) -> None:
    """By its path at GitLab; by its number if that is not one."""
    named = evolve(job(), git_info=GitInfo(repo_url=url))
    assert environment_of(named, runner(), PLACE).project_dir == directory


NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,5}", fullmatch=True).map(lambda name: f"IT_{name}")
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
HOSTILE = ["'", "\\", "$(touch x)", "`", "\n", "\r", '"', "!", "-n", "%s", "\x1b[0m", "é", "\\n", "\\c"]


@pytest.mark.parametrize("shell", SHELLS)
@given(
    plain=st.dictionaries(NAMES, VALUES | st.lists(st.sampled_from(HOSTILE)).map("".join), max_size=4),
    kept=st.dictionaries(NAMES.map("F{}".format), VALUES | st.sampled_from(HOSTILE), max_size=2),
)
@settings(max_examples=15, deadline=None)
def test_values_reach_the_script_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, shell: Sequence[str], plain: dict[str, str], kept: dict[str, str]
) -> None:
    """Through any shell, in the environment and in files that only the user can read."""
    root = tmp_path_factory.mktemp("builds")
    variables = [
        *(Variable(key=key, value=value, raw=True) for key, value in plain.items()),
        *(Variable(key=key, value=value, raw=True, file=True) for key, value in kept.items()),
    ]
    environment = of(*variables, place=evolve(PLACE, builds_dir=str(root)))
    script = f"set -e\n{environment.preamble()}\nenv -0"
    done = subprocess.run(
        shell, input=script.encode(), capture_output=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    pairs = (entry.partition(b"=") for entry in done.stdout.split(b"\0"))
    got = {key.decode(): value.decode() for key, _, value in pairs if key.startswith((b"IT_", b"FIT_"))}
    assert {key: value for key, value in got.items() if key in plain} == plain
    assert {key: Path(value).read_bytes().decode() for key, value in got.items() if key in kept} == kept
    assert {stat.S_IMODE(Path(got[key]).stat().st_mode) for key in kept} <= {0o600}
    assert stat.S_IMODE(Path(environment.temp_dir).stat().st_mode) == 0o700
    assert not list(root.rglob("x"))


@pytest.mark.needs("grep")
def test_stages_add_to_the_environment(slot: Slot) -> None:
    """What is written to the file that `GITLAB_ENV` names is exported later, and only what a shell can have."""
    environment = of(place=evolve(PLACE, builds_dir=str(slot.root / "builds")))
    lines = ["A=1 2", "not one", "B-C=x", "UID=7", "D=a=b", "E='quoted'", "A=3"]
    writing = "\n".join(f'echo "{line}" >> $GITLAB_ENV' for line in lines)
    assert slot.run(f"set -e\n{environment.preamble()}\n{writing}\nprintf LAST=1 >> $GITLAB_ENV").status == 0
    ran = slot.run(f'set -e\n{environment.preamble(write_files=False)}\necho "$A,$D,$E,$LAST"; env | grep -c C=x')
    assert ran.output.splitlines()[0] == "3,a=b,'quoted',1"
    assert ran.output.splitlines()[-1] == "0"
    assert slot.run(environment.cleanup()).status == 0
    assert [place for place in (slot.root / "builds").rglob("*") if place.is_file()] == []


def test_nothing_is_added_by_an_earlier_job(slot: Slot) -> None:
    """One that was killed leaves the file; the next job on the slot does not read it."""
    environment = of(place=evolve(PLACE, builds_dir=str(slot.root / "builds")))
    assert slot.run(f"{environment.preamble()}\necho LEFT=1 >> $GITLAB_ENV").status == 0
    assert slot.run(f'{environment.preamble()}\necho "<$LEFT>"').output == "<>\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as others")
def test_the_next_container_may_have_another_user() -> None:
    """What takes care of sources runs as root there, without a umask; the job's own image as anybody."""
    with TemporaryDirectory() as root:  # pytest's own let nobody else in
        builds = Path(root) / "builds"
        builds.mkdir()
        builds.chmod(0o777)
        builds.parent.chmod(0o755)
        environment = of(Variable(key="F", value="x", file=True), place=evolve(PLACE, builds_dir=str(builds)))
        script = f'{environment.preamble()}\ncat "$F"\n{environment.cleanup()}'
        for user, umask in ((None, 0), (65534, 0o022), (None, 0)):
            done = subprocess.run(
                ["/bin/sh"], input=script.encode(), stdout=subprocess.PIPE, check=True, user=user, umask=umask, cwd="/"
            )
            assert done.stdout == b"x"


def test_ten_thousand_variables(one_slot: Slot) -> None:
    """They are exported, and refer to each other, in one go."""
    many = {f"V{number}": f"${{V{number - 1}}}x" for number in range(10_000)}
    environment = of(place=evolve(PLACE, builds_dir=str(one_slot.root / "builds")), **many)
    ran = one_slot.run(f'{environment.preamble()}\necho "$V9999"')
    assert ran.output == "${V9997}xx\n"
