"""Helpers for authors of plugins: what an instance group, an executor or an observer needs again and again.

The types and errors of the protocol are in `fleeting` itself, and what is for connectors in `fleeting.connectors`.
"""

from fleeting._batches import accepted, ask_in_batches
from fleeting._directories import hide_tree, is_absolute, make_private, open_private, state_home, write_whole
from fleeting._durations import format_duration, span
from fleeting._marks import mark_as_text, mark_from_text, put_mark, refuse_if_marked
from fleeting._offload import Offload, undone_on_failure
from fleeting._place_to_listen import place_to_listen
from fleeting._plugins import load_connector
from fleeting._private_directory import PrivateDirectory
from fleeting._protocols import GivesNotice, HasHosts, MarksOwner, ReadsMarks, Suspends, Withdraws
from fleeting._setting_command import SettingCommand
from fleeting._shared_call import SharedCall
from fleeting._structure import is_group_name, structure
from fleeting._types import INTERFACE_VERSION, Mark
from fleeting._wording import Argv, describe, has_surrogates, in_units, one_line

__all__ = [
    "INTERFACE_VERSION",
    "Argv",
    "GivesNotice",
    "HasHosts",
    "Mark",
    "MarksOwner",
    "Offload",
    "PrivateDirectory",
    "ReadsMarks",
    "SettingCommand",
    "SharedCall",
    "Suspends",
    "Withdraws",
    "accepted",
    "ask_in_batches",
    "describe",
    "format_duration",
    "has_surrogates",
    "hide_tree",
    "in_units",
    "is_absolute",
    "is_group_name",
    "load_connector",
    "make_private",
    "mark_as_text",
    "mark_from_text",
    "one_line",
    "open_private",
    "place_to_listen",
    "put_mark",
    "refuse_if_marked",
    "span",
    "state_home",
    "structure",
    "undone_on_failure",
    "write_whole",
]
