"""The pages of the reference that are made of the code: public names, commands, settings."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from textwrap import indent

import attrs
import click
from attrs import frozen

from docs.site.fields import Field, fields

PUBLIC: Sequence[str] = (
    "taskscaler",
    "taskscaler.sync",
    "taskscaler.futures",
    "taskscaler.config",
    "taskscaler.batch",
    "taskscaler.report",
    "taskscaler.executors",
    "taskscaler.executors.artifacts",
    "taskscaler.executors.directories",
    "taskscaler.executors.instance",
    "taskscaler.executors.runs",
    "taskscaler.observers",
    "taskscaler.observers.webhook",
    "fleeting",
    "fleeting.plugins",
    "fleeting.connectors",
    "fleeting.connectors.ssh",
    "fleeting.connectors.winrm",
    "fleeting.connectors.powershell",
    "fleeting.archives",
    "fleeting.events",
    "fleeting.errors",
    "fleeting.testing",
    "fleeting_docker_engine",
    "gitlab_jobs",
    "gitlab_jobs.client",
    "gitlab_jobs.coordinator",
    "gitlab_jobs.testing",
    "job_steps",
    "job_steps.client",
    "taskscaler_gitlab",
)
"""The modules that people import from."""

COMMANDS: Mapping[str, str] = {
    "taskscaler": "taskscaler.cli:main",
    "fleeting": "fleeting.cli:main",
    "gitlab-jobs": "gitlab_jobs.cli:main",
    "job-steps": "job_steps.cli:main",
    "taskscaler-gitlab": "taskscaler_gitlab.cli:main",
}
"""Where the parsers of the commands are."""


@frozen
class Table:
    """A table of a file, and the class that it is read into."""

    title: str
    place: str
    """The class, as ``module:name``."""

    @property
    def fields(self) -> list[Field]:
        """Its keys."""
        owner = _load(self.place)
        return list(fields(owner)) if isinstance(owner, type) else []


TABLES: Sequence[Table] = (
    Table("`[autoscaler]`: the fleet", "taskscaler.config:Autoscaler"),
    Table("`[[autoscaler.policy]]`: what to keep idle, and when", "taskscaler:Policy"),
    Table("`[autoscaler.connector_config]`: how to connect", "fleeting:ConnectorConfig"),
    Table("`[autoscaler.scale_throttle]`: how fast it may grow", "fleeting:ScaleThrottle"),
    Table("`[autoscaler.plugin_config]` of `local`", "fleeting.groups.local._config:LocalConfig"),
    Table("`[autoscaler.plugin_config]` of `static`", "fleeting.groups.static._config:StaticConfig"),
    Table("`[[autoscaler.plugin_config.hosts]]` of `static`", "fleeting.groups.static._config:Host"),
    Table("`[autoscaler.plugin_config]` of `aws`", "fleeting_aws._config:AwsConfig"),
    Table("`[autoscaler.plugin_config]` of `azure`", "fleeting_azure._config:AzureConfig"),
    Table("`[autoscaler.plugin_config]` of `googlecloud`", "fleeting_gcp._config:GcpConfig"),
    Table("`[autoscaler.plugin_config]` of `docker`", "fleeting_docker._config:DockerGroupConfig"),
    Table("`[autoscaler.plugin_config]` of `exec`", "fleeting_exec._config:ExecConfig"),
    Table("`[autoscaler.observers.webhook]`", "taskscaler.observers.webhook:WebhookConfig"),
    Table("`[executors.docker]`: what jobs in containers may do", "executor_docker._config:DockerConfig"),
    Table("`[jobs.options.docker]`: what one of them wants", "executor_docker._options:DockerOptions"),
    Table("`[executors.steps]`: how jobs' steps run", "job_steps.executor._config:StepsConfig"),
    Table("`[executors.steps.policy]`: what they may be", "job_steps.executor._config:PolicySettings"),
    Table("`[jobs.options.steps]`: the steps of one job", "job_steps.executor._options:StepsOptions"),
    Table("`[[jobs.options.docker.services]]`: containers beside it", "executor_docker._options:Service"),
)

_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "true or false",
    "Duration": "duration",
    "Argv": "list of strings",
    "tuple[str, ...]": "list of strings",
    "dict[str, str]": "table of strings",
}
"""What the types of fields are in a file."""

_CLASS = """\
## {name}

```{{eval-rst}}
.. autoclass:: {module}.{name}
   :members:
   :undoc-members:
   :inherited-members: {strangers}
   :special-members: __call__
   :exclude-members: {written}
   :member-order: bysource
{fields}```
"""
_FIELD = """
   .. py:attribute:: {name}
      :type: {type}
{value}
{meaning}
"""
_OTHER = """\
## {name}

```{{eval-rst}}
.. auto{kind}:: {module}.{name}
```
"""
_SETTINGS = """\
# All settings

Every key, made of the code that reads it. [The configuration](configuration.md) and [the jobs file](jobs-file.md)
explain how they work together. A duration is a string such as `"90s"`, `"15m"` or `"1h30m"`.
"""
_STRANGERS = "Exception, BaseException, object, dict, tuple, str, int, Enum, Protocol, Generic, Executor, ABC"
"""Classes of the standard library, whose members are explained there."""


def pages() -> Iterator[tuple[str, str]]:
    """The generated pages: their paths on the site, and what is on them."""
    yield "reference/settings.md", settings()
    yield from ((f"reference/commands/{name}.md", command(name, place)) for name, place in COMMANDS.items())
    yield from ((f"reference/api/{name}.md", module(name)) for name in PUBLIC)


def index() -> str:
    """Lists of the generated pages, for the front page."""
    commands = "".join(f"- [`{name}`](reference/commands/{name}.md)\n" for name in COMMANDS)
    names = "".join(f"- [`{name}`](reference/api/{name}.md)\n" for name in PUBLIC)
    return (
        f"\n## Commands and settings\n\n{commands}- [All settings](reference/settings.md)\n\n## Python API\n\n{names}"
    )


def module(name: str) -> str:
    """The page of a module: what it is for, and each name that it exports, classes first."""
    intro = (inspect.getdoc(import_module(name)) or "").partition("\n\n")[0]
    parts = "\n".join(_part(name, each, value) for each, value in exported(name))
    return f"# `{name}`\n\n```{{eval-rst}}\n.. py:module:: {name}\n```\n\n{intro}\n\n{parts}"


def exported(name: str) -> list[tuple[str, object]]:
    """What a module exports: what it says, or else whatever it defines; classes first, each part by the alphabet."""
    there = import_module(name)
    defined = [each for each, value in vars(there).items() if getattr(value, "__module__", "") == name]
    names = [(each, getattr(there, each)) for each in getattr(there, "__all__", defined) if each[0] != "_"]
    return sorted(names, key=lambda each: (not inspect.isclass(each[1]), each[0].lower()))


def command(name: str, place: str) -> str:
    """The page of a command, with all that come under it."""
    found = _load(place)
    if not isinstance(found, click.Command):
        raise TypeError(f"expected a command, found {found!r}")
    return f"# The command `{name}`\n\n" + "\n".join(_commands(found, click.Context(found, info_name=name)))


def _commands(found: click.Command, context: click.Context) -> Iterator[str]:
    """A command as its own help has it, and those under it."""
    yield f"## `{context.command_path}`\n\n```text\n{found.get_help(context)}\n```\n"
    if isinstance(found, click.Group):
        for name in found.list_commands(context):
            if (below := found.get_command(context, name)) and not below.hidden:
                yield from _commands(below, click.Context(below, info_name=name, parent=context))


def settings() -> str:
    """The page of all settings, made of the classes that files are read into."""
    parts = (f"## {table.title}\n\n{rows(table.fields)}\n" for table in TABLES)
    return "\n".join([_SETTINGS, *parts])


def signature(value: object, shown: str | None) -> str | None:
    """How a class is called, as its page shows it: protocols are not, and of attrs classes the fields say it."""
    if inspect.isclass(value) and (attrs.has(value) or getattr(value, "_is_protocol", False)):
        return ""
    return shown


def described(what: str, lines: list[str]) -> None:
    """Keep the first line of what stands below a field from being read as a type, as far as its first colon."""
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment


def _part(name: str, each: str, value: object) -> str:
    if not inspect.isclass(value):
        return _OTHER.format(module=name, name=each, kind="function" if inspect.isroutine(value) else "data")
    described = list(fields(value)) if attrs.has(value) else []
    written = ", ".join(key.name for key in described)
    parts = "".join(map(_field, described))
    return _CLASS.format(module=name, name=each, strangers=_STRANGERS, written=written, fields=parts)


def _field(key: Field) -> str:
    """A field as the page of its class has it: autodoc would show what aliases of types stand for."""
    default = key.default.name if isinstance(key.default, Enum) else repr(key.default)
    shown = key.default is not attrs.NOTHING and not key.made and "<" not in default
    value = f"      :value: {default}\n" if shown else ""
    return _FIELD.format(name=key.name, type=key.annotation, value=value, meaning=indent(key.meaning, " " * 6))


def rows(keys: Sequence[Field]) -> str:
    """A table of keys, each with what a file may have for it."""
    lines = (f"| `{key.name}` | {_type(key)} | {_default(key)} | {_meaning(key)} |" for key in keys)
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *lines])


def _type(key: Field) -> str:
    plain = key.annotation.removesuffix(" | None")
    match key.type:
        case type() as kind if issubclass(kind, Enum):
            return " or ".join(f'`"{each.value}"`' for each in kind)
        case type() as kind if attrs.has(kind):
            return "table"
    return _TYPES.get(plain) or ("list of tables" if plain.startswith("tuple") else "table")


def _default(key: Field) -> str:
    return "required" if key.default is attrs.NOTHING else f"`{shown}`" if (shown := _written(key)) else ""


def _written(key: Field) -> str:
    """A default as a file has it; empty if there is none, or it is a table."""
    match key.default:
        case float() | int() as number if not isinstance(number, bool):
            return f'"{number:g}s"' if key.annotation.startswith("Duration") else f"{number:g}"
        case Enum(value=str() as word):
            return f'"{word}"'
        case bool() | str():
            return json.dumps(key.default)
        case (str(), *_):
            return json.dumps(key.default)
    return ""


def _meaning(key: Field) -> str:
    return " ".join(key.meaning.split()).replace("``", "`").replace("|", "\\|")


def _load(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
