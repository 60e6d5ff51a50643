"""The tables ``[[runners.taskscaler.upstreams]]``: what is wrong with them, and the tokens in the files they name."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import evolve

from fleeting.config import quoted
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import one_line
from taskscaler_gitlab._settings import RunnerSettings, UpstreamSettings

Table: TypeAlias = Mapping[str, object]

_BESIDE = ("url", "token")
_LARGEST = 4096
"""Bytes of a file with a token."""


def with_a_place(entry: Table) -> Table:
    """An entry that says where jobs come from; if its upstreams do, `with_tokens` puts the first of them there."""
    tables = _tables(entry)
    if not tables:
        return entry
    return {**entry, **dict.fromkeys(_BESIDE, "-")}


def upstream_problems(entry: Table, key: str) -> Iterator[ConfigProblem]:
    """What is wrong with the tables next to each other, and next to the entry."""
    tables, where = _tables(entry), f"{key}.taskscaler.upstreams"
    for name in _BESIDE if tables else ():
        if name in entry:
            hint = "remove it, or make it one of the upstreams: jobs come from [[runners.taskscaler.upstreams]] alone"
            yield ConfigProblem(path=f"{key}.{name}", found=f"{name} beside upstreams", hint=hint)
    first: dict[object, int] = {}
    for number, table in enumerate(tables):
        if table.get("weight") == 0 and "weight" in table:  # elsewhere in the file, 0 is the default
            expected = "a number from 0.001 to 1000; leave a cell out of the file to have no jobs of it"
            yield ConfigProblem(path=f"{where}[{number}].weight", found="0", expected=expected)
        cell = table.get("cell")
        if isinstance(cell, str) and first.setdefault(cell, number) != number:
            expected = f"a name of its own: {where}[{first[cell]}] is called so"
            yield ConfigProblem(path=f"{where}[{number}].cell", found=quoted(cell), expected=expected)


def with_tokens(runner: RunnerSettings, directory: Path, key: str, problems: list[ConfigProblem]) -> RunnerSettings:
    """The settings with the tokens of all upstreams, whose files are looked for beside the configuration; blocks."""
    read: dict[str, UpstreamSettings] = {}
    tokens: dict[str, str] = {}
    for number, each in enumerate(runner.taskscaler.upstreams):
        path = directory / each.token_file
        where = f"{key}.taskscaler.upstreams[{number}].token_file"
        try:
            with path.open("rb") as file:
                token = file.read(_LARGEST).decode("ascii", "replace").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or one_line(str(error))
            expected = "a file with the runner's token at this GitLab"
            found = f"{quoted(each.token_file)} ({why})"
            problems.append(ConfigProblem(path=where, found=found, expected=expected, mistake=Mistake.MISSING_FILE))
            continue
        url = each.url.rstrip("/")
        if twin := next((cell for cell, one in read.items() if (one.url, tokens[cell]) == (url, token)), None):
            hint = "leave one of the two out; request_concurrency is how many requests there may be at once"
            found = f"the token of the cell {twin}, at the same url"
            problems.append(ConfigProblem(path=where, found=found, hint=hint))
        read[each.cell] = evolve(each, url=url, token_file=str(path))
        tokens[each.cell] = token
    if not read:
        return runner
    first, own = next(iter(read)), evolve(runner.taskscaler, upstreams=tuple(read.values()))
    return evolve(runner, url=read[first].url, token=tokens[first], taskscaler=own, tokens=tokens)


def _tables(entry: Table) -> Sequence[Table]:
    own = entry.get("taskscaler")
    tables = own.get("upstreams") if isinstance(own, Mapping) else None
    return [each for each in tables if isinstance(each, Mapping)] if isinstance(tables, list) else []
