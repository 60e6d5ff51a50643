"""Reads ``[[dispatch]]``, and checks it against the runners and the pools that the file has."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import evolve

from fleeting.config import did_you_mean, quoted
from fleeting.errors import ConfigProblem, Mistake
from fleeting.plugins import structure
from taskscaler_gitlab._dispatch import TEXTS, named
from taskscaler_gitlab._dispatch_settings import Rule

Table: TypeAlias = Mapping[str, object]

_LISTS = frozenset((*TEXTS,))
"""Keys of ``when`` that take one pattern without brackets, too."""


def read_rules(file: Table, pools: Collection[str], runner: str, problems: list[ConfigProblem]) -> Sequence[Rule]:
    """Read the rules that are for a runner.

    Args:
        file: The whole file.
        pools: The names of the runner's pools.
        runner: Its name.
        problems: Gets all that is wrong; what is returned is good for nothing then.

    Returns:
        Them in their order, each with a name.
    """
    written = file.get("dispatch")
    if written is None:
        return ()
    if not isinstance(written, list):
        problems.append(ConfigProblem(path="dispatch", found="something else", expected="tables [[dispatch]]"))
        return ()
    found: list[ConfigProblem] = []
    rules = structure([_plain(each) for each in written], tuple[Rule, ...], path="dispatch", problems=found)
    if found:
        problems += found
        return ()
    rules = tuple(evolve(rules[place], name=name) for place, name in named(rules))
    problems += _twice(rules)
    problems += _unknown_runners(rules, file)
    ours = [(place, rule) for place, rule in enumerate(rules) if rule.runner in (None, runner)]
    for place, rule in ours:
        problems += _unknown_pools(place, rule, pools)
    return tuple(rule for _, rule in ours)


def _plain(rule: object) -> object:
    """A rule as the schema has it: what is alone needs no brackets."""
    if not isinstance(rule, Mapping):
        return rule
    plain = {**rule}
    if isinstance(plain.get("pools"), str):
        plain["pools"] = [plain["pools"]]
    if isinstance(when := plain.get("when"), Mapping):
        plain["when"] = {key: [each] if key in _LISTS and isinstance(each, str) else each for key, each in when.items()}
        if isinstance(variables := when.get("variables"), Mapping):
            listed = {key: [each] if isinstance(each, str) else each for key, each in variables.items()}
            plain["when"] = {**plain["when"], "variables": listed}
    return plain


def _twice(rules: Sequence[Rule]) -> Iterator[ConfigProblem]:
    for place, rule in enumerate(rules):
        if any(rule.name == other.name for other in rules[:place]):
            expected = "another name: an earlier rule has it"
            yield ConfigProblem(path=f"dispatch[{place}].name", found=quoted(rule.name), expected=expected)


def _unknown_runners(rules: Sequence[Rule], file: Table) -> Iterator[ConfigProblem]:
    entries = file.get("runners")
    names = [entry.get("name") for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    known = [name for name in names if isinstance(name, str)]
    for place, rule in enumerate(rules):
        if rule.runner is not None and rule.runner not in known:
            yield _unknown(f"dispatch[{place}].runner", rule.runner, "the name of one of the [[runners]]", known)


def _unknown_pools(place: int, rule: Rule, pools: Collection[str]) -> Iterator[ConfigProblem]:
    for number, pool in enumerate(rule.pools):
        if pool not in pools:
            yield _unknown(f"dispatch[{place}].pools[{number}]", pool, "the name of a pool", pools)
        elif pool in rule.pools[:number]:
            expected = "each pool once"
            yield ConfigProblem(path=f"dispatch[{place}].pools[{number}]", found=quoted(pool), expected=expected)


def _unknown(path: str, found: str, what: str, known: Collection[str]) -> ConfigProblem:
    names = f": {', '.join(known)}" if known else ", and none has one"
    return ConfigProblem(
        path=path,
        found=quoted(found),
        expected=f"{what}{names}",
        hint=did_you_mean(found, known),
        mistake=Mistake.VALUE,
    )
