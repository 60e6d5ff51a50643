"""The fields of attrs classes, as readers see them: names, types, defaults, and what stands below each."""

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from textwrap import dedent
from types import NoneType
from typing import get_args

import attrs
from attrs import frozen

_MADE: type = type(attrs.Factory(list))
"""Of defaults that are made for each object."""


@frozen
class Field:
    """One field of a class, its own or inherited."""

    name: str
    annotation: str
    """Its type as it is written."""

    type: object
    """Its type, None set aside; None if that is not a class."""

    default: object
    """`attrs.NOTHING` if the field is required; None also if it is made."""

    made: bool
    """Whether the default is made for each object."""

    meaning: str
    """The string literal below it; empty if there is none."""


def fields(owner: type) -> Iterator[Field]:
    """The public fields of an attrs class, in order."""
    annotations, meanings = _annotations(owner), _meanings(owner)
    for each in attrs.fields(owner):
        if not each.name.startswith("_"):
            named, meaning = annotations.get(each.name, ""), meanings.get(each.name, "")
            made = isinstance(each.default, _MADE)
            yield Field(each.name, named, _class_of(each.type), None if made else each.default, made, meaning)


def _class_of(annotation: object) -> object:
    options = [each for each in get_args(annotation) if each is not NoneType] or [annotation]
    return options[0] if len(options) == 1 and isinstance(options[0], type) else None


@cache
def _annotations(owner: type) -> Mapping[str, str]:
    return {name: ast.unparse(node.annotation) for name, node, _ in _statements(owner)}


@cache
def _meanings(owner: type) -> Mapping[str, str]:
    return {name: inspect.cleandoc(literal) for name, _, literal in _statements(owner) if literal}


def _statements(owner: type) -> Iterator[tuple[str, ast.AnnAssign, str]]:
    """The annotated names in the body of a class and of those it derives from, each with the literal below it."""
    for each in reversed(owner.__mro__):
        if attrs.has(each):
            tree = ast.parse(dedent(inspect.getsource(each)))
            body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef))
            for node, below in zip(body, [*body[1:], None], strict=True):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id, node, _literal(below)


def _literal(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return ""
