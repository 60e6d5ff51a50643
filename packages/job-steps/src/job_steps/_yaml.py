"""YAML, as much of it as files of steps have: documents as trees of nodes that know their lines.

What a file may cost is bounded before it is paid: its length, how deep it nests, and how many nodes there are once
every alias is written out. Plain scalars mean what they mean to GitLab (`yes` and `12:30` are text).

Source: YAML 1.2's core schema; GitLab's step runner reads files with Go's yaml.v3.
"""

import re
from collections.abc import Iterator
from typing import NoReturn

import yaml
from attrs import define, field, frozen

from job_steps._errors import StepsInvalid
from job_steps._values import MAX_DEPTH, Value, number_of, whole_text

MAX_LENGTH = 1024 * 1024
"""Characters of one file."""

MAX_NODES = 100_000
"""Scalars, lists and mappings of one file, those behind aliases once for each time that they stand there."""

MAX_DOCUMENTS = 2
"""Documents of one file; one more is read, so that it can be refused."""

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}


@define(eq=False)
class Scalar:
    """A text, a number, true or false, or nothing."""

    line: int
    text: str = field(repr=False)
    """As it is written, without quotes."""
    value: Value = field(repr=False)
    weight: int = 1
    depth: int = 1


@define(eq=False)
class Sequence:
    """A list."""

    line: int
    items: "list[Node]" = field(factory=list, repr=False)
    weight: int = 1
    depth: int = 1


@define(eq=False)
class Mapping:
    """Keys and what they stand for, in the order of the file."""

    line: int
    items: "dict[str, tuple[int, Node]]" = field(factory=dict, repr=False)
    """By key: the line of the key, and its node."""
    weight: int = 1
    depth: int = 1


Node = Scalar | Sequence | Mapping


@frozen
class Document:
    """One document of a file."""

    line: int
    root: Node = field(repr=False)


def read_documents(text: str, *, source: str) -> list[Document]:
    """Read the documents of a file.

    Args:
        text: What is in it.
        source: What it is called, for errors.

    Raises:
        StepsInvalid: It is no YAML, uses what files of steps do not, or is too big.
    """
    if len(text) > MAX_LENGTH:
        raise StepsInvalid(f"{len(text)} characters; at most {MAX_LENGTH} are read", source=source, line=1)
    return _Composer(source).documents(text)


def plain(node: Node) -> Value:
    """Return what a node stands for, without lines."""
    if isinstance(node, Sequence):
        return [plain(each) for each in node.items]
    if isinstance(node, Mapping):
        return {key: plain(each) for key, (_, each) in node.items.items()}
    return node.value


@define
class _Open:
    """A list or a mapping whose end has not come yet."""

    node: Sequence | Mapping
    anchor: str | None
    key: tuple[int, str] | None = None
    """Of a mapping: the key whose value comes next, and its line."""
    merged: "list[tuple[int, Node]]" = field(factory=list)
    """Of a mapping: what stands behind its `<<`."""


@define
class _Composer:
    """Makes trees of the parser's events, one at a time, so that what is too much is noticed when it begins."""

    source: str
    anchors: "dict[str, Node | None]" = field(factory=dict)
    """Complete nodes by anchor; None while one is being read."""
    stack: list[_Open] = field(factory=list)

    def documents(self, text: str) -> list[Document]:
        """Read all documents."""
        found: list[Document] = []
        line = started = 1
        try:
            for event in _events(text):
                line = event.start_mark.line + 1 if event.start_mark else line
                if isinstance(event, yaml.DocumentStartEvent):
                    self.anchors, self.stack = {}, []
                    started = line
                elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                    node = self._take(event, line)
                    if node is not None and not self.stack:
                        found.append(Document(started, node))
                        if len(found) > MAX_DOCUMENTS:
                            break
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._fail(mark.line + 1 if mark else line, f"not YAML: {error.problem or error.context}")
        except yaml.YAMLError as error:  # a character that YAML has no place for: the reader knows no lines
            self._fail(1, f"not YAML: {str(error).partition(chr(10))[0]}")
        return found

    def _take(self, event: yaml.Event, line: int) -> Node | None:
        """Take one event; returns the node that is complete with it, if one is."""
        if isinstance(event, yaml.AliasEvent):
            return self._complete(self._aliased(event.anchor or "", line), line)
        if isinstance(event, yaml.ScalarEvent):
            scalar = Scalar(line, event.value, self._resolve(event, line))
            if event.anchor:
                self.anchors[event.anchor] = scalar
            return self._complete(scalar, line)
        if isinstance(event, yaml.CollectionStartEvent):
            node = Sequence(line) if isinstance(event, yaml.SequenceStartEvent) else Mapping(line)
            self._check_tag(event.tag, "seq" if isinstance(node, Sequence) else "map", line)
            if len(self.stack) >= MAX_DEPTH:
                self._fail(line, f"more than {MAX_DEPTH} levels of lists and mappings")
            if self.stack and isinstance(self.stack[-1].node, Mapping) and self.stack[-1].key is None:
                self._fail(line, "a key that is a list or a mapping; keys are text")
            if event.anchor:
                self.anchors[event.anchor] = None
            self.stack.append(_Open(node, event.anchor))
            return None
        closed = self.stack.pop()
        for key_line, merged in closed.merged:
            self._merge(closed.node, merged, key_line)
        if closed.anchor:
            self.anchors[closed.anchor] = closed.node
        return self._complete(closed.node, line)

    def _complete(self, node: Node, line: int) -> Node | None:
        """Put a complete node where it belongs; returns it if it is a document's root."""
        if not self.stack:
            return node
        top = self.stack[-1]
        top.node.weight += node.weight
        top.node.depth = max(top.node.depth, node.depth + 1)
        if top.node.weight > MAX_NODES:
            self._fail(line, f"more than {MAX_NODES} values, those behind aliases included")
        if top.node.depth > MAX_DEPTH:
            self._fail(line, f"more than {MAX_DEPTH} levels of lists and mappings, those behind aliases included")
        if isinstance(top.node, Sequence):
            top.node.items.append(node)
        elif top.key is None:
            if not isinstance(node, Scalar):
                self._fail(line, "a key that is a list or a mapping; keys are text")
            if node.text != "<<" and node.text in top.node.items:
                first = top.node.items[node.text][0]
                self._fail(line, f"the key `{node.text[:40]}` stands here a second time; the first is in line {first}")
            top.key = (line, node.text)
        else:
            key_line, key = top.key
            top.key = None
            if key == "<<":
                top.merged.append((key_line, node))
            else:
                top.node.items[key] = (key_line, node)
        return None

    def _merge(self, into: Node, merged: Node, line: int) -> None:
        """Give a mapping the keys of others that it has not itself."""
        for each in merged.items if isinstance(merged, Sequence) else [merged]:
            if not isinstance(each, Mapping) or not isinstance(into, Mapping):
                self._fail(line, "what stands behind `<<` is neither a mapping nor a list of them")
            for key, value in each.items.items():
                into.items.setdefault(key, value)

    def _aliased(self, anchor: str, line: int) -> Node:
        if anchor not in self.anchors:
            self._fail(line, f"the alias `*{anchor[:40]}` has no anchor before it")
        node = self.anchors[anchor]
        if node is None:
            self._fail(line, f"the alias `*{anchor[:40]}` stands inside what it stands for")
        return node

    def _resolve(self, event: yaml.ScalarEvent, line: int) -> Value:
        """Find out what a scalar means: by its tag, or by how it is written."""
        text = event.value
        if text != whole_text(text):  # the fast parser refuses it by itself
            self._fail(line, "not YAML: found invalid Unicode character escape code")
        kind = _TAGS.get(event.tag or "")
        if event.tag not in (None, "!") and kind not in ("null", "bool", "int", "float", "str"):
            self._check_tag(event.tag, "str", line)
        if kind == "str" or event.tag == "!" or (kind is None and not event.implicit[0]):
            return text
        if _NULL.fullmatch(text) and kind in (None, "null"):
            return None
        if (is_true := bool(_TRUE.fullmatch(text))) or _FALSE.fullmatch(text):
            return is_true if kind in (None, "bool") else self._unlike(text, kind, line)
        if _NOT_FINITE.fullmatch(text) and kind in (None, "float"):
            self._fail(line, f"`{text}` as a number; expected a finite one")
        if kind in (None, "int", "float") and (_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)):
            return self._number(text, line)
        return text if kind is None else self._unlike(text, kind, line)

    def _number(self, text: str, line: int) -> Value:
        try:
            if text.startswith(("0o", "0x")):
                return number_of(str(int(text[2:], 8 if text[1] == "o" else 16)))
            return number_of(text)
        except (ValueError, OverflowError):
            self._fail(line, f"the number `{text[:40]}` is too big; numbers have 64 bits")

    def _unlike(self, text: str, kind: str, line: int) -> NoReturn:
        self._fail(line, f"`{text[:40]}` has the tag `!!{kind}`, and is something else")

    def _check_tag(self, tag: str | None, kind: str, line: int) -> None:
        if tag not in (None, "!") and _TAGS.get(tag or "") != kind:
            self._fail(line, f"the tag `{(tag or '')[:80]}`; steps need no tags")

    def _fail(self, line: int, message: str) -> NoReturn:
        raise StepsInvalid(message, source=self.source, line=line)


def _events(text: str) -> Iterator[yaml.Event]:
    """Read the events of a text with the fast parser, where there is one."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    yield from yaml.parse(text, Loader=loader)
