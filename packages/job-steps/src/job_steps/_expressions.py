"""What expressions stand for: trees into values.

Evaluating costs no more than the tree is big and its results are long, which are both bounded. What is made of
something hidden is hidden.

Source: docs.gitlab.com/ci/functions/moa.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence

from attrs import field, frozen

from job_steps._errors import StepFailed
from job_steps._grammar import (
    OPEN,
    Array,
    Binary,
    Call,
    Expression,
    Literal,
    Member,
    Name,
    Struct,
    Template,
    Unary,
    parse_template,
)
from job_steps._nearest import nearest
from job_steps._values import (
    MAX_NODES,
    Hidden,
    Value,
    hides,
    join,
    kind_of,
    mask,
    number_of,
    reveal,
    text_of,
    weight_of,
    whole,
)

MAX_WORK = 5 * MAX_NODES
"""How much of values the expressions of one step may go through: a second of a processor, or so."""

_FUNCTIONS = ("bool", "num", "str")
_PATH = 3
"""Names of a path such as `steps.build.outputs` that an error has."""


@frozen
class Scope:
    """What expressions may name."""

    names: Mapping[str, Value] = field(repr=False)
    _work: list[int] = field(factory=lambda: [0], init=False, repr=False, eq=False)
    """How much was gone through so far, for all expressions that are evaluated here."""

    def spend(self, value: Value) -> Value:
        """Return a value that is about to be gone through, or was made.

        Raises:
            StepFailed: It is too big, or what was gone through is too much.
        """
        self._work[0] += weight_of(value)
        if self._work[0] > MAX_WORK:
            raise StepFailed(
                f"the values of these expressions are too much together; at most {MAX_WORK} parts are possible,"
                " of which 40 characters count as one"
            )
        return value

    def look_up(self, name: str) -> Value:
        """Return what a name stands for."""
        try:
            return self.names[name]
        except KeyError:
            raise StepFailed(f"there is no `{name}`{_nearest(name, self.names)}") from None


def has_expression(text: str) -> bool:
    """Whether there is an expression in a text, as far as can be seen without reading it."""
    return OPEN in text


def check_template(text: str) -> None:
    """Read a text without evaluating it.

    Raises:
        StepFailed: An expression in it is none.
    """
    if has_expression(text):
        parse_template(text)


def expand_text(text: str, scope: Scope) -> "str | Hidden":
    """Replace the expressions in a text by what they stand for, as text.

    Raises:
        StepFailed: An expression is none, or has no value.
    """
    return text_of(expand_string(text, scope))


def expand_string(text: str, scope: Scope) -> Value:
    """Replace the expressions in a text; one that is the whole text keeps its type.

    Raises:
        StepFailed: An expression is none, or has no value.
    """
    if not has_expression(text):
        return text
    return scope.spend(_filled(parse_template(text), scope, keep_type=True))


def expand(value: Value, scope: Scope) -> Value:
    """Replace the expressions in all texts of a value; names of a struct's fields stay as they are.

    Raises:
        StepFailed: An expression is none, or has no value.
    """
    if isinstance(value, str):
        return expand_string(value, scope)
    if isinstance(value, Mapping):
        return {key: expand(each, scope) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [expand(each, scope) for each in value]
    return value


def _filled(template: Template, scope: Scope, *, keep_type: bool) -> Value:
    if keep_type and len(template.parts) == 1 and not isinstance(template.parts[0], str):
        return evaluate(template.parts[0], scope)
    texts = [part if isinstance(part, str) else text_of(scope.spend(evaluate(part, scope))) for part in template.parts]
    return scope.spend(join(texts))


def evaluate(expression: Expression, scope: Scope) -> Value:
    """Return what an expression stands for.

    Raises:
        StepFailed: It has no value: something is not there, or of another type than is needed.
    """
    match expression:
        case Literal(value):
            found: Value = value
        case Name(name):
            found = scope.look_up(name)
        case Member():
            found = _member(expression, scope)
        case Binary():
            found = _binary(expression, scope)
        case Unary():
            found = _unary(expression, scope)
        case Call():
            found = _call(expression, scope)
        case Array(items):
            found = [evaluate(each, scope) for each in items]
        case Struct(pairs):
            found = {_key(key, scope): evaluate(each, scope) for key, each in pairs}
        case _:
            found = _filled(expression, scope, keep_type=False)
    return found


def _key(expression: Expression, scope: Scope) -> str:
    key = _bare(evaluate(expression, scope))
    if not isinstance(key, str):
        raise StepFailed(f"a key of a struct is a string; found {_a(kind_of(key))}")
    return key


def _member(expression: Member, scope: Scope) -> Value:
    owner = evaluate(expression.of, scope)
    key = _bare(evaluate(expression.key, scope))
    found = _part(_bare(owner), key, expression)
    return Hidden(_bare(found)) if isinstance(owner, Hidden) else found


def _part(owner: Value, key: Value, expression: Member) -> Value:
    path = described(expression.of)
    if isinstance(owner, Mapping) and isinstance(key, str):
        if key not in owner:
            raise StepFailed(f"there is no `{key}` in `{path}`{_nearest(key, owner)}")
        return owner[key]
    if isinstance(owner, Sequence) and not isinstance(owner, str) and kind_of(key) == "number":
        if not isinstance(key, int) or not 0 <= key < len(owner):
            raise StepFailed(f"`{path}` has no item {text_of(key)}; it has {len(owner)}, counted from 0")
        return owner[key]
    if isinstance(owner, (Mapping, Sequence)) and not isinstance(owner, str):
        wanted = "a string" if isinstance(owner, Mapping) else "a number"
        raise StepFailed(f"what is picked from `{path}` needs {wanted} in brackets; found {_a(kind_of(key))}")
    raise StepFailed(f"`{path}` is {_a(kind_of(owner))}, which has no `{text_of(key)}`")


def _binary(expression: Binary, scope: Scope) -> Value:
    sign = expression.operator
    left = evaluate(expression.left, scope)
    if sign in ("||", "&&"):
        if is_true(left) != (sign == "&&"):
            return left
        return _like(evaluate(expression.right, scope), scope.spend(left))
    right = evaluate(expression.right, scope)
    if sign in _COMPARISONS:
        order = compare(reveal(scope.spend(left)), reveal(scope.spend(right)))
        return _like(_COMPARISONS[sign](order, 0), left, right)
    if sign == "+" and kind_of(left) == kind_of(right) == "string":
        return scope.spend(join([text_of(left), text_of(right)]))
    numbers = _bare(left), _bare(right)
    if not all(kind_of(each) == "number" for each in numbers):
        kinds = f"{_a(kind_of(left))} and {_a(kind_of(right))}"
        wanted = "two numbers or two strings" if sign == "+" else "two numbers"
        raise StepFailed(f"`{sign}` needs {wanted}; found {kinds}")
    return _like(_calculate(sign, *(float(str(each)) for each in numbers)), left, right)


_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _calculate(sign: str, left: float, right: float) -> Value:
    try:
        if sign == "+":
            result = left + right
        elif sign == "-":
            result = left - right
        elif sign == "*":
            result = left * right
        elif sign == "/":
            result = left / right
        else:
            result = math.fmod(left, right)
    except (ZeroDivisionError, ValueError):
        raise StepFailed(f"a number {'divided' if sign == '/' else 'taken modulo'} by 0") from None
    if not math.isfinite(result):
        raise StepFailed(f"the result of `{sign}` is beyond what 64 bits hold")
    return whole(result)


def _unary(expression: Unary, scope: Scope) -> Value:
    operand = evaluate(expression.operand, scope)
    if expression.operator == "!":
        return _like(not is_true(operand), scope.spend(operand))
    number = _bare(operand)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise StepFailed(f"`{expression.operator}` needs a number; found {_a(kind_of(operand))}")
    return _like(-number if expression.operator == "-" else number, operand)


def _call(expression: Call, scope: Scope) -> Value:
    if expression.name not in _FUNCTIONS:
        known = ", ".join(f"`{name}`" for name in _FUNCTIONS)
        raise StepFailed(f"there is no function `{expression.name}`; there are {known}")
    arguments = [evaluate(each, scope) for each in expression.arguments]
    if len(arguments) != 1:
        raise StepFailed(f"`{expression.name}` takes one value; found {len(arguments)}")
    argument = scope.spend(arguments[0])
    if expression.name == "bool":
        return _like(is_true(argument), argument)
    if expression.name == "str":
        return "<null>" if _bare(argument) is None else text_of(argument)
    text = _bare(argument)
    if kind_of(text) == "number":
        return argument
    try:
        return _like(number_of(text if isinstance(text, str) else ""), argument)
    except ValueError:
        raise StepFailed(f"`num` needs a string with a number in it; found {_found(argument)}") from None


def is_true(value: Value) -> bool:
    """Whether a value counts as true: what is neither nothing, nor 0, nor empty, nor false."""
    return bool(_bare(value))


def _bare(value: Value) -> Value:
    """What a value is, if it is hidden; parts of it may be hidden still."""
    while isinstance(value, Hidden):
        value = value.value
    return value


def compare(left: Value, right: Value) -> int:
    """Bring two values into order: -1, 0 or 1.

    Values of different types are ordered by type; strings by their bytes in UTF-8, arrays by item, structs by length,
    then keys, then values.
    """
    kinds = (kind_of(left), kind_of(right))
    if kinds[0] != kinds[1]:
        return _sign(_ORDER.index(kinds[0]), _ORDER.index(kinds[1]))
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        keys = (sorted(left), sorted(right))
        if len(left) != len(right) or keys[0] != keys[1]:
            return _sign((len(left), keys[0]), (len(right), keys[1]))
        pairs = [(left[key], right[key]) for key in keys[0]]
    elif isinstance(left, str) or isinstance(right, str):
        return _sign(str(left).encode("utf-8", "surrogatepass"), str(right).encode("utf-8", "surrogatepass"))
    elif isinstance(left, Sequence) and isinstance(right, Sequence):
        pairs = [*zip(left, right, strict=False)]
    else:
        return _sign(left or 0, right or 0)
    found = next(filter(None, (compare(*pair) for pair in pairs)), 0)
    return found or _sign(len(left), len(right))


_ORDER = ("null", "boolean", "number", "string", "array", "struct")


def _sign(left: object, right: object) -> int:
    return int(left > right) - int(left < right)  # type: ignore[operator]  # both are of one type that has an order


def _like(result: Value, *operands: Value) -> Value:
    """Hide a result if anything that it was made of is hidden."""
    return Hidden(result) if any(hides(each) for each in operands) else result


def described(expression: Expression) -> str:
    """Write a path of names as it stands in a file; `...` for anything else."""
    if isinstance(expression, Name):
        return expression.name
    if isinstance(expression, Member) and isinstance(expression.key, Literal):
        return f"{described(expression.of)}.{expression.key.value}"
    return "..."


def _a(kind: str) -> str:
    return "null" if kind == "null" else f"{'an' if kind == 'array' else 'a'} {kind}"


def _found(value: Value) -> str:
    text = text_of(mask(value))
    return f"{_a(kind_of(value))}: `{str(text)[:40]}`"


def _nearest(name: str, names: Mapping[str, Value]) -> str:
    """Name what somebody may have meant."""
    if near := nearest(name, names):
        return f"; did you mean `{near}`?"
    return f"; there are {', '.join(f'`{each}`' for each in sorted(names))}" if 0 < len(names) <= 2 * _PATH else ""
