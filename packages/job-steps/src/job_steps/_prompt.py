"""The prompt at a breakpoint, at the terminal that somebody sits at: shows what a step has, and asks what to do."""

import io
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Final, TypeAlias, TypedDict

import anyio
from anyio import to_thread
from attrs import define, field, frozen

from job_steps._breakpoints import Decision, Moment, When
from job_steps._holds import Ended, Holds
from job_steps._printable import printable
from job_steps._results import StepResult
from job_steps._values import shown_text

_HELP: Final = """\
inputs, env, outputs   show what the step has, with secrets masked
command                show what runs, and where
shell                  open a shell in the step's directory, with its environment, unmasked
continue, abort        go on, or cancel the run"""

_QUIT: Final = ("quit", "q", "exit")
_ELSEWHERE: Final = "`quit` leaves a job that an agent holds; here, `continue` or `abort`"

_MORE_HELP: Final = """
break STEP[:WHEN]      hold the job at a later step
quit                   leave; the job stays held"""

_WORDS: Final = {When.BEFORE: "before", When.AFTER: "after", When.FAILURE: "failed:"}

_PIECE: Final = 4096  # bytes

Surroundings: TypeAlias = "tuple[Mapping[str, str], str]"
"""The whole environment of a command, with nothing masked, and where it runs."""


class Left(Enum):
    """That somebody leaves a step as it is."""

    LEFT = "left"


@frozen(kw_only=True)
class View:
    """What a prompt has of a step."""

    path: Sequence[str]
    when: When
    result: StepResult | None
    """None: it is too big to be shown."""
    surroundings: Callable[[], Awaitable[Surroundings]]
    """Gives what a shell needs."""


@define(eq=False)
class Prompt:
    """Asks whoever sits at the terminal."""

    is_quiet: bool = False
    """Whether standard output is for something else."""
    hold_at: Callable[[str], Awaitable[None]] | None = None
    """Adds a breakpoint, for a job that one can leave; raises `ValueError`."""
    user: int | None = field(factory=os.geteuid)
    """Whose the steps are, by number: root's shells are that user's. None: nobody knows."""
    _is_in_shell: bool = field(default=False, init=False)
    _typed: bytearray = field(factory=bytearray, init=False)
    """What was typed, and not read yet."""

    async def ask(self, view: View) -> Decision | Left:
        """Wait until somebody decides; a terminal that is gone leaves the step as it is."""
        self.say(f"{_WORDS[view.when]} {'/'.join(view.path) or 'the command'}{_how(view)}; `help` for commands")
        while True:
            self._write("(job-steps) ")
            line = await self._line()
            if not line:
                self.say("")
                return Left.LEFT
            word, _, rest = line.strip().partition(" ")
            if word in ("continue", "c"):
                return Decision.CONTINUE
            if word == "abort":
                return Decision.ABORT
            if self.hold_at and word in _QUIT:
                return Left.LEFT
            if self.hold_at and word == "break":
                await self._hold_at(rest.strip())
            elif word == "shell":
                await self._shell(*await view.surroundings())
            elif word:
                self.say(self._answer(word, view.result))

    def say(self, text: str) -> None:
        """Print a line."""
        self._write(f"{printable(text)}\n")

    async def _hold_at(self, text: str) -> None:
        try:
            if self.hold_at:
                await self.hold_at(text)
        except ValueError as error:
            self.say(str(error))

    def _answer(self, word: str, result: StepResult | None) -> str:
        """Say what somebody asked for."""
        if word == "help":
            return _HELP + (_MORE_HELP if self.hold_at else "")
        if word in _QUIT:
            return _ELSEWHERE
        if word not in ("inputs", "env", "outputs", "command"):
            return f"`{word}` is not a command; `help` shows those there are"
        if result is None:
            return "what the step has is too big to be shown"
        if word == "command":
            return f"{shlex.join(result.command)}\nin {result.work_dir}"
        named = {"inputs": result.inputs, "env": result.env, "outputs": result.outputs}[word]
        return "\n".join(f"{name} = {shown_text(value)}" for name, value in named.items()) or f"no {word}"

    def warn_in_shell(self, text: str) -> None:
        """Print a line for somebody who is in a shell, and would not see it else; nothing for others."""
        if self._is_in_shell:
            self._write(f"\r\n{printable(text)}\r\n")  # the shell may have the terminal print lines as they are

    async def _shell(self, env: Mapping[str, str], work_dir: str) -> None:
        """Run a shell; Ctrl-C is for what runs in it."""
        shell = os.environ.get("SHELL") or shutil.which("sh") or "/bin/sh"
        handler = signal.signal(signal.SIGINT, _pass_over)  # what is ignored would be ignored in the shell, too
        self._is_in_shell = True
        try:
            identity = identity_of(self.user, os.geteuid())
            run = partial(subprocess.run, [shell], cwd=work_dir, env=dict(env), check=False, **identity)
            with _terminal_kept():
                await to_thread.run_sync(run)
        except OSError as error:
            self.say(f"{error.filename or shell}: {error.strerror or error}")
        except ValueError as error:  # an environment that no program can have
            self.say(f"{shell}: {error}")
        finally:
            self._is_in_shell = False
            signal.signal(signal.SIGINT, handler)

    async def _line(self) -> str:
        """Read a line, empty at the end; without a thread, which would go on reading when nobody waits any more."""
        try:
            source = sys.stdin.fileno()
        except (OSError, io.UnsupportedOperation):
            return sys.stdin.readline()  # it is no file, and does not let anybody wait
        while b"\n" not in self._typed:
            with suppress(PermissionError):  # a regular file, which always has something to read
                await anyio.wait_readable(source)
            data = os.read(source, _PIECE)
            if not data:
                line, self._typed = bytes(self._typed), bytearray()
                return line.decode(errors="replace")
            self._typed += data
        line, _, rest = bytes(self._typed).partition(b"\n")
        self._typed = bytearray(rest)
        return line.decode(errors="replace") + "\n"

    def _write(self, text: str) -> None:
        stream = sys.stderr if self.is_quiet else sys.stdout
        stream.write(text)
        stream.flush()


class Identity(TypedDict, total=False):
    """Whose a process is; see `subprocess.Popen`."""

    user: int
    group: int
    extra_groups: Sequence[int]


def identity_of(user: int | None, own: int) -> Identity:
    """Whose a shell is to be: jobs choose its environment, such as `LD_PRELOAD`, and must not get root by that.

    Args:
        user: Whose the job is, if that is known.
        own: Who wants the shell.

    Raises:
        OSError: That cannot be told.
    """
    if own != 0 or user == 0:
        return {}
    if user is None:
        raise PermissionError("nobody says whose the job is; attach as its user, not as root")
    try:
        found = pwd.getpwuid(user)
    except KeyError:
        return {"user": user, "group": user, "extra_groups": ()}
    return {"user": user, "group": found.pw_gid, "extra_groups": os.getgrouplist(found.pw_name, found.pw_gid)}


@contextmanager
def _terminal_kept() -> Iterator[None]:
    """Have the terminal as it was once a shell has ended, which may have been killed with its job."""
    try:
        source = sys.stdin.fileno()
        mode = termios.tcgetattr(source)
    except (OSError, io.UnsupportedOperation, termios.error):  # it is none
        yield
        return
    try:
        yield
    finally:
        handler = signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # who is not in front would be stopped
        with suppress(OSError):  # it may be another session's
            os.tcsetpgrp(source, os.getpgrp())
        with suppress(termios.error):  # it may be gone
            termios.tcsetattr(source, termios.TCSADRAIN, mode)
        signal.signal(signal.SIGTTOU, handler)


def _pass_over(*_: object) -> None:
    """Hear a signal."""


def _how(view: View) -> str:
    if view.when is not When.FAILURE or view.result is None:
        return ""
    return f" (exit status {view.result.exit_code})"


@define(eq=False)
class PromptHere:
    """Asks at the breakpoints of a run in this process; see `run_steps`."""

    prompt: Prompt
    holds: Holds
    met: "dict[tuple[str, ...], None]"
    """The names that lead to each step that is known."""

    async def __call__(self, moment: Moment) -> Decision:
        """Wait at a breakpoint until somebody decides; go on at once where there is none, or nobody."""
        self.met.update(dict.fromkeys(moment.path[: end + 1] for end in range(len(moment.path) or 1)))
        self.holds = self.holds.reached(moment.path, moment.when, anyio.current_time())
        hold = self.holds.held
        if hold is None:
            return Decision.CONTINUE

        async def surroundings() -> Surroundings:
            return moment.env, moment.work_dir

        view = View(path=moment.path, when=moment.when, result=moment.result, surroundings=surroundings)
        with anyio.move_on_after(hold.until - anyio.current_time()):
            decision = await self.prompt.ask(view)
            chosen = Decision.CONTINUE if isinstance(decision, Left) else decision
            self.holds, _ = self.holds.decided(hold.number, chosen, anyio.current_time())
        self.holds = self.holds.passed(max(hold.until, anyio.current_time())) if self.holds.held else self.holds
        ended = self.holds.how(hold.number) or Ended.TIMED_OUT
        if ended is Ended.TIMED_OUT:
            self.prompt.say("\nnobody has decided in time; the run goes on, and does not stop again")
        return ended.decision
