"""The tests' side of moto's server: one process for all tests, with a cloud of its own for each."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anyio import to_thread
from attrs import define, evolve

from fleeting import Completed, State
from fleeting.testing import Harness, Trouble
from fleeting_aws import AwsConfig, AwsGroup
from tests.fleeting_aws.moto_rules import ON_BEHALF, OTHER_CLIENT

ROOT = Path(__file__).parents[2]
REGION = "eu-west-1"
SECRET = "secret-access-key-4711"

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAFLEETING",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""Of whoever asks the cloud; nothing is the user's own."""

STATES = {
    "Pending/pending": State.CREATING,
    "Pending:Wait/running": State.CREATING,
    "Pending/stopped": State.FAILED,
    "InService/pending": State.CREATING,
    "InService/running": State.RUNNING,
    "InService/stopping": State.FAILED,
    "InService/stopped": State.FAILED,
    "InService/shutting-down": State.DELETING,
    "InService/terminated": State.DELETED,
    "EnteringStandby/running": State.SUSPENDING,
    "Standby/running": State.SUSPENDING,
    "Standby/stopping": State.SUSPENDING,
    "Standby/stopped": State.SUSPENDED,
    "Standby/pending": State.RESUMING,
    "Terminating/running": State.DELETING,
    "Terminating:Wait/running": State.DELETING,
    "Terminating:Proceed/shutting-down": State.DELETING,
    "Terminating:Retained/running": State.FAILED,
    "Terminated/terminated": State.DELETED,
    "Detaching/running": State.DELETING,
    "Detached/running": State.DELETED,
    "Quarantined/running": State.FAILED,
    "ReplacingRootVolume:Wait/running": State.FAILED,
    "RootVolumeReplaced/running": State.FAILED,
    "Warmed:Stopped/stopped": State.SUSPENDED,
    "Warmed:Running/running": State.SUSPENDED,
    "Warmed:Terminating:Wait/shutting-down": State.DELETING,
}
"""What Auto Scaling and EC2 say, and what it means."""


UNKNOWN = {
    Trouble.EMPTY_PAGE,
    Trouble.SHIFTED_PAGE,
    Trouble.UNREACHABLE,
    Trouble.MALFORMED,
    Trouble.LATE_ANSWER,
}
"""Troubles that moto's server cannot be made to have."""


@define
class Cloud:
    """AWS, as far as a fleet sees it: one region with one Auto Scaling group, called ``fleet``."""

    port: int
    config: AwsConfig

    def group(self, **settings: Any) -> AwsGroup:  # noqa: ANN401  (the settings know their types)
        """Make a group object for it."""
        return AwsGroup(evolve(self.config, **settings))

    def do(self, what: str, **arguments: object) -> Any:  # noqa: ANN401  (what each control gives)
        """Call a control; see `moto_server`."""
        connection = HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request("POST", "/control", json.dumps({"do": what, **arguments}))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    async def ado(self, what: str, **arguments: object) -> Any:  # noqa: ANN401  (what each control gives)
        """Call a control from a coroutine."""
        return await to_thread.run_sync(lambda: self.do(what, **arguments))

    def calls(self) -> Mapping[str, int]:
        """What was asked of the cloud since its process began."""
        calls: dict[str, int] = self.do("calls")
        return calls

    def writes(self) -> int:
        """Count the requests that would change something."""
        reads, needed = ("Describe", "Get"), {name for names in ON_BEHALF.values() for name in names}
        asked = {name: number for name, number in self.calls().items() if name not in needed}
        return sum(number for name, number in asked.items() if not name.partition(":")[2].startswith(reads))

    def probe(self, instance: str) -> Completed:
        """Run the command for notices as on an instance, whose metadata is served by a `curl` of its own."""
        with TemporaryDirectory() as directory:
            target = self.do("lifecycle", instance=instance).partition(":")[0].replace("Terminating", "Terminated")
            return run_probe(Path(directory), {"autoscaling/target-lifecycle-state": target})

    def trouble(self, kind: Trouble) -> Callable[[], AbstractAsyncContextManager[None]]:
        """Have a trouble from entering to leaving."""

        @asynccontextmanager
        async def having() -> AsyncIterator[None]:
            await self.ado("trouble", name=kind.name, on=True)
            try:
                yield
            finally:
                self.do("trouble", name=kind.name, on=False)

        return having

    def harness(self, **other: Any) -> Harness:  # noqa: ANN401  (the harness knows their types)
        """What the conformance suite may do to the cloud."""

        async def notice(instance: str) -> None:
            await self.ado("state", instance=instance, written="Terminating:Wait/running")

        async def probed(instance: str) -> Completed:
            return await to_thread.run_sync(self.probe, instance)

        async def set_state(instance: str, written: str) -> None:
            await self.ado("state", instance=instance, written=written)

        async def alive() -> list[str]:
            found: list[str] = await self.ado("alive")
            return found

        hooks = {
            "make": self.group,
            "kill": lambda instance: self.ado("kill", instance=instance),
            "launch": lambda count: self.ado("launch", count=count),
            "alive": alive,
            "troubles": {kind: self.trouble(kind) for kind in Trouble if kind not in UNKNOWN},
            "cannot": dict.fromkeys(
                ("troubles", "trouble_after", "requests", "room", "respelled", "elsewhere"),
                "moto's server has neither such a trouble, nor a second group, nor room for a crowd",
            ),
            "states": STATES,
            "set_state": set_state,
            "notice": notice,
            "probed": probed,
            "writes": self.writes,
            "secrets": [SECRET],
            "deadline": 30,
            "patience": 30,
            "settle": 0.02,
            "poll": 0.01,
        }
        return Harness(**{**hooks, **other})


PROBE = ROOT / "packages/fleeting-aws/src/fleeting_aws/notice_probe.sh"
CURL = """#!/bin/sh
for url; do :; done
case $url in
  */api/token) echo token; exit 0;;
esac
file="$METADATA/$(echo "${url#*/meta-data/}" | tr / _)"
[ -e "$file" ] && cat "$file" || exit 22
"""


def run_probe(directory: Path, metadata: Mapping[str, str]) -> Completed:
    """Run the command for notices on an instance with this metadata."""
    (directory / "curl").write_text(CURL)
    (directory / "curl").chmod(0o755)
    for name, text in metadata.items():
        (directory / name.replace("/", "_")).write_text(text)
    env = {"PATH": f"{directory}:{os.environ['PATH']}", "METADATA": str(directory)}
    done = subprocess.run(["/bin/sh", "-c", PROBE.read_text()], env=env, capture_output=True, check=False)
    return Completed(exit_status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def other_client(port: int, service: str, **config: Any) -> Any:  # noqa: ANN401  (the SDK has no types)
    """Make a client whose requests are not counted as the group's own."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        service,
        REGION,
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id=OTHER_CLIENT,
        aws_secret_access_key="x",
        config=Config(**config),
    )


@contextmanager
def running_server() -> Iterator[int]:
    """Run moto's server on a free port; it is killed in the end."""
    command = [sys.executable, "-m", "tests.fleeting_aws.moto_server"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            # what moto loads with the first request of a service takes longer than most tests wait for an answer
            other_client(port, "autoscaling").describe_auto_scaling_groups()
            other_client(port, "ec2").describe_instances()
            yield port
        finally:
            process.kill()


def new_cloud(
    port: int,
    *,
    page: int = 0,
    group: Mapping[str, object] | None = None,
    suspended: Sequence[str] = ("AZRebalance",),
    **life: object,
) -> Cloud:
    """Begin anew, with an empty group."""
    config = AwsConfig(name="fleet", region=REGION, endpoint_url=f"http://127.0.0.1:{port}", timeout=30.0, attempts=1)
    cloud = Cloud(port=port, config=config)
    cloud.do("reset", life_=life, group=group or {}, suspended=suspended)
    if page:
        cloud.do("set", page=page)
    return cloud
