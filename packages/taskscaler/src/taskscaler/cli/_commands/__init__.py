"""The options and the help of all commands, by subject; what they do is imported when they run."""

from taskscaler.cli._commands import _batches, _forecasts, _leasing, _looking, _operating, _running, _serving

COMMANDS = [
    command
    for subject in (_running, _batches, _serving, _operating, _leasing, _looking, _forecasts)
    for command in subject.commands.commands.values()
]
