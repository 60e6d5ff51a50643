"""The language between `${{` and `}}`: texts into trees.

Everything that a text may contain is read in one pass, without going back; how long an expression may be and how deep
it may nest is bounded, so that evaluating a tree is bounded too.

Source: docs.gitlab.com/ci/functions/moa, which is GitLab's name for the language.
"""

import re
from typing import NoReturn, TypeAlias

from attrs import define, field, frozen

from job_steps._errors import StepFailed
from job_steps._values import number_of

MAX_LENGTH = 16 * 1024
"""Characters of one expression."""

MAX_DEPTH = 64
"""Levels of operators, brackets and strings with expressions in them; a chain of operators has one for each."""

OPEN, CLOSE = "${{", "}}"

RESERVED = frozenset(
    """
    array as break case const continue default else fallthrough float for func function goto if import in int let loop
    map namespace number object package range return string struct switch type var void while
    """.split()  # noqa: SIM905  (a paragraph is read more easily)
)
"""Words that no name may be, so that they can mean something one day."""


@frozen
class Literal:
    """A value that is written there."""

    value: bool | int | float | str | None


@frozen
class Name:
    """Something of the context."""

    name: str


@frozen
class Member:
    """A part of a struct or an array."""

    of: "Expression"
    key: "Expression"


@frozen
class Call:
    """A function of the language."""

    name: str
    arguments: "tuple[Expression, ...]"


@frozen
class Unary:
    """An operator with one operand."""

    operator: str
    operand: "Expression"


@frozen
class Binary:
    """An operator with two operands."""

    operator: str
    left: "Expression"
    right: "Expression"


@frozen
class Array:
    """A list that is made."""

    items: "tuple[Expression, ...]"


@frozen
class Struct:
    """A struct that is made: keys and values."""

    items: "tuple[tuple[Expression, Expression], ...]"


@frozen
class Template:
    """A text with expressions in it."""

    parts: "tuple[str | Expression, ...]"


Expression: TypeAlias = Literal | Name | Member | Call | Unary | Binary | Array | Struct | Template

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<quote>["'])
    | (?P<sign>\|\||&&|==|!=|<=|>=|[-+*/%<>!().\[\]{},:])
    """,
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "/": "/", "\\": "\\", '"': '"'}
_LEVELS = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
"""How tightly the operators between two operands bind; all of them from the left."""

_UNARY = 6
"""How tightly those with one operand bind."""

_CONSTANTS: dict[str, bool | None] = {"null": None, "true": True, "false": False}


def parse_template(text: str) -> Template:
    r"""Read a text with any number of expressions in it; `\${{` is the text `${{`.

    Raises:
        StepFailed: An expression is not one, is too long or too deep, or does not end.
    """
    return _Parser(text).template(0, None)[0]


@define
class _Parser:
    """Reads one text from left to right."""

    text: str
    position: int = 0
    end: int = 0
    """Where the expression that is being read may go to at most."""
    depth: int = 0
    kind: str = field(init=False, default="end")
    """Of the token that comes next: `number`, `name`, `quote`, `sign` or `end`."""
    word: str = field(init=False, default="")
    start: int = field(init=False, default=0)
    """Where that begins."""

    def template(self, position: int, quote: str | None) -> tuple[Template, int]:
        """Read text and expressions until the quote, or the end; returns the position behind it."""
        parts: list[str | Expression] = []
        piece: list[str] = []
        text = self.text
        while True:
            if position >= len(text):
                if quote:
                    self._fail(position, "a string has no end")
                break
            character = text[position]
            if quote and character == quote:
                position += 1
                break
            if text.startswith("\\" + OPEN, position):
                piece.append(OPEN)
                position += 1 + len(OPEN)
            elif text.startswith(OPEN, position):
                parts += ["".join(piece)] if piece else []
                piece.clear()
                expression, position = self.enclosed(position)
                parts.append(expression)
            elif quote and character == "\\":
                escaped, position = self._escape(position)
                piece.append(escaped)
            else:
                piece.append(character)
                position += 1
            if not quote and (following := self._next_special(position)) > position:
                piece.append(text[position:following])
                position = following
        parts += ["".join(piece)] if piece else []
        return Template(tuple(parts)), position

    def _next_special(self, position: int) -> int:
        """Find where outside of strings something may begin that is not text, so that long texts cost little."""
        found = self.text.find(OPEN, position)
        if found < 0:
            return len(self.text)
        return found - (found > position and self.text[found - 1] == "\\")

    def enclosed(self, position: int) -> tuple[Expression, int]:
        """Read an expression from `${{` to `}}`; returns the position behind that."""
        outer = (self.position, self.end, self.kind, self.word, self.start)
        opened = position
        self.position = position + len(OPEN)
        self.end = min(len(self.text), self.position + MAX_LENGTH)
        self._advance()
        if self.kind == "end" or self._is_closing():
            self._fail(
                opened, "there is nothing between `${{` and `}}`" if self.kind != "end" else self._unclosed(opened)
            )
        expression = self.binary(1)
        if not self._is_closing():
            if self.kind == "end":
                self._fail(opened, self._unclosed(opened))
            self._fail(self.start, f"`{self.word}` where an operator or `}}}}` was expected")
        behind = self.start + len(CLOSE)
        self.position, self.end, self.kind, self.word, self.start = outer
        return expression, behind

    def binary(self, level: int) -> Expression:
        """Read operands and the operators between them that bind at least as tightly as the level."""
        self._deeper()
        entered = self.depth
        left = self.unary()
        while (found := _LEVELS.get(self.word, 0) if self.kind == "sign" else 0) >= level:
            operator = self.word
            self._advance()
            left = Binary(operator, left, self.binary(found + 1))
            self._deeper()  # the operand on the left is one level further down now
        self.depth = entered - 1
        return left

    def unary(self) -> Expression:
        """Read an operand with what stands before it."""
        if self.kind == "sign" and self.word in ("+", "-", "!"):
            operator = self.word
            self._deeper()
            self._advance()
            operand = Unary(operator, self.unary())
            self.depth -= 1
            return operand
        return self.postfix()

    def postfix(self) -> Expression:
        """Read an operand with its members."""
        entered = self.depth
        found = self.operand()
        while self.kind == "sign" and self.word in (".", "["):
            self._deeper()
            if self.word == ".":
                self._advance()
                if self.kind != "name":
                    self._expected("the name of a member behind `.`")
                found = Member(found, Literal(self.word))
                self._advance()
            else:
                self._advance()
                found = Member(found, self.binary(1))
                self._take("]")
        self.depth = entered
        return found

    def operand(self) -> Expression:
        """Read a literal, a name, a call, or something in brackets."""
        kind, word, start = self.kind, self.word, self.start
        if kind == "quote":
            return self._string()
        if kind == "name":
            return self._named()
        if kind == "end" or (kind == "sign" and word not in ("(", "[", "{")):
            self._expected("a value")
        self._advance()
        if kind == "number":
            return Literal(self._number(word, start))
        if word == "[":
            return Array(self._list("]"))
        if word == "{":
            return self._struct()
        inner = self.binary(1)
        self._take(")")
        return inner

    def _named(self) -> Expression:
        word, start = self.word, self.start
        self._advance()
        if word in _CONSTANTS:
            return Literal(_CONSTANTS[word])
        if self.kind == "sign" and self.word == "(":
            self._advance()
            return Call(word, self._list(")"))
        if word in RESERVED:
            self._fail(start, f"`{word}` is a reserved word")
        return Name(word)

    def _list(self, closing: str) -> tuple[Expression, ...]:
        """Read expressions with commas between them, and one behind the last if they like."""
        items: list[Expression] = []
        while not (self.kind == "sign" and self.word == closing):
            items.append(self.binary(1))
            if not (self.kind == "sign" and self.word == ","):
                break
            self._advance()
        self._take(closing)
        return tuple(items)

    def _struct(self) -> Struct:
        items: list[tuple[Expression, Expression]] = []
        while not (self.kind == "sign" and self.word == "}"):
            if self.kind == "name":
                key: Expression = Literal(self.word)
                self._advance()
            else:
                key = self.binary(1)
            self._take(":")
            items.append((key, self.binary(1)))
            if not (self.kind == "sign" and self.word == ","):
                break
            self._advance()
        self._take("}")
        return Struct(tuple(items))

    def _string(self) -> Expression:
        """Read a string: with expressions and all escapes between double quotes, as it stands between single ones."""
        opened = self.start
        if self.word == '"':
            self._deeper()
            template, self.position = self.template(opened + 1, '"')
            self.depth -= 1
            self._advance()
            if not template.parts:
                return Literal("")
            only = template.parts[0]
            return Literal(only) if len(template.parts) == 1 and isinstance(only, str) else template
        pieces, position = [], opened + 1
        while True:
            following = position
            while following < self.end and self.text[following] not in "\\'":
                following += 1
            if following >= self.end:
                self._fail(opened, "a string has no end")
            pieces.append(self.text[position:following])
            if self.text[following] == "'":
                break
            escaped = self.text[following + 1 : following + 2]
            pieces.append(escaped if escaped and escaped in "\\'" else f"\\{escaped}")
            position = following + 2
        self.position = following + 1
        self._advance()
        return Literal("".join(pieces))

    def _escape(self, position: int) -> tuple[str, int]:
        """Read what stands behind a backslash between double quotes."""
        following = self.text[position + 1 : position + 2]
        if following in _ESCAPES and following:
            return _ESCAPES[following], position + 2
        if following == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", digits := self.text[position + 2 : position + 6]):
            character = chr(int(digits, 16))
            if "\ud800" <= character <= "\udfff":
                self._fail(position, f"`\\u{digits}` is half of a character")
            return character, position + 6
        return self._fail(position, f"`\\{following}` means nothing in a string; a backslash is written `\\\\`")

    def _number(self, word: str, start: int) -> "int | float":
        try:
            return number_of(word)
        except ValueError:
            self._fail(start, f"the number `{word[:40]}` is too big; numbers have 64 bits")

    def _advance(self) -> None:
        """Read the next token."""
        while True:
            if self.position >= self.end:
                self.kind, self.word, self.start = "end", "", self.position
                return
            found = _TOKEN.match(self.text, self.position, self.end)
            if not found:
                self._fail(self.position, f"`{self.text[self.position]}` cannot be part of an expression")
            self.start, self.position = self.position, found.end()
            if found.lastgroup != "space":
                self.kind, self.word = found.lastgroup or "", found[0]
                return

    def _take(self, sign: str) -> None:
        if self.kind != "sign" or self.word != sign:
            self._expected(f"`{sign}`")
        self._advance()

    def _is_closing(self) -> bool:
        return self.kind == "sign" and self.text.startswith(CLOSE, self.start)

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self._fail(self.start, f"more than {MAX_DEPTH} levels of operators and brackets")

    def _expected(self, what: str) -> NoReturn:
        if self.kind == "end":
            self._fail(self.start, f"the expression ends where {what} was expected; {self._unclosed(self.start)}")
        self._fail(self.start, f"`{self.word}` where {what} was expected")

    def _unclosed(self, opened: int) -> str:
        if len(self.text) - opened > MAX_LENGTH:
            return f"no `}}}}` within {MAX_LENGTH} characters; end the expression with it"
        return "no `}}` follows; end the expression with it"

    def _fail(self, position: int, message: str) -> NoReturn:
        raise StepFailed(f"{message}, at character {position + 1}")
