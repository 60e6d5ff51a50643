"""A group whose operations are executables of the user's: a shell script is a provisioner.

    _group      the group: what is asked, recorded, made, shown
    _requests   pure: which names were given to which intent, and what became of them
    _store      keeps the requests in files, and other managers out
    _contract   pure: what executables print and exit with, as values and errors
    _program    runs an executable: bounded in time and output, never left behind

`fleeting_docker_machine`, beside this package, is such an executable.
"""

from fleeting import GroupPlugin, hookimpl
from fleeting_exec._config import ExecConfig
from fleeting_exec._contract import ExitCode
from fleeting_exec._group import ExecGroup

__all__ = ["ExecConfig", "ExecGroup", "ExitCode"]


@hookimpl
def fleeting_group() -> GroupPlugin:
    """Describe the group to the loader."""
    return GroupPlugin(config=ExecConfig, group=ExecGroup)
