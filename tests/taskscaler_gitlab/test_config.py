"""What the runner makes of a config.toml of GitLab Runner."""

from pathlib import Path

import pytest

from fleeting import ConfigError
from taskscaler.executors import find_executor
from taskscaler_gitlab import ServiceConfig, read_config
from taskscaler_gitlab.cli._check import notes_of

FLEET = """
[runners.autoscaler]
plugin = "local"
"""
LEAST = """
[[runners]]
url = "https://gitlab.example.com/"
token = "glrt-1234"
executor = "instance"
"""

WHOLE = """
concurrent = 20
check_interval = 5
shutdown_timeout = 90
log_level = "warn"
log_format = "json"
listen_address = ":9252"
connection_max_age = "15m0s"

[session_server]
session_timeout = 1800

[[runners]]
name = "fleet"
url = "https://gitlab.example.com/gitlab/"
id = 1
token = "glrt-1234"
token_obtained_at = 2026-01-01T00:00:00Z
token_expires_at = 0001-01-01T00:00:00Z
executor = "docker-autoscaler"
limit = 7
request_concurrency = 3
output_limit = 8192
environment = ["A=b", "C=d=e"]
pre_clone_script = "echo pre"
post_get_sources_script = "echo post"
pre_build_script = "true"
post_build_script = "false"
builds_dir = "/b"
cache_dir = "/c"
clone_url = "http://inside:8080"
tls-ca-file = "ca.pem"
unhealthy_interval = "60s"
[runners.feature_flags]
FF_X = true
FF_SCRIPT_SECTIONS = true
[runners.cache]
Type = "s3"
Path = "p"
Shared = true
[runners.cache.s3]
BucketName = "b"
[runners.docker]
image = "alpine:3"
helper_image = "helper:1"
privileged = true
pull_policy = ["if-not-present", "never"]
volumes = ["/cache", "/host:/inside:ro"]
memory = "512m"
cpus = "1.5"
shm_size = 1024
network_mode = "bridge"
tls_verify = false
disable_entrypoint_overwrite = false
[runners.taskscaler]
placements = 5
cache_on_manager = "/var/cache/ci"
"""


SIDECARS = LEAST + "[runners.taskscaler]\nrun_with = 'sidecar'\n[runners.taskscaler.sidecar]\n"
URL_ALONE = LEAST + "[runners.taskscaler]\nrun_with = 'sidecar'\nreach = 'url'\n"


def read(here: Path, text: str, **more: str) -> ServiceConfig:
    """Read a file with this in it."""
    (here / "config.toml").write_text(text)
    return read_config(here / "config.toml", **more)


def refused(here: Path, text: str) -> list[str]:
    """The mistakes of a file."""
    with pytest.raises(ConfigError) as caught:
        read(here, text)
    return [str(problem) for problem in caught.value.problems]


def test_the_least_file_has_gitlabs_defaults(tmp_path: Path) -> None:
    """What is not said means what it means to GitLab Runner."""
    config = read(tmp_path, LEAST + FLEET)
    runner = config.runner
    assert (runner.url, runner.kind, runner.output_bytes) == ("https://gitlab.example.com", "instance", 4 << 20)
    assert (config.jobs_at_once, config.check_interval, config.shutdown_timeout) == (1, 3.0, 30.0)
    assert (runner.request_concurrency, runner.variables, runner.ca_chain) == (1, {}, "")
    assert "glrt-1234" not in repr(config)


def test_a_whole_file_is_read_as_it_is(tmp_path: Path) -> None:
    """Every key that means something is obeyed, also under its older name; the others are listed in their order."""
    (tmp_path / "ca.pem").write_text("a chain")
    config = read(tmp_path, WHOLE + FLEET)
    runner, docker = config.runner, config.runner.docker
    assert (config.jobs_at_once, config.check_interval, config.shutdown_timeout) == (7, 5.0, 90.0)
    assert (config.top.log_level, config.top.log_format) == ("warn", "json")
    assert (runner.url, runner.kind, runner.clone_url) == (
        "https://gitlab.example.com/gitlab",
        "docker",
        "http://inside:8080",
    )
    assert (runner.request_concurrency, runner.output_bytes) == (3, 8 << 20)
    assert (runner.pre_get_sources_script, runner.post_get_sources_script) == ("echo pre", "echo post")
    assert (runner.ca_chain, runner.tls_ca_file) == ("a chain", str(tmp_path / "ca.pem"))
    assert dict(runner.variables) == {"A": "b", "C": "d=e"}
    assert (runner.cache.path, runner.cache.shared) == ("p", True)
    assert runner.feature_flags["FF_SCRIPT_SECTIONS"]
    assert (docker.kept, docker.binds, docker.pull_policy) == (
        ("/cache",),
        ("/host:/inside:ro",),
        ("if-not-present", "never"),
    )
    assert (runner.taskscaler.placements, runner.taskscaler.cache_on_manager) == (5, "/var/cache/ci")
    assert config.ignored == (
        "connection_max_age",
        "session_server",
        "runners.id",
        "runners.unhealthy_interval",
        "runners.cache.s3",
        "runners.docker.tls_verify",
        "runners.docker.disable_entrypoint_overwrite",
        "runners.feature_flags.FF_X",
    )
    assert [sentence for sentence in config.unsupported if "object storage" in sentence]


@pytest.mark.parametrize(("executor", "warned"), [("shell", True), ("custom", True), ("docker", False)])
def test_keys_of_caches_that_jobs_can_read_are_warned_of(tmp_path: Path, executor: str, *, warned: bool) -> None:
    """Jobs on the instance itself are the user whose file has them; those in containers are not."""
    more = f'executor = "{executor}"\n[runners.cache]\nType = "s3"\n[runners.cache.s3]\nAccessKey = "a"\n'
    notes = notes_of(read(tmp_path, SIDECARS + more + 'SecretKey = "planted-secret"\n' + FLEET))
    assert [each.split(",")[0] for each in notes if each.startswith("warning")] == (
        ["warning: jobs can read runners.cache.s3.SecretKey"] if warned else []
    )
    assert "planted-secret" not in "".join(notes)
    assert not [each for each in notes_of(read(tmp_path, SIDECARS + more + FLEET)) if each.startswith("warning")]


def test_sidecars_get_what_the_file_says_of_jobs(tmp_path: Path) -> None:
    """All of it, as it is, and what is meant for them alone; nothing of it is ignored, and nothing says who we are."""
    (tmp_path / "ca.pem").write_text("a chain")
    more = 'run_with = "sidecar"\n[runners.taskscaler.sidecar]\nbinary = "/g"\noutput_limit = 1\n'
    more += "[runners.taskscaler.sidecar.feature_flags]\nFF_TIMESTAMPS = true\n"
    config = read(tmp_path, WHOLE + more + FLEET)
    sidecar = config.runner.taskscaler.sidecar
    assert (sidecar.binary, sidecar.executor) == ("/g", "docker")
    passed = sidecar.passed
    assert (passed["output_limit"], passed["feature_flags"]) == (1, {"FF_TIMESTAMPS": True})
    assert passed["cache"]["s3"] == {"BucketName": "b"}
    assert passed["docker"]["tls_verify"] is False
    assert not {"token", "url", "name", "id", "executor", "limit", "autoscaler", "taskscaler", "tls-ca-file"} & set(
        passed
    )
    assert config.ignored == ("connection_max_age", "session_server")
    assert not [sentence for sentence in config.unsupported if "object storage" in sentence]
    assert read(tmp_path, SIDECARS + FLEET).runner.taskscaler.sidecar.executor == "shell"


def test_docker_settings_are_those_of_the_executor(tmp_path: Path) -> None:
    """What is made of them is what executor-docker takes, and images that nobody restricts are any, as at GitLab's."""
    from fleeting.plugins import structure

    (tmp_path / "ca.pem").write_text("a chain")
    docker = read(tmp_path, WHOLE + FLEET).runner.docker
    plugin = find_executor("docker")
    made = structure(docker.executor(), plugin.config)
    assert (made.image, made.allowed_images, made.memory, made.cpus) == ("alpine:3", ("*", "helper:1"), "512m", 1.5)
    assert (made.allow_privileged, made.network, made.allowed_volumes) == (True, "bridge", ("/host",))
    assert plugin.options is not None
    wished = structure(docker.options(), plugin.options)
    assert (wished.privileged, wished.volumes) == (True, ("/host:/inside:ro",))


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("[[runners]]\n", "missing key `"),
        (LEAST.replace("https://gitlab", "gitlab"), "runners[0].url: expected an address such as"),
        (LEAST.replace("https://gitlab", "https://user:word@gitlab"), "found an address with a user in it"),
        (LEAST.replace("glrt-1234", ""), "runners[0].token: expected up to 1024 printable ASCII characters"),
        (LEAST.replace("glrt-1234", "one two"), "runners[0].token: expected"),
        (LEAST.replace('"instance"', '"shell"'), "runners[0].executor: expected"),
        (LEAST + "limt = 3", "unknown key `limt` in runners[0]; did you mean `limit`?"),
        ("concurent = 3" + LEAST, "unknown key `concurent`; did you mean `concurrent`?"),
        ("concurrent = 0" + LEAST, "concurrent: expected"),
        ("log_level = 'loud'" + LEAST, "log_level: expected"),
        (LEAST + "request_concurrency = -1", "runners[0].request_concurrency: expected"),
        (LEAST + 'environment = ["A;B=c"]', "runners[0].environment[0]: expected an assignment"),
        (LEAST + "output_limit = '4'", "runners[0].output_limit: expected an integer"),
        (LEAST + 'tls-ca-file = "none.pem"', "runners[0].tls-ca-file: "),
        (LEAST + 'tls-cert-file = "config.toml"', "expected tls-cert-file and tls-key-file, or neither of them"),
        (LEAST + "[runners.taskscaler]\nplacement = 3", "did you mean `placements`?"),
        (
            LEAST + "[runners.taskscaler]\nrun_with = 'both'",
            'runners[0].taskscaler.run_with: expected one of "own", "sidecar"',
        ),
        (SIDECARS + "upload = '/nowhere/b'", 'runners[0].taskscaler.sidecar.upload: "/nowhere/b" is not a file'),
        (
            SIDECARS + "binary = '/a'\nupload = '/bin/sh'",
            "sidecar.binary: expected nothing, if upload brings the program",
        ),
        (SIDECARS + "upload = 'b'", "runners[0].taskscaler.sidecar.upload: expected an absolute path"),
        (SIDECARS + "uplaod = '/b'", "did you mean `upload`?"),
        (SIDECARS + "token = 't'", "runners[0].taskscaler.sidecar.token: this is the service's own"),
        (URL_ALONE + "advertise_url = 'http://x'", "runners[0].taskscaler.listen: expected the address and port"),
        (URL_ALONE + "listen = '[::]:8930'", "runners[0].taskscaler.advertise_url: expected the address at which"),
        (URL_ALONE + "listen = '::1:8930'", 'such as "0.0.0.0:8930" or "[::]:8930", found "::1:8930"'),
        (
            URL_ALONE + "listen = ':8930'",
            "runners[0].taskscaler.listen: expected an address of this machine and a port",
        ),
        (URL_ALONE + "listen = '8930'", "runners[0].taskscaler.listen: expected an address of this machine and a port"),
        (URL_ALONE + "advertise_url = 'x'", "runners[0].taskscaler.advertise_url: expected an address such as"),
        (LEAST + "[runners.cache]\nType = 'floppy'", "runners[0].cache.Type: expected"),
        (LEAST + "[runners.docker]\nimages = 'a'", "did you mean `image`?"),
        (LEAST + "[runners.docker]\ncpus = 'many'", "runners[0].docker.cpus: expected a number of CPUs"),
        (LEAST + "[runners.docker]\nhost = 'tcp://a'", "runners[0].docker.host: expected the daemon's socket"),
        (LEAST + "[runners.docker]\npull_policy = 'often'", "runners[0].docker.pull_policy[0]: expected"),
    ],
)
def test_each_mistake_is_named_once(tmp_path: Path, text: str, mistake: str) -> None:
    """With the key path, what was expected, and the nearest key; no secret is shown."""
    found = refused(tmp_path, text + FLEET)
    assert [problem for problem in found if mistake in problem] == found
    assert len(found) == len(set(found)) >= 1
    assert not any("user:word" in problem for problem in found)


CELLS = """
[[runners]]
name = "several"
executor = "instance"
[[runners.taskscaler.upstreams]]
cell = "eu"
url = "https://eu.example.com/"
token_file = "eu.token"
weight = 2
[[runners.taskscaler.upstreams]]
cell = "us"
url = "https://us.example.com"
token_file = "us.token"
"""


def with_tokens(here: Path) -> None:
    """Write the files that `CELLS` names."""
    (here / "eu.token").write_text("glrt-eu\n")
    (here / "us.token").write_text("glrt-us")


def test_a_runner_may_have_several_gitlabs(tmp_path: Path) -> None:
    """Each with its address, its token from a file beside the configuration, and all else of the entry."""
    with_tokens(tmp_path)
    config = read(tmp_path, CELLS + "[runners.taskscaler.retention]\nsize = 7\n" + FLEET)
    cells = config.runner.cells
    assert {name: (each.url, each.token) for name, each in cells.items()} == {
        "eu": ("https://eu.example.com", "glrt-eu"),
        "us": ("https://us.example.com", "glrt-us"),
    }
    assert {each.taskscaler.retention.size for each in cells.values()} == {7}
    assert [each.weight for each in config.runner.taskscaler.upstreams] == [2.0, 1.0]
    assert "glrt-" not in repr(config)
    assert notes_of(config) == ["cells: slots that all of them could use are shared as eu 67%, us 33%"]
    assert read(tmp_path, LEAST + FLEET).runner.cells.keys() == {""}


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ('cell = "us"', 'cell = "eu"', "upstreams[1].cell: expected a name of its own"),
        ('cell = "us"', 'cell = "U S"', "upstreams[1].cell: expected up to 32 lower-case letters"),
        ('cell = "us"\n', "", "missing key `cell` in runners[0].taskscaler.upstreams[1]"),
        ("us.token", "nowhere", "nowhere\" (No such file or directory) is not a file with the runner's token"),
        ("us.token", "empty", "upstreams[1].token_file: expected up to 1024 printable"),
        ('"us.token"', '"eu.token"\n#', ""),
        (
            "weight = 2",
            "weight = 0",
            "weight: expected a number from 0.001 to 1000; leave a cell out",
        ),
        ("weight = 2", "weight = -1", "weight: expected a number from 0.001 to 1000, found -1"),
        ("weight = 2", "weight = nan", "weight: expected a number"),
        ("weight = 2", "weight = inf", "weight: expected a number"),
        ("weight = 2", "weigth = 2", "did you mean `weight`?"),
        ("weight = 2", 'token = "glrt-secret"', "unknown key `token`"),
        ("taskscaler.upstreams]]", "taskscaler.upstream]]", "did you mean `upstreams`?"),
        (
            'executor = "i',
            'url = "https://x"\nexecutor = "i',
            "runners[0].url: url beside upstreams",
        ),
        ('executor = "i', 'token = "glrt-x"\nexecutor = "i', "token beside upstreams; remove it"),
        ("https://us.", "ftp://us.", "upstreams[1].url: expected an address such as"),
        ("https://us.", "https://user:word@us.", "found an address with a user in it"),
    ],
)
def test_each_mistake_about_several_gitlabs_is_named(tmp_path: Path, old: str, new: str, mistake: str) -> None:
    """Where it is, and what to do; no secret is shown."""
    with_tokens(tmp_path)
    (tmp_path / "empty").touch()
    text = CELLS.replace(old, new) + FLEET
    if not mistake:  # the same token at another address
        assert read(tmp_path, text).runner.cells["us"].token == "glrt-eu"
        text, mistake = text.replace("us.example", "eu.example"), "the token of the cell eu, at the same url"
    found = "\n".join(refused(tmp_path, text)).replace(' (runner "several")', "")
    assert mistake in found
    assert "user:word" not in found
    assert "glrt-" not in found


def test_mistakes_of_jobs_and_of_the_fleet_are_told_together(tmp_path: Path) -> None:
    """In the order of the file, each once."""
    found = refused(tmp_path, LEAST + "limit = -1" + FLEET + "capacity_per_instance = -1")
    assert [problem.partition(":")[0] for problem in found] == [
        "runners[0].limit",
        "runners[0].autoscaler.capacity_per_instance",
    ]


def test_a_file_with_several_runners_wants_a_name(tmp_path: Path) -> None:
    """One process runs one of them; which, the user says."""
    two = (LEAST + 'name = "a"\n' + FLEET) + (LEAST + 'name = "b"\n' + FLEET)
    assert "choose one with --runner" in "".join(refused(tmp_path, two))
    assert read(tmp_path, two, runner="b").runner.name == "b"


def test_jobs_choose_a_directory_unless_the_file_forbids_it(tmp_path: Path) -> None:
    """As with GitLab Runner for the executors that there are."""
    assert read(tmp_path, LEAST + FLEET).runner.custom_build_dir.enabled
    config = read(tmp_path, LEAST + "[runners.custom_build_dir]\nenabled = false\n" + FLEET)
    assert not config.runner.custom_build_dir.enabled
    assert not [key for key in config.ignored if "custom_build_dir" in key]
