"""The package: what it imports, what it asks for, what it says of itself."""

import json
import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

import fleeting
from fleeting import ConfigError, State
from fleeting.plugins import format_duration
from fleeting_azure import AzureConfig, AzureGroup
from tests.fleeting_azure.arm_cloud import Mode, Request
from tests.fleeting_azure.groups import opened

PACKAGE = Path(__file__).parents[2] / "packages" / "fleeting-azure"
README = (PACKAGE / "README.md").read_text()
VERBS = {"GET": "read", "PATCH": "write", "POST": "action"}
LEAST = {"name": "runners", "subscription_id": "s", "resource_group_name": "ci"}


def test_the_sdk_is_not_imported_before_a_group_is_opened() -> None:
    """Neither by the package nor by loading the plugin and making a group."""
    program = f"import sys, fleeting; fleeting.load('azure', {LEAST!r}); print('azure' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_what_the_sdk_warns_of_is_not_on_the_terminal() -> None:
    """Without credentials it tells at length where it has looked; whoever logs still gets it."""
    program = "import logging, fleeting_azure; logging.getLogger('azure.identity').warning('I have tried ...')"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["azure", "azure:latest", "fleeting-plugin-azure"])
def test_it_is_found_by_its_names(name: str) -> None:
    """GitLab's too, with the settings of GitLab's plugin."""
    assert isinstance(fleeting.load(name, LEAST), AzureGroup)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": ""}, "plugin_config.name"),
        ({"endpoint": "http://management.azure.com"}, "an https address without a path"),
        ({"endpoint": "https://management.azure.com/x"}, "an https address without a path"),
        ({"timeout": "2m"}, "plugin_config.timeout"),
        ({"resource_group": "ci"}, "resource_group_name"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], said: str) -> None:
    """With the key's path and what is expected there."""
    with pytest.raises(ConfigError) as caught:
        fleeting.load("azure", {**LEAST, **settings})
    assert said in str(caught.value)


def test_the_readme_has_every_setting() -> None:
    """In their order, with their defaults."""
    table = README.partition("## Settings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*?)\|", table, re.MULTILINE)
    assert {name: told.strip() for name, told in rows} == {
        name: default_of(field.default) for name, field in attrs.fields_dict(AzureConfig).items()
    }


def default_of(value: object) -> str:
    """As the table has it."""
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case float():
            return f'`"{format_duration(value)}"`'
        case str():
            return f'`"{value}"`'
    return "required"


def action_of(request: Request) -> str:
    """What Azure wants to be permitted for a request."""
    provider, *path = request.path.rpartition("/providers/")[2].split("/")
    types = "/".join([provider, *path[::2]])
    return "/".join([types, VERBS[request.method]])


@pytest.mark.anyio
async def test_the_role_permits_what_is_asked_and_no_more(tmp_path: Path) -> None:
    """A day in the life of both kinds needs each action of the README's role, and nothing else."""
    (block,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    assert {action for mode in ("Uniform", "Flexible") for action in await day(tmp_path, mode)} == set(
        json.loads(block)["Actions"]
    )


async def day(directory: Path, mode: Mode) -> set[str]:
    """Do all that can be done; returns the actions that it took."""
    async with opened(directory, mode) as azure:
        one, two = await azure.grow(2)
        await azure.group.connect_info(one)
        await azure.group.heartbeat(one)
        await azure.group.suspend([two])
        await azure.until(State.RUNNING, State.SUSPENDED)
        await azure.group.resume([two])
        await azure.until(State.RUNNING, State.RUNNING)
        await azure.group.decrease([one, two])
        await azure.until()
        return {action_of(request) for request in azure.cloud.log}
