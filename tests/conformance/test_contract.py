"""The page that tells the contract, and the suite that checks it, have the same clauses."""

import inspect
import re
from pathlib import Path

import attrs

import fleeting
from fleeting import (
    ConnectInfo,
    GroupInfo,
    GroupRefused,
    Observation,
    PlanConfig,
    Problem,
    ProblemKind,
    ProviderError,
    State,
    Unsupported,
)
from fleeting.core import build_plan, messages
from fleeting.journal import Recovered
from fleeting.testing import CHECKS, Check, Trouble, anchor_of, name_of
from fleeting.testing._harness import new_intent
from tests.conformance.mutants import MUTANTS
from tests.conformance.test_teeth import WRONG

ROOT = Path(__file__).parents[2]
PAGE = ROOT / anchor_of(CHECKS[0]).partition("#")[0]
ROW = re.compile(r"^(?P<clause>\| <a id=.*? \| .*? \|) (?P<why>.+?) \| .*\|$", flags=re.MULTILINE)


def anchor(check: Check) -> str:
    """Of its clause, on the page."""
    return anchor_of(check).partition("#")[2]


def beginning_of(check: Check) -> str:
    """How the row of a check begins: its anchor, its name with a link to where it stands, and its clause."""
    name = name_of(check)
    source = Path(inspect.getsourcefile(check) or "").relative_to(ROOT)
    (clause, *_) = (check.__doc__ or "").splitlines()
    return f'| <a id="{anchor(check)}"></a>[`{name}`](../../{source}) | {clause} |'


def test_clauses_and_checks_match_one_to_one() -> None:
    """Each check has its row, in the order of the suite, and there is no other; each says why."""
    rows = ROW.findall(PAGE.read_text())
    expected = "\n".join(map(beginning_of, CHECKS))
    assert [clause for clause, _ in rows] == expected.splitlines(), f"the rows of {PAGE} must begin with:\n{expected}"
    assert all(why for _, why in rows)


def test_the_table_of_mutants_is_complete() -> None:
    """Each mutant has its row, with what is wrong and what finds it; and so have those of what this plugin cannot."""
    found = {mutant.check for mutant in MUTANTS}
    faults = [(mutant.name, mutant.fault, mutant.check) for mutant in MUTANTS]
    faults += [(wrong.name, wrong.mistake, wrong.check) for wrong in WRONG if wrong.check not in found]
    rows = [f"| `{name}` | {fault} | [`{name_of(check)}`](#{anchor(check)}) |" for name, fault, check in faults]
    _, _, table = PAGE.read_text().partition("| mutant |")
    assert table.splitlines()[2:] == rows, f"the last table of {PAGE} must have these rows:\n" + "\n".join(rows)


def test_every_trouble_is_described() -> None:
    """In the words that the suite has for it."""
    page = PAGE.read_text()
    assert [kind for kind in Trouble if f"| `{kind.name}` | {kind.value} |" not in page] == []


def test_every_value_is_described() -> None:
    """All that a plugin hands out or may meet is on the page, down to the fields and members."""
    page = PAGE.read_text()
    names = [each.name for kind in (State, ProblemKind) for each in kind]
    names += [field.name for kind in (ConnectInfo, Problem) for field in attrs.fields(kind)]
    kinds = (ProviderError, GroupRefused, Unsupported)
    names += [name for name, each in vars(fleeting).items() if inspect.isclass(each) and issubclass(each, kinds)]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_an_intent_can_be_a_label() -> None:
    """The longest are the suite's own, so whoever passes it can take them all; the page says what they are made of."""
    assert "at most 44 of them" in PAGE.read_text()
    assert re.fullmatch("[a-z0-9-]{44}", new_intent())
    assert re.fullmatch("[a-z0-9-]{1,44}", intent_of_a_plan())


def intent_of_a_plan() -> str:
    """The intent under which a manager asks for an instance."""
    plan = build_plan(PlanConfig(), GroupInfo(identity="x"), Recovered(epoch=1), 0.0, random=None)
    plan.handle(messages.Updated(Observation({})), 0.0)
    (intent,) = (action.intent for action in plan.request(1, 0.0).actions if isinstance(action, messages.Increase))
    return intent


def test_links_lead_somewhere() -> None:
    """To a file, or to an anchor on the page."""
    page = PAGE.read_text()
    links = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page)
    assert [file for file, _ in links if file and not (PAGE.parent / file).exists()] == []
    assert [place for file, place in links if not file and f'id="{place}"' not in page] == []
