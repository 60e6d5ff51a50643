"""Configuration is data: attrs classes are the schema, and every mistake is reported at once.

cattrs picks the hook for each type. The hooks are ours, because a user needs the key path, the value as the
file has it and the nearest valid choice for everything that is wrong, not the first exception. A hook that
cannot read a value records a `ConfigProblem` and gives what is empty in its place, so that everything around it is
still read; that a value is wrong shows in that there are more problems than before it.

To add a table to a file, add an attrs class and a field of that type to the class of the table around it. Then all
that is wrong in it is collected without further code: types, unknown and missing keys, what the validators of its
fields say, and its own ``__attrs_post_init__``. A rule that reaches over several tables, or looks at the disk, runs on
what `structure` returns with ``problems=``: there, whatever could not be read has its default or is empty ("", 0, (),
an empty table), and the rule passes over it. It appends a `ConfigProblem` with the key path, for which `file_error`
finds the place in the file and the name of the job.
"""

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import attrs
from attrs import define, field

from fleeting._arguments import allowed, own_validator
from fleeting._durations import Duration, format_duration, parse_duration
from fleeting._errors import ConfigError, ConfigProblem, Mistake
from fleeting._problems import file_error
from fleeting._wording import (
    Argv,
    Kind,
    alternatives,
    as_arguments,
    choices,
    describe,
    did_you_mean,
    dotted,
    expectation,
    has_surrogates,
    is_choice,
    origin,
    quoted,
    quoting_hint,
)

if TYPE_CHECKING:
    from cattrs import BaseConverter

T = TypeVar("T")

_GROUP_NAME = re.compile(r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?")

BareNumbers = Literal["refuse", "nanoseconds"]
"""What a number without a unit is, where a duration belongs: a mistake, or nanoseconds as Go has them."""

_LARGEST = 2**63 - 1

_SHORT_LIST = 8
"""A message lists up to so many known keys."""


def structure(
    data: object,
    cls: type[T],
    *,
    path: str = "",
    source: str = "",
    bare_numbers: BareNumbers = "refuse",
    zero_is_default: bool = False,
    foreign: bool = False,
    secrets: frozenset[str] = frozenset(),
    notes: list[str] | None = None,
    problems: list[ConfigProblem] | None = None,
) -> T:
    """Turn a table, as TOML or JSON gives it, into an instance of an attrs class.

    Nothing is coerced, except that an integer will do for a number. Fields may be strings, integers, floats,
    booleans, `Duration`, enums and literals of strings, attrs classes, arrays and string-keyed tables of these,
    optional, and alternatives that can be distinguished, such as an integer or a table. A field's
    ``metadata={"aliases": ("older",)}`` names keys that are accepted in its place.

    Args:
        data: The table; an array if *cls* is a tuple or list of schemas.
        cls: The schema. A validator that refuses a value raises a ValueError that says what is allowed. A second
            argument is the part of the value that is wrong, a third what to add to it, such as ``" twice"``. A rule
            over several fields belongs into ``__attrs_post_init__`` and does the same.
        path: Key path of the table itself, for messages.
        source: Name of the file, for messages.
        bare_numbers: What a number is where a duration belongs.
        zero_is_default: Whether a number or duration that is zero and an empty string are as good as no key at all,
            as in files that Go reads; a boolean is always meant.
        foreign: Whether the data is another program's answer rather than somebody's settings: keys that the schema
            lacks are passed over, and null is as good as no key.
        secrets: Keys whose values no message may show, at any depth; fields with ``repr=False`` are
            treated so in any case.
        notes: Gets one sentence for each older key name met.
        problems: Gets everything that is wrong, and nothing is raised, for a caller that checks more: what could not
            be read has its default then, or is empty.

    Raises:
        ConfigError: With every problem found, in the order of the data. Rules over several fields speak once each
            of these is right.
    """
    reader = _Reader(
        path=path,
        bare_numbers=bare_numbers,
        zero_is_default=zero_is_default,
        foreign=foreign,
        secrets=secrets,
        notes=[] if notes is None else notes,
    )
    result: T = reader.read(data, cls)
    if problems is not None:
        problems += reader.problems
    elif reader.problems:
        raise file_error(reader.problems, data, path=path, source=source)
    return result


@define(kw_only=True)
class _Reader:
    """Reads one table, remembering where it is and what was wrong."""

    path: str
    bare_numbers: BareNumbers
    zero_is_default: bool
    foreign: bool
    secrets: frozenset[str]
    notes: list[str]
    problems: list[ConfigProblem] = field(factory=list)
    secret: bool = False
    tables: list[tuple[str, type[Any]]] = field(factory=list)
    """The tables around the value that is read, outermost first: their key paths and schemas."""

    converter: "BaseConverter" = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Teach a converter our hooks."""
        from cattrs import BaseConverter  # a bare ``import fleeting`` need not pay for it

        self.converter = BaseConverter()
        for scalar in (str, bool, int, float):
            self.converter.register_structure_hook(scalar, self._scalar)
        for predicate, hook in (
            (lambda kind: kind == Duration, self._duration),
            (lambda kind: len(alternatives(kind)) > 1, self._alternative),
            (is_choice, self._choice),
            (_is_array, self._array),
            (lambda kind: kind == Argv, self._command),
            (_is_mapping, self._mapping),
            (attrs.has, self._table),
        ):
            self.converter.register_structure_hook_func(predicate, hook)

    def read(self, value: object, kind: Kind) -> Kind:
        """Structure *value* as *kind*, or record what is wrong and return what is empty."""
        return self.converter.get_structure_hook(kind)(value, kind)

    @contextmanager
    def at(self, step: str, *, secret: bool = False) -> Iterator[None]:
        """Be one step deeper."""
        path, was_secret = self.path, self.secret
        self.path = f"{path}{step}" if step.startswith("[") else dotted(path, step)
        self.secret = was_secret or secret
        try:
            yield
        finally:
            self.path, self.secret = path, was_secret

    def _scalar(self, value: object, kind: type) -> object:
        accepted = (int, float) if kind is float else (kind,)
        if type(value) not in accepted or (kind is float and not _is_finite(value)):
            return self._refused(value, kind, quoting_hint(value, kind))
        if expected := _instead_of(value):
            self._problem(describe(value, secret=self.secret), expected)
            return kind()
        return kind(value)

    def _duration(self, value: object, kind: Kind) -> object:
        if isinstance(value, str):
            try:
                return parse_duration(value)
            except ConfigError as error:
                return self._refused(value, kind, error.problems[0].hint, Mistake.DURATION)
        if self.bare_numbers == "nanoseconds" and type(value) is int and 0 <= value <= _LARGEST:
            return value / 1e9
        refused_number = self.bare_numbers == "refuse" and type(value) in (int, float)
        return self._refused(value, kind, f'write "{value}s"' if refused_number else "", Mistake.DURATION)

    def _choice(self, value: object, kind: Kind) -> object:
        known = choices(kind)
        if not isinstance(value, str):
            return self._refused(value, kind)
        if value not in known:
            return self._refused(value, kind, did_you_mean(value, known), Mistake.VALUE)
        return known[value]

    def _alternative(self, value: object, kind: Kind) -> object:
        """Read as what the value looks like: a table, one of several words, or a scalar."""
        known = alternatives(kind)
        fitting = next((each for each in known if _looks_like(value, each)), None)
        if fitting is None:
            return self._refused(value, kind, quoting_hint(value, known[0]))
        return self.read(value, fitting)

    def _array(self, value: object, kind: Kind) -> object:
        if not isinstance(value, list | tuple):
            return self._refused(value, kind, self._array_hint(value, get_args(kind)[0]))
        items = []
        for index, item in enumerate(value):
            with self.at(f"[{index}]"):
                items.append(self.read(item, get_args(kind)[0]))
        container = origin(kind)
        return container(items) if container in (list, frozenset) else tuple(items)

    def _command(self, value: object, kind: Kind) -> object:
        """Read a program and its arguments, which people like to write as one string."""
        if isinstance(value, str):
            return self._refused(value, kind, f"write {as_arguments(value)}")
        result = self._array(value, get_args(kind)[0])
        match value:
            case [str(line)] if "/" not in line.strip().partition(" ")[0] and " " in line.strip():
                hint = "" if self.secret else f"write {as_arguments(line)}"
                self._problem(f"{describe(line, secret=self.secret)} is one string for several arguments", "", hint)
                return ()
        return result

    def _array_hint(self, value: object, element: Kind) -> str:
        """What was probably meant: one table of several, or an array of one."""
        if isinstance(value, Mapping) or attrs.has(element):
            return f"write [[{self.path}]]"
        return f'write ["{value}"]' if isinstance(value, str) else ""

    def _mapping(self, value: object, kind: Kind) -> object:
        if not isinstance(value, Mapping):
            return self._refused(value, kind)
        result = {}
        _, element = get_args(kind)
        if element is str and all(type(item) is str and not _instead_of(item) for item in value.values()):
            return dict(value)  # an answer may have tens of thousands of labels
        for key, item in self._items(value):
            with self.at(key, secret=key in self.secrets):
                result[key] = item if element is object else self.read(item, element)
        return result

    def _table(self, value: object, cls: type[Any]) -> object:
        if not isinstance(value, Mapping):
            return self._refused(value, cls, _table_hint(value, cls))
        before, fields, values = len(self.problems), _fields(cls), {}
        unread: dict[str, object] = {}
        if self.foreign:
            value = {key: value[key] for key in fields if value.get(key) is not None}
        self.tables.append((self.path, cls))
        for key, item in value.items():
            if (name := self._name_of(key, fields, value)) is not None:
                with self.at(key, secret=self._is_secret(fields[name])):
                    so_far = len(self.problems)
                    result = self.read(item, fields[name].type)
                    if len(self.problems) > so_far:
                        unread[name] = result
                    elif not self._is_as_good_as_nothing(result, fields[name]):
                        values[name] = result
        self.tables.pop()
        for name, attribute in fields.items():
            if attribute.default is attrs.NOTHING and value.keys().isdisjoint({name, *_aliases(attribute)}):
                unread[name] = _empty(attribute.type)
                with self.at(name):
                    self._problem("nothing", expectation(attribute.type), "", Mistake.MISSING_KEY)
        if len(self.problems) == before:
            return self._build(cls, values)
        return self._salvaged(cls, values, unread)

    def _items(self, table: Mapping[str, object]) -> Collection[tuple[str, object]]:
        return [(key, item) for key, item in table.items() if not (self.foreign and item is None)]

    def _is_as_good_as_nothing(self, value: object, attribute: "attrs.Attribute[Any]") -> bool:
        return self.zero_is_default and attribute.default is not attrs.NOTHING and type(value) is not bool and not value

    def _name_of(self, key: str, fields: "_Fields", table: Mapping[str, object]) -> str | None:
        """Find which field *key* sets, or record why it sets none."""
        if key in fields:
            return key
        name = next((name for name, attribute in fields.items() if key in _aliases(attribute)), None)
        with self.at(key):
            if name is None:
                known = ", ".join(fields) if len(fields) <= _SHORT_LIST else ""
                hint = self._home(key) or did_you_mean(key, fields)
                self._problem("an unknown key", known, hint, Mistake.UNKNOWN_KEY)
            elif name in table:
                self._problem(f"`{key}` is the older name of `{name}`, which is also set", "", f"remove `{key}`")
                return None
            else:
                self.notes.append(f"{self.path} is an older name; use {name}")
        return name

    def _home(self, key: str) -> str:
        """Say to which table a key belongs that stands too high or too low; empty if it could be one of several."""
        *around, (path, cls) = self.tables
        above = [f"[{where}]" if where else "the top of the file" for where, outer in around if key in _fields(outer)]
        below = [heading for heading, _ in _tables_with(key, cls, path)]
        top, schema = self.tables[0]
        is_clear = len({kind for _, kind in _tables_with(key, schema, top)}) == 1
        homes = above[-1:] or (sorted(below, key=len)[:1] if is_clear else [])
        return f"it belongs in {homes[0]}" if homes else ""

    def _build(self, cls: type[Any], values: Mapping[str, Any]) -> object:
        """Make the instance; what its validators and rules refuse becomes problems."""
        try:
            return cls(**values)
        except ValueError as error:
            before = len(self.problems)
            rest = self._salvaged(cls, values, {})
            if len(self.problems) == before:
                self._problem("", self._without_secrets(str(error), cls, values))
            return rest

    def _salvaged(self, cls: type[Any], values: Mapping[str, Any], unread: Mapping[str, Any]) -> object:
        """Record what validators say, and make an instance of what is right, which may break every rule."""
        refused = self._record_what_validators_say(cls, values, unread)
        right = {name: value for name, value in values.items() if name not in refused}
        return _draft(cls, _with_defaults(cls, right, unread), ())

    def _record_what_validators_say(
        self, cls: type[Any], values: Mapping[str, Any], unread: Collection[str]
    ) -> frozenset[str]:
        """Ask each validator by itself: attrs stops at the first, and does not say which it was.

        One that looks at a field that could not be read has nothing to say yet.

        Returns:
            The fields whose values are refused.
        """
        refused = set()
        draft = _draft(cls, values, unread)
        for name, attribute in _fields(cls).items():
            if not hasattr(draft, attribute.name):
                continue
            value = getattr(draft, attribute.name)
            try:
                parts = list(_refused_parts(draft, attribute, value))
            except AttributeError:
                if not unread:
                    raise
                continue
            for step, part, error in parts:
                refused.add(name)
                with self.at(name, secret=self._is_secret(attribute)), self.at(step) if step else nullcontext():
                    if self.secret:
                        self._problem(describe(part, secret=True), "a valid value")
                    else:
                        self._problem(*_found_and_rule(error, attribute, part))
        return frozenset(refused)

    def _without_secrets(self, message: str, cls: type[Any], values: Mapping[str, Any]) -> str:
        for name, attribute in _fields(cls).items():
            if self._is_secret(attribute) and values.get(name):
                message = message.replace(str(values[name]), "***")
        return message

    def _is_secret(self, attribute: "attrs.Attribute[Any]") -> bool:
        return attribute.repr is False or not self.secrets.isdisjoint({attribute.alias, *_aliases(attribute)})

    def _refused(self, value: object, kind: Kind, hint: str = "", mistake: Mistake = Mistake.TYPE) -> object:
        """Record that *value* is no *kind*; the hint may repeat the value, so a secret gets none."""
        self._problem(describe(value, secret=self.secret), expectation(kind), "" if self.secret else hint, mistake)
        return _empty(kind)

    def _problem(self, found: str, expected: str, hint: str = "", mistake: Mistake = Mistake.VALUE) -> None:
        problem = ConfigProblem(path=self.path, found=found, expected=expected, hint=hint, mistake=mistake)
        self.problems.append(problem)


_Fields = Mapping[str, "attrs.Attribute[Any]"]


def _fields(cls: type[Any]) -> _Fields:
    """Fields that data may set, by key."""
    return {attribute.alias: attribute for attribute in attrs.fields(attrs.resolve_types(cls)) if attribute.init}


def _table_hint(value: object, cls: type[Any]) -> str:
    """Write a string as the one thing that a table has to say, if that is a string, and no secret."""
    needed = [key for key, attribute in _fields(cls).items() if attribute.default is attrs.NOTHING]
    match value, needed:
        case str(), [key] if _fields(cls)[key].type is str and _fields(cls)[key].repr:
            return f"write {{ {key} = {quoted(value)} }}"
    return ""


def _aliases(attribute: "attrs.Attribute[Any]") -> tuple[str, ...]:
    return tuple(attribute.metadata.get("aliases", ()))


def _looks_like(value: object, kind: Kind) -> bool:
    """Whether a value is meant for one of several kinds: however wrong it may be inside."""
    if is_choice(kind):
        return isinstance(value, str) and value in choices(kind)
    return isinstance(value, Mapping) if attrs.has(kind) else type(value) is kind


def _is_array(kind: Kind) -> bool:
    from cattrs.cols import is_frozenset, is_sequence  # as above

    return is_sequence(kind) or is_frozenset(kind) or origin(kind) is tuple


def _is_mapping(kind: Kind) -> bool:
    from cattrs.cols import is_mapping  # as above

    return is_mapping(kind)


def _is_finite(value: Any) -> bool:  # noqa: ANN401  (an integer or a float, as the caller made sure)
    return bool(abs(value) <= sys.float_info.max)  # right for nan, and for integers too large to be a float


def _instead_of(value: object) -> str:
    """Say what could be used in place of a scalar that can be written but not be used; empty if it is not such."""
    if isinstance(value, str) and "\0" in value:
        return "a string without NUL characters"
    if isinstance(value, str) and has_surrogates(value):
        return "a string without lone surrogates"
    return "an integer of at most 64 bits" if isinstance(value, int) and abs(value) > _LARGEST else ""


def _tables_with(key: str, cls: type[Any], path: str) -> Iterator[tuple[str, type[Any]]]:
    """Find the tables below a table that have a key: how they are headed, and their schemas."""
    for name, attribute in _fields(cls).items():
        for kind in get_args(attribute.type) or (attribute.type,):  # of an array, and of what is optional, the parts
            if not attrs.has(kind):
                continue
            inner = dotted(path, name)
            if key in _fields(kind):
                yield (f"[[{inner}]]" if _is_array(attribute.type) else f"[{inner}]"), kind
            yield from _tables_with(key, kind, inner)


def _empty(kind: Kind) -> Any:  # noqa: ANN401  (of that kind)
    """Make what stands for a value that could not be read, for the rules over several tables."""
    if type(None) in get_args(kind):
        return None
    if known := alternatives(kind):
        return _empty(known[0])
    if origin(kind) is Annotated:
        return _empty(get_args(kind)[0])
    if is_choice(kind):
        return next(iter(choices(kind).values()))
    if attrs.has(kind):
        return _draft(kind, _with_defaults(kind, {}, {}), ())
    maker = origin(kind) or kind
    return maker() if maker in (str, bool, int, float, list, frozenset) else {} if _is_mapping(kind) else ()


def _with_defaults(cls: type[Any], values: Mapping[str, Any], unread: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the values of a table: what could not be read has its default, or else is empty."""
    missing = {name: unread.get(name) for name in _fields(cls).keys() - values.keys()}
    return {
        **values,
        **{
            name: value or _empty(_fields(cls)[name].type)
            for name, value in missing.items()
            if value or _fields(cls)[name].default is attrs.NOTHING
        },
    }


_Refusal = tuple[str, object, ValueError]
"""Where an array has it, if it is a part of one; what is refused; why."""


def _refused_parts(draft: object, attribute: "attrs.Attribute[Any]", value: Any) -> Iterator[_Refusal]:  # noqa: ANN401  (of a field)
    """Find what a validator refuses: each such part of an array, if it names a part, and else the whole."""
    try:
        own_validator(attribute)(draft, attribute, value)
    except ValueError as error:
        refused = list(_parts(draft, attribute, value)) if _names_a_part(error, value) else []
        yield from refused or [("", value, error)]


def _parts(draft: object, attribute: "attrs.Attribute[Any]", value: Sequence[object]) -> Iterator[_Refusal]:
    """Have a validator look at arrays of one: attrs, and most validators, stop at the first part that is wrong."""
    for index, part in enumerate(value):
        try:
            own_validator(attribute)(draft, attribute, (part,))
        except ValueError as error:
            if _names_a_part(error, (part,)):
                yield f"[{index}]", part, error


def _names_a_part(error: ValueError, value: object) -> bool:
    return isinstance(value, tuple | list) and len(error.args) > 1 and error.args[1] in value


def _draft(cls: type[Any], values: Mapping[str, Any], unread: Collection[str]) -> object:
    """Make an instance that no validator has seen, for validators to look at; it lacks what could not be read."""
    draft = object.__new__(cls)
    for attribute in attrs.fields(cls):
        if attribute.alias not in unread:
            with suppress(AttributeError):  # a default that is worked out from what could not be read
                value = values[attribute.alias] if attribute.alias in values else _default(attribute, draft)
                convert: Any = attribute.converter or _same
                object.__setattr__(draft, attribute.name, convert(value))
    return draft


def _default(attribute: "attrs.Attribute[Any]", draft: object) -> object:
    default: Any = attribute.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class, though the stubs say function
        return default.factory(draft) if default.takes_self else default.factory()
    return default


def _same(value: object) -> object:
    """Stand for the converter of a field that has none."""
    return value


def _found_and_rule(error: ValueError, attribute: "attrs.Attribute[Any]", value: object) -> tuple[str, str, str]:
    """Say what was found, what is allowed and, if the error has it behind a semicolon, what to do.

    Of attrs' own ``'x' must be >= 0: -1``, that is ``-1`` and ``at least 0``.
    """
    is_duration = Duration in (attribute.type, *get_args(attribute.type))

    def written(value: object) -> str:
        return quoted(format_duration(value)) if is_duration and isinstance(value, int | float) else describe(value)

    bound = (lambda text: written(float(text))) if is_duration else str
    rule, part, added = allowed(error, attribute.name, value, written=bound)
    rule, _, hint = rule.partition("; ")
    return f"{written(part)}{added}", rule, hint


def is_group_name(_: object, __: "attrs.Attribute[str]", value: str) -> None:
    """Refuse, as a validator of a setting, what cannot be the beginning of instances' names.

    Raises:
        ValueError: It cannot; says what may stand there.
    """
    if not _GROUP_NAME.fullmatch(value):
        raise ValueError(
            "1 to 32 lower-case letters, digits and dashes, starting with a letter and not ending with a dash"
        )
