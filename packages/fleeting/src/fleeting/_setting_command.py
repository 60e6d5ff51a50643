"""Runs the commands that stand in the settings, such that what they say fills nothing up and reveals no secret."""

from collections.abc import Mapping

from attrs import evolve, field, frozen

from fleeting._errors import CommandFailed
from fleeting._protocols import Connection, Sink
from fleeting.connectors._collect import Beginning, Ending

KEPT = 1 << 13
"""Bytes at the end of what a command of ours says that are kept, to say why it failed."""


@frozen
class SettingCommand:
    """A command of the user's, and the setting in which it stands: that is shown where the command is not."""

    setting: str
    """The key that the command is the value of, for messages."""

    line: str | None = field(repr=False)
    """The command line."""

    async def run(
        self, connection: Connection, env: Mapping[str, str] | None = None, *, stdout: Sink | None = None
    ) -> None:
        """Run it; raises `CommandFailed`, under the setting's name, unless it succeeds.

        It may print as much as it likes: unless there is a sink, no more is kept than says why it failed.
        """
        said = Ending(KEPT)
        completed = await connection.run(self.line or "", stdout=stdout or Beginning(0), stderr=said, env=env)
        if not completed.ok:
            completed = evolve(completed, stderr=bytes(said.data))
            is_cut = len(said.data) == KEPT
            raise CommandFailed.of_setting(self.setting, self.line or "", completed, is_cut=is_cut)
