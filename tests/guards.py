"""What guards the code: every invariant, promise, transition, trouble, check, mutant and faulty group, by name.

A change of the code must not lose one of them by the way: `LIST` names them all, and ``tests/test_guards.py`` compares.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent

LIST = TESTS / "guards.txt"
"""The names, a line each, below a heading in brackets for each kind."""


@cache
def found() -> dict[str, list[str]]:
    """Every guard that the tests have, sorted, by kind."""
    from fleeting.testing import CHECKS, CONNECTOR_CHECKS, DETACHED_CHECKS, FORWARDING_CHECKS, name_of
    from tests.chaos.test_crash_points import PLACES, SCRIPTS
    from tests.chaos.troubles import KINDS
    from tests.chaos.witness import REQUIRED
    from tests.conformance.mutants import MUTANTS
    from tests.conformance.test_connectors import BREAKS, BREAKS_OF_DETACHED, BREAKS_OF_FORWARDING
    from tests.conformance.test_teeth import WRONG
    from tests.taskscaler.test_lease_teeth import BREAKS as BREAKS_OF_LEASES
    from tests.taskscaler_gitlab.test_relay_teeth import BREAKS as BREAKS_OF_RELAYS

    kinds = {
        "invariants of state machines": _invariants(),
        "promises of stories": _promises("observer", "play"),
        "transitions that stories meet": REQUIRED,
        "troubles of stories": KINDS,
        "places where managers are killed": PLACES,
        "scripts in which managers are killed": SCRIPTS,
        "checks of groups": map(name_of, CHECKS),
        "checks of connectors": (check.__name__.removeprefix("check_") for check in CONNECTOR_CHECKS),
        "mutants of a correct plugin": (f"{mutant.name}, found by {name_of(mutant.check)}" for mutant in MUTANTS),
        "groups that are wrong in one way": (f"{wrong}, found by {name_of(wrong.check)}" for wrong in WRONG),
        "checks of detached commands": (check.__name__.removeprefix("check_") for check in DETACHED_CHECKS),
        "breaks of a connector": (f"{old} -> {new}, found by {check}" for check, (old, new) in BREAKS.items()),
        "breaks of detached commands": (
            f"{old} -> {new}, found by {check}".replace("\n", " ") for check, (old, new) in BREAKS_OF_DETACHED.items()
        ),
        "checks of forwarded ports": (check.__name__.removeprefix("check_") for check in FORWARDING_CHECKS),
        "breaks of forwarded ports": (
            f"{old} -> {new}, found by {check}".replace("\n", " ") for check, (old, new) in BREAKS_OF_FORWARDING.items()
        ),
        "breaks of detached leases": map(str, BREAKS_OF_LEASES),
        "breaks of jobs that sidecars run": map(str, BREAKS_OF_RELAYS),
    }
    return {kind: sorted(set(names)) for kind, names in kinds.items()}


def listed() -> dict[str, list[str]]:
    """Every guard that there has to be, by kind, as `LIST` has it."""
    kinds: dict[str, list[str]] = {}
    for section in LIST.read_text().strip().split("\n\n"):
        heading, *names = section.splitlines()
        kinds[heading.strip("[]")] = names
    return kinds


def _invariants() -> Iterator[str]:
    """All methods marked ``@invariant()``, with the file they stand in."""
    for path in sorted(TESTS.glob("*/test_*.py")):
        text = path.read_text()
        if "@invariant" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and any("invariant" in ast.unparse(d) for d in node.decorator_list):
                yield f"{path.stem.removeprefix('test_')}: {node.name}"


def _promises(*modules: str) -> Iterator[str]:
    """What a story may be reported for: each text that is passed to ``violate`` or yielded by ``_unrest``."""
    for module in modules:
        for node in ast.walk(ast.parse((TESTS / "chaos" / f"{module}.py").read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="violate"), args=[ast.Constant() | ast.JoinedStr() as text]):
                    yield "".join(_fixed(text))
                case ast.FunctionDef(name="_unrest"):
                    for each in ast.walk(node):
                        if isinstance(each, ast.Yield) and isinstance(each.value, ast.Constant | ast.JoinedStr):
                            yield "".join(_fixed(each.value))


def _fixed(text: ast.expr) -> Iterator[str]:
    for part in text.values if isinstance(text, ast.JoinedStr) else [text]:
        yield str(part.value).replace("\n", " ") if isinstance(part, ast.Constant) else "…"
