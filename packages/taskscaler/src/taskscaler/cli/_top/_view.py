"""What is looked at: which list, how it is ordered, what is chosen in it, and what a key does about that. Pure.

What is chosen stays chosen for as long as it is there, wherever it moves; then what has taken its place is. So a key
that is pressed while rows change is never about another row than the one that was shown as chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from attrs import evolve, field, frozen

from taskscaler.cli._top._fleet import Fleet, Instance, Job, Said
from taskscaler.cli._top._rows import TABS, Order, Tab

LONGEST_TYPED = 200
"""Characters of a filter, or of a reason."""

Hold = Literal["cordon", "uncordon", "retain", "unretain"]


@frozen(kw_only=True)
class Chosen:
    """The row that is chosen in a list."""

    id: str = ""
    """Empty: nobody has chosen, and nothing was there to be chosen."""

    index: int = 0
    """Where it stands."""

    top: int = 0
    """Which row is the first to be seen."""


@frozen(kw_only=True)
class Subject:
    """What details are shown of."""

    kind: Literal["instance", "job", "decision"]
    name: str
    """How the daemon is asked about it: an instance as ``pool/id``, a job by its key; of a decision, its words."""

    instance: str = ""
    """Of a job that runs: where."""


@frozen(kw_only=True)
class Question:
    """Asked before anything is changed."""

    verb: Hold
    instance: str
    """As ``pool/id``."""

    why: str = ""
    """What was typed so far."""

    @property
    def takes_reason(self) -> bool:
        """Whether a reason can be given."""
        return self.verb in ("cordon", "retain")


@frozen
class Quit:
    """A wish: to end."""


Wish = Quit | Question
"""What a key asks of the world outside; of a question, that it was answered with yes."""


@frozen(kw_only=True)
class View:
    """All that keys change."""

    tab: int = 0
    orders: tuple[Order, ...] = (Order(),) * len(TABS)
    chosen: tuple[Chosen, ...] = (Chosen(),) * len(TABS)
    filter: str = ""
    typing: bool = False
    """Whether the filter is being typed."""

    subject: Subject | None = None
    scroll: int = 0
    """How far its details are scrolled."""

    question: Question | None = None
    help: bool = False
    message: str = ""
    """What became of the last wish."""

    current: Any = field(default=None, eq=False)
    """The row that is chosen; None: there is none."""

    @property
    def list(self) -> Tab[Any]:
        """The list that is looked at."""
        return TABS[self.tab]

    @property
    def order(self) -> Order:
        """Its order."""
        return self.orders[self.tab]

    @property
    def here(self) -> Chosen:
        """What is chosen there."""
        return self.chosen[self.tab]


def settled(view: View, rows: Sequence[Any], room: int) -> View:
    """Find what is chosen among the rows as they are now, and have it in sight.

    Args:
        view: As it was.
        rows: Of its list, in their order.
        room: How many can be seen.
    """
    here = view.here
    if not rows:
        return _with_chosen(view, evolve(here, top=0), None)
    same = next((index for index, row in enumerate(rows) if view.list.id(row) == here.id), None)
    index = min(here.index, len(rows) - 1) if same is None else same
    return _at(view, rows, index, room)


def moved(view: View, rows: Sequence[Any], index: int, room: int) -> View:
    """Choose another row: the one with this index, or the nearest there is."""
    return _at(view, rows, max(0, min(index, len(rows) - 1)), room) if rows else view


def _at(view: View, rows: Sequence[Any], index: int, room: int) -> View:
    room = max(1, room)
    top = max(min(view.here.top, index, max(0, len(rows) - room)), index - room + 1)
    return _with_chosen(view, Chosen(id=view.list.id(rows[index]), index=index, top=top), rows[index])


def _with_chosen(view: View, chosen: Chosen, current: object) -> View:
    return evolve(view, chosen=_replaced(view.chosen, view.tab, chosen), current=current)


def _replaced(given: tuple[Any, ...], index: int, value: object) -> tuple[Any, ...]:
    return (*given[:index], value, *given[index + 1 :])


@frozen(kw_only=True)
class Around:
    """What a key is pressed among."""

    fleet: Fleet
    rows: Sequence[Any] = ()
    """Of the list that is looked at."""

    room: int = 1
    """How many rows, or lines of details, can be seen."""


def pressed(view: View, key: str, character: str | None, around: Around) -> tuple[View, Wish | None]:
    """Take in a key.

    Args:
        view: As it was, settled among the rows.
        key: Its name, as Textual has it: ``up``, ``enter``, ``q``.
        character: What it writes; None: nothing.
        around: What it is pressed among.

    Returns:
        The view from now on, and what is to be done. The caller settles the view before it is shown.
    """
    if key == "ctrl+c":
        return view, Quit()
    typed = character if character is not None and character.isprintable() else None
    if view.question is not None:
        return _answered(view, view.question, key, typed)
    if view.typing:
        return _typed(view, key, typed), None
    if key == "q" and not view.help:
        return view, Quit()
    return _looked(evolve(view, message=""), key, around), None


def _looked(view: View, key: str, around: Around) -> View:
    if view.help:
        return evolve(view, help=False)
    if view.subject is not None:
        return _in_details(view, view.subject, key, around)
    return _in_list(view, key, around)


def _answered(view: View, question: Question, key: str, typed: str | None) -> tuple[View, Wish | None]:
    if key == "escape":
        return evolve(view, question=None, message="nothing was changed"), None
    if key == "enter":
        return evolve(view, question=None), question
    why = _edited(question.why, key, typed) if question.takes_reason else ""
    return evolve(view, question=evolve(question, why=why)), None


def _typed(view: View, key: str, typed: str | None) -> View:
    if key == "escape":
        return evolve(view, typing=False, filter="")
    if key == "enter":
        return evolve(view, typing=False)
    return evolve(view, filter=_edited(view.filter, key, typed))


def _edited(text: str, key: str, typed: str | None) -> str:
    if key == "backspace":
        return text[:-1]
    if key == "ctrl+u":
        return ""
    return (text + (typed or ""))[:LONGEST_TYPED]


def _in_details(view: View, subject: Subject, key: str, around: Around) -> View:
    if key in _BACK:
        return evolve(view, subject=None, scroll=0)
    if key in _UNDO and subject.kind == "instance":
        shown = (each for each in around.fleet.instances.values() if subject_of(each) == subject)
        return _asked(view, key, next(shown, None), "it is gone")
    if key == "i" and subject.instance:
        return evolve(view, subject=Subject(kind="instance", name=subject.instance), scroll=0)
    if key == "question_mark":
        return evolve(view, help=True)
    return evolve(view, scroll=max(0, view.scroll + _steps(key, around.room, view.scroll)))


_BACK = frozenset({"escape", "enter", "left", "backspace"})

FAR = 1_000_000
"""Farther than any list is long."""


def _steps(key: str, room: int, index: int) -> int:
    """How far a key goes; 0: it does not."""
    page = max(1, room - 1)
    ways = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -page, "pagedown": page, "space": page}
    return {**ways, "home": -index, "g": -index, "end": FAR, "G": FAR}.get(key, 0)


def _in_list(view: View, key: str, around: Around) -> View:
    if steps := _steps(key, around.room, view.here.index):
        return moved(view, around.rows, view.here.index + steps, around.room)
    if key in _UNDO:
        chosen = view.current if isinstance(view.current, Instance) else None
        return _asked(view, key, chosen, "choose an instance first: 1 shows them")
    does = _IN_LIST.get(key)
    return view if does is None else does(view)


def _shown(view: View, tab: int) -> View:
    return evolve(view, tab=tab % len(TABS))


def _ordered(view: View, order: Order) -> View:
    return evolve(view, orders=_replaced(view.orders, view.tab, order))


def _opened(view: View) -> View:
    return view if view.current is None else evolve(view, subject=subject_of(view.current), scroll=0)


_IN_LIST: Mapping[str, Callable[[View], View]] = {
    "tab": lambda view: _shown(view, view.tab + 1),
    "right": lambda view: _shown(view, view.tab + 1),
    "shift+tab": lambda view: _shown(view, view.tab - 1),
    "left": lambda view: _shown(view, view.tab - 1),
    **{str(tab + 1): partial(_shown, tab=tab) for tab in range(len(TABS))},
    "s": lambda view: _ordered(view, view.order.next(len(view.list.columns))),
    "S": lambda view: _ordered(view, evolve(view.order, reverse=not view.order.reverse)),
    "slash": lambda view: evolve(view, typing=True),
    "escape": lambda view: evolve(view, filter=""),
    "enter": _opened,
    "question_mark": lambda view: evolve(view, help=True),
}


def subject_of(row: Instance | Job | Said) -> Subject:
    """What details are shown of, if a row is opened."""
    match row:
        case Instance():
            return Subject(kind="instance", name=f"{row.pool}/{row.id}")
        case Job():
            return Subject(kind="job", name=row.key, instance=f"{row.pool}/{row.instance}" if row.instance else "")
    return Subject(kind="decision", name=row.text)


def _asked(view: View, key: str, instance: Instance | None, why_not: str) -> View:
    """Ask whether what a key does to an instance is meant."""
    if instance is None:
        return evolve(view, message=why_not)
    undone = instance.cordoned if key == "c" else instance.retained
    verb: Hold = _DO[key] if undone is None else _UNDO[key]
    return evolve(view, question=Question(verb=verb, instance=f"{instance.pool}/{instance.id}"))


_DO: Mapping[str, Hold] = {"c": "cordon", "r": "retain"}
_UNDO: Mapping[str, Hold] = {"c": "uncordon", "r": "unretain"}
