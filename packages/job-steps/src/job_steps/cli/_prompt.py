"""The prompt at a breakpoint."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

import click
from anyio import to_thread
from attrs import frozen

from job_steps._breakpoints import Breakpoint, Decision, Moment, When
from job_steps._values import json_text
from job_steps.cli._printable import printable

_HELP = """\
inputs, env, outputs   what the step has, with secrets masked
command                what is run, and where
shell                  a shell in the step's directory, with its environment
continue, abort        go on, or cancel the run"""


@frozen
class Prompt:
    """Asks whoever sits at the terminal what to do at each breakpoint."""

    breakpoints: Sequence[Breakpoint]
    is_quiet: bool = False
    """Whether standard output is for something else."""

    async def __call__(self, moment: Moment) -> Decision:
        """Wait at a breakpoint until somebody decides; go on at once where there is none, or nobody."""
        if not any(each.matches(moment.path, moment.when) for each in self.breakpoints):
            return Decision.CONTINUE
        self._say(f"{_WORDS[moment.when]} {'/'.join(moment.path) or 'the command'}{_how(moment)}; `help` for commands")
        while True:
            click.echo("(job-steps) ", nl=False, err=self.is_quiet)
            line = await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            if not line:  # nobody is there
                self._say("")
                return Decision.CONTINUE
            word = line.strip()
            if word in ("continue", "c"):
                return Decision.CONTINUE
            if word == "abort":
                return Decision.ABORT
            if word == "shell":
                await self._shell(moment)
            elif word:
                self._say(_answer(word, moment))

    async def _shell(self, moment: Moment) -> None:
        """Run a shell; Ctrl-C is for what runs in it."""
        shell = os.environ.get("SHELL") or shutil.which("sh") or "/bin/sh"
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            run = partial(subprocess.run, [shell], cwd=moment.work_dir, env=dict(moment.env), check=False)
            await to_thread.run_sync(run)
        except OSError as error:
            self._say(f"{error.filename or shell}: {error.strerror or error}")
        finally:
            signal.signal(signal.SIGINT, handler)

    def _say(self, text: str) -> None:
        click.echo(printable(text), err=self.is_quiet)


_WORDS = {When.BEFORE: "before", When.AFTER: "after", When.FAILURE: "failed:"}


def _how(moment: Moment) -> str:
    return f" (exit status {moment.result.exit_code})" if moment.when is When.FAILURE else ""


def _answer(word: str, moment: Moment) -> str:
    """Say what somebody asked for."""
    result = moment.result
    if word == "command":
        return f"{json_text(result.command)}\nin {result.work_dir}"
    named = {"inputs": result.inputs, "env": result.env, "outputs": result.outputs}.get(word)
    if named is None:
        return _HELP if word == "help" else f"`{word}` is not a command; `help` shows those there are"
    return "\n".join(f"{name} = {json_text(value)}" for name, value in named.items()) or f"no {word}"
