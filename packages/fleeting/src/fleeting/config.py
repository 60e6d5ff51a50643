"""TOML, fields, plugins by name, the words of messages. For taskscaler; may change with any minor version."""

from fleeting._arguments import all_are, as_given, check, in_words, path_like
from fleeting._durations import parse_duration
from fleeting._files import find_runner, read_toml
from fleeting._plugins import ask_plugin, available_groups, available_plugins, find_group, find_plugin
from fleeting._problems import file_error
from fleeting._terminal import harmless
from fleeting._wording import did_you_mean, quoted

__all__ = [
    "all_are",
    "as_given",
    "ask_plugin",
    "available_groups",
    "available_plugins",
    "check",
    "did_you_mean",
    "file_error",
    "find_group",
    "find_plugin",
    "find_runner",
    "harmless",
    "in_words",
    "parse_duration",
    "path_like",
    "quoted",
    "read_toml",
]
