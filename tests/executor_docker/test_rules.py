"""What a job may have, held against what the operator allows: no daemon is needed to say no."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor_docker import DockerConfig, DockerError, DockerOptions, PullPolicy, Registry, Service
from executor_docker._owner import Unit
from executor_docker._rules import Limits, admit
from executor_docker._sizes import in_words, size_of
from fleeting import ConfigError
from fleeting.plugins import structure
from fleeting_docker._container import GROUP, HOST_KEY, INTENT, OWNER, is_instance
from fleeting_docker_engine import Reference, canonical, is_allowed, registry_of

IMAGE = "busybox:1"


def why_not(config: dict[str, Any], options: dict[str, Any]) -> str:
    """Say why a job may not have its wishes."""
    with pytest.raises(DockerError) as error:
        admit(DockerConfig(**{"image": IMAGE, **config}), DockerOptions(**options))
    return str(error.value)


NAMES = st.lists(st.sampled_from(["srv", "data", "..", ".", "etc", "a b"]), max_size=5).map("/".join)


@given(NAMES, st.sampled_from(["/srv/*", "/srv/data", "/srv/data/*"]))
def test_no_detour_leads_out_of_an_allowed_directory(path: str, pattern: str) -> None:
    """Whatever a job writes: what it gets is below what the pattern begins with."""
    import posixpath

    try:
        admitted = admit(
            DockerConfig(image=IMAGE, allowed_volumes=(pattern,)), DockerOptions(volumes=(f"/{path}:/in/there",))
        )
    except DockerError:
        return
    (volume,) = admitted.volumes
    assert posixpath.normpath(volume.source).startswith(pattern.rstrip("*").rstrip("/"))


@pytest.mark.parametrize(
    ("options", "setting"),
    [
        ({"image": "other:1"}, "allowed_images"),
        ({"volumes": ("named:/x",)}, "allowed_volumes"),
        ({"devices": ("/dev/kvm",)}, "allowed_devices"),
        ({"capabilities": ("net_admin",)}, "allowed_capabilities"),
        ({"namespaces": ("pid",)}, "allowed_namespaces"),
        ({"privileged": True}, "allow_privileged"),
    ],
)
def test_what_is_not_allowed_is_refused_and_the_setting_named(options: dict[str, Any], setting: str) -> None:
    """By default nothing is; once it is allowed, the job has it."""
    assert setting in why_not({}, options)
    allowed: Any = True if setting == "allow_privileged" else ("pid",) if "name" in setting else ("*",)
    allowed = ("CAP_NET_ADMIN",) if setting == "allowed_capabilities" else allowed
    admitted = admit(DockerConfig(image=IMAGE, **{setting: allowed}), DockerOptions(**options))
    assert admitted.options == DockerOptions(**options)


def test_the_operator_s_own_image_is_always_allowed() -> None:
    """Also if a job names it, with its tag or without where that is the usual one."""
    for image, wish in ((IMAGE, IMAGE), ("busybox", "busybox:latest"), ("busybox:latest", "busybox")):
        assert admit(DockerConfig(image=image), DockerOptions(image=wish)).image == canonical(wish)
    with pytest.raises(DockerError, match="the job names no image"):
        admit(DockerConfig(), DockerOptions())


@given(
    most=st.none() | st.integers(1, 2**40),
    wish=st.none() | st.integers(1, 2**40),
    shares=st.integers(1, 8),
    total=st.sampled_from([0, 2**36]),
)
def test_a_job_never_gets_more_memory_than_the_operator_s_limit_or_its_share(
    most: int | None, wish: int | None, shares: int, total: int
) -> None:
    """It may ask for less; asking for more is refused, not cut down. A daemon that tells of 0 bytes does not know."""
    config = DockerConfig(image=IMAGE, memory=None if most is None else str(most), shares=shares)
    options = DockerOptions(memory=None if wish is None else str(wish))
    if most is not None and wish is not None and wish > most:
        with pytest.raises(DockerError, match=r"of memory, but at most .* is allowed; request less"):
            admit(config, options)
        return
    got = admit(config, options).limits.within(cpus=4, memory=total, shares=shares).memory
    bounds = [bound for bound in (most, wish, total // shares if shares > 1 and total else None) if bound is not None]
    assert got == (min(bounds) if bounds else None)


def test_a_service_has_no_more_memory_than_its_job_may_have() -> None:
    """Asking for more is refused; of a share that is smaller, it gets that."""
    services = (Service(image="db", memory="2g"),)
    said = why_not({"memory": "1g", "allowed_services": ("db",)}, {"services": services})
    assert said == "the job requests 2 GiB of memory for the service db, but at most 1 GiB is allowed; request less"
    assert Limits(memory=100).of_service(200).memory == Limits().of_service(100).memory == 100


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"volumes": ["data"]}, "volumes such as source:/target or source:/target:ro"),
        ({"volumes": ["data:relative"]}, "volumes such as source:/target"),
        ({"volumes": ["/a:/b/../..:ro"]}, "volumes such as source:/target"),
        ({"caches": {"a b": "/x"}}, "for each name an absolute path in the container"),
        ({"memory": "lots"}, 'a size such as "512m" or "2g"'),
        ({"working_dir": "/"}, "an absolute path in the container"),
        ({"labels": {"taskscaler.run": "x"}}, "labels that do not start with taskscaler."),
        ({"imag": "x"}, "did you mean `image`?"),
        ({"services": [{"image": "x", "aliases": ["a b"]}]}, "host names"),
    ],
)
def test_a_bad_wish_is_told_when_the_file_is_read(table: dict[str, Any], found: str) -> None:
    """Before anything is started."""
    with pytest.raises(ConfigError) as error:
        structure(table, DockerOptions, path="jobs[0].options.docker")
    assert found in str(error.value)
    assert error.value.problems[0].path.startswith("jobs[0].options.docker.")


@given(st.integers(1, 2**50))
def test_a_size_in_bytes_is_read_as_it_is(size: int) -> None:
    """Units are powers of 1024."""
    assert size_of(str(size)) == size_of(f"{size}b") == size
    assert size_of(f"{size}k") == size * 1024
    assert in_words(64 << 20) == "64 MiB"


@pytest.mark.parametrize(
    ("image", "registry", "full"),
    [
        ("busybox", "docker.io", "busybox:latest"),
        ("library/busybox:1", "docker.io", "library/busybox:1"),
        ("localhost/x", "localhost", "localhost/x:latest"),
        ("host:5000/a/b", "host:5000", "host:5000/a/b:latest"),
        ("registry.example/a@sha256:0", "registry.example", "registry.example/a@sha256:0"),
        ("HOST/a", "HOST", "HOST/a:latest"),
        ("index.docker.io/a", "docker.io", "index.docker.io/a:latest"),
        ("host/a", "docker.io", "host/a:latest"),
    ],
)
def test_an_image_s_registry_and_tag(image: str, registry: str, full: str) -> None:
    """As Docker reads them."""
    assert (registry_of(image), canonical(image)) == (registry, full)


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        (
            "python:*",
            [
                "python",
                "python:3.12",
                "library/python:3",
                "docker.io/python:3",
                f"python@{DIGEST}",
                f"python:3@{DIGEST}",
            ],
            ["python:5000/evil/image", "PYTHON/evil", "evil/python:3", "localhost/python", "pythons:3", "python/a:3"],
        ),
        ("python", ["python", "python:latest"], ["python:3", f"python@{DIGEST}", f"python:latest@{DIGEST}"]),
        ("python:3", ["python:3"], ["python", "python:3.12", f"python:3@{DIGEST}", "python:3/evil:1"]),
        (f"python@{DIGEST}", [f"python@{DIGEST}", f"python:3@{DIGEST}"], ["python:3", f"evil@{DIGEST}"]),
        (
            "registry.example/*",
            ["registry.example/a", "registry.example/a/b:1", f"registry.example/a@{DIGEST}"],
            ["registry.example:5000/a", "registry.example.evil/a", "registry/a", "docker.io/registry.example/a"],
        ),
        ("team/*", ["team/a:1", "docker.io/team/a"], ["team.example/a", "Team/a", "team:5000/a", "x/team/a"]),
        ("*.example/a", ["eu.example/a"], ["eu.example:5000/a", "evil/x.example/a", "eu.example/a:1"]),
        ("[::1]:5000/*", ["[::1]:5000/a"], ["[::2]:5000/a", ":5000/a"]),
        ("*", ["a", "HOST/a:1", f"host:5000/a@{DIGEST}"], []),
        ("*:*", ["a", "a:1"], ["a/b:1", "localhost/a", DIGEST, DIGEST[:15], DIGEST[7:], "a:1:2", "a b", "", "a/"]),
    ],
)
def test_a_pattern_allows_images_by_their_parts(pattern: str, allowed: list[str], refused: list[str]) -> None:
    """As Docker reads them: what looks like a tag may be a port, and what is in upper case is a host."""
    assert [image for image in allowed if not is_allowed(image, pattern)] == []
    assert [image for image in refused if is_allowed(image, pattern)] == []


WORDS = st.from_regex(r"[a-zA-Z0-9.:/@_*-]{1,12}", fullmatch=True)


@given(WORDS, st.sampled_from(["python:*", "python", "library/python:*", "team/*", "registry.example/*"]))
def test_no_image_is_from_elsewhere_than_its_pattern_says(image: str, pattern: str) -> None:
    """Whatever a job writes around the names that are allowed."""
    wanted = Reference.parse(pattern.replace("*", "x"))
    for name in (image, f"python:{image}", f"python{image}", f"team/{image}", f"registry.example/{image}"):
        if is_allowed(name, pattern):
            found = Reference.parse(name)
            assert registry_of(name) == found.registry == wanted.registry
            assert found.path.rpartition("/")[0].startswith(wanted.path.rpartition("/")[0])
            assert found.path == wanted.path or "/*" in pattern


@given(
    st.from_regex(r"[a-z0-9]{1,5}([.]example(:[0-9]{1,4})?)?", fullmatch=True),
    st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5})?", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9]{0,5}", fullmatch=True),
)
def test_a_reference_comes_apart_as_it_was_put_together(host: str, path: str, tag: str) -> None:
    """A host is one by its looks, or else part of the path."""
    found = Reference.parse(f"{host}/{path}" + (f":{tag}" if tag else ""))
    names = (host, path) if "." in host else ("docker.io", f"{host}/{path}")
    assert (found.registry, found.path, found.tag) == (*names, tag or "latest")


@pytest.mark.parametrize("label", ["taskscaler.run", "fleeting.group", "fleeting.x", "Fleeting.Group", " fleeting.a"])
def test_labels_by_which_others_know_what_is_theirs_are_refused(label: str) -> None:
    """A group would take the job's container for an instance, and remove it."""
    with pytest.raises(ConfigError, match=r"labels that do not start with taskscaler\. or fleeting\."):
        structure({"labels": {label: "x"}}, DockerOptions)


def test_an_image_s_labels_make_no_instance_of_a_job() -> None:
    """A container inherits its image's labels, unless it has others itself."""
    labels = Unit(id="u", labels={"taskscaler.job": "j"}).of_kind("job")
    assert labels[GROUP] == labels[OWNER] == labels[HOST_KEY] == labels[INTENT] == ""


@pytest.mark.parametrize(
    ("name", "change", "ours"),
    [
        ("ci-0123456789ab", {}, True),
        ("ci-0123456789ab", {OWNER: ""}, False),
        ("ci-0123456789ab", {HOST_KEY: ""}, False),
        ("ci-0123456789ab", {GROUP: "other"}, False),
        ("taskscaler-0123456789ab", {}, False),
        ("ci-0123456789abc", {}, False),
        ("x-ci-0123456789ab", {}, False),
    ],
)
def test_a_container_is_an_instance_by_more_than_a_label(name: str, change: dict[str, str], ours: bool) -> None:  # noqa: FBT001  (an example's outcome)
    """What somebody runs for another purpose is not removed."""
    assert is_instance(name, {GROUP: "ci", OWNER: "me", HOST_KEY: "ssh-ed25519 AAAA", **change}, "ci") is ours


def test_a_job_chooses_among_the_pull_policies_that_are_allowed() -> None:
    """The operator's own, and those that the operator allows beside them; for services too."""
    never, always = PullPolicy.NEVER, PullPolicy.ALWAYS
    assert "allowed_pull_policies" in why_not({}, {"pull_policy": (never,)})
    service = Service(image="redis:7", pull_policy=(always,))
    assert "allowed_pull_policies" in why_not({"allowed_services": ("*",)}, {"services": (service,)})
    config = DockerConfig(image=IMAGE, allowed_services=("*",), pull_policy=(always,), allowed_pull_policies=(never,))
    admitted = admit(config, DockerOptions(pull_policy=(never, always), services=(service,)))
    assert admitted.options.pull_policy == (never, always)


def test_a_job_names_no_file_of_the_manager_as_a_password() -> None:
    """Its logins have their passwords in them: it could send any file to a registry of its own otherwise."""
    login = Registry(username="u", password_file="/etc/passwd")
    with pytest.raises(ValueError, match="a password, not a file"):
        DockerOptions(registries={"registry.example": login})
