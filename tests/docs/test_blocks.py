"""What the pages show as files and commands is such: it can be read, and names what there is.

Programs over the `local` group are run, in tests/e2e/test_examples.py; so are the tutorials' own commands, elsewhere.
"""

import ast
import json
import re
import shlex
import subprocess
import tomllib
from itertools import takewhile
from pathlib import Path

import click
import pytest

import fleeting.cli
import taskscaler.cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
COMMANDS: dict[str, click.Group] = {"taskscaler": taskscaler.cli.main, "fleeting": fleeting.cli.main}
LANGUAGES = {"", "csv", "json", "mermaid", "powershell", "python", "sh", "text", "toml", "yaml"}
"""Those that repositories and the site show well; see `_PLAIN` in docs/site/stage.py."""

BLOCKS = [
    pytest.param(found["language"], found["text"], id=f"{page.relative_to(ROOT)}:{number}")
    for page in PAGES
    for number, found in enumerate(
        re.finditer(r"^( *)```(?P<language>\w*)\n(?P<text>.*?)^\1```$", page.read_text(), re.MULTILINE | re.DOTALL)
    )
]


def commands(text: str) -> list[list[str]]:
    """The calls of our own commands that begin a line of a block or a script; not what they are piped into."""
    pattern = re.compile(r"^(?:\$ )?(?:\.?[\w./-]*bin/)?((?:taskscaler|fleeting) [a-z][^…\n]*)$", re.MULTILINE)
    return [words_of(found[1]) for found in pattern.finditer(text.replace("\\\n", " "))]


def words_of(line: str) -> list[str]:
    """A simple command's words, up to a comment, a pipe or the like."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    return list(takewhile(lambda word: word[0] not in "|&;<>()", filter(None, words)))


def understood(call: list[str]) -> None:
    """Parse a call as the command itself does; what it is about need not exist."""
    program, name, *arguments = call
    context = click.Context(COMMANDS[program], info_name=program)
    command = COMMANDS[program].get_command(context, name)
    assert command is not None, f"{program} has no command {name}"
    below = click.Context(command, info_name=name, parent=context)
    command.make_parser(below).parse_args(list(arguments))


@pytest.mark.parametrize(("language", "text"), BLOCKS)
def test_a_block_is_what_it_claims_to_be(language: str, text: str) -> None:
    """TOML, JSON, Python or shell that can be read, and calls of commands and options that exist."""
    assert language in LANGUAGES
    match language:
        case "toml":
            tomllib.loads(text)
        case "json":
            for whole in text.splitlines() if text.startswith('{"') else [text]:  # JSON Lines
                json.loads(whole)
        case "python":
            compile(text, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        case "sh":
            subprocess.run(["/bin/sh", "-n"], input=text, text=True, check=True, capture_output=True)
    if language in ("", "sh"):
        for call in commands(text):
            understood(call)


def test_calls_are_found_and_understood() -> None:
    """Also behind a prompt, a path or before a pipe; and what does not exist is not."""
    text = "$ taskscaler run jobs.toml --output out  # now\n.venv/bin/fleeting list x.toml | head\nno taskscaler run\n"
    assert commands(text) == [["taskscaler", "run", "jobs.toml", "--output", "out"], ["fleeting", "list", "x.toml"]]
    for call in commands(text):
        understood(call)
    with pytest.raises(AssertionError, match="has no command fly"):
        understood(["taskscaler", "fly"])
    with pytest.raises(click.NoSuchOption):
        understood(["taskscaler", "run", "--fly"])
