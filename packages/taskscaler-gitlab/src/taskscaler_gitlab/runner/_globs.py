"""Which files a job's patterns mean, as text for the shell of an instance: pure.

GitLab's patterns know ``*``, ``?``, ``**``, ``[a-z]`` and ``{a,b}``, a shell's know not all of them. So each is a place
to look in and an extended regular expression, and one program of *awk* picks from what *find* lists there. A pattern
that means a directory means all that is in it.
"""

import posixpath
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from attrs import frozen

from taskscaler_gitlab.runner._options import shown

_SPECIAL = frozenset(".*+?(){}|$[]")
_MAGIC = re.compile(r"[*?\[{\\]")

LONGEST = 4096
"""Characters of a pattern: no path of a system has more bytes."""


class OutsideProject(ValueError):
    """A pattern that means something which is not in the project's directory."""


@frozen
class Pattern:
    """What a job's pattern means, relative to the project's directory."""

    place: str
    """Where to look: ``.``, or a path such as ``./build``."""

    text: str
    """As the job has it, or the job's pattern."""

    regex: str
    """What a path, without ``./``, has to match: an extended regular expression, to be anchored at both ends."""


def read_pattern(text: str, project: str) -> Pattern:
    """Read one.

    Args:
        text: As the job has it, with its variables expanded.
        project: The project's directory, absolute.

    Raises:
        OutsideProject: It is empty, leads outside, or is longer than any path.
    """
    if len(text) > LONGEST:
        raise OutsideProject(text)
    path = posixpath.normpath(text) if text else ""
    if path.startswith("/"):
        inner = posixpath.relpath(path, project)
        path = path if inner.startswith("..") else inner
    parts = path.split("/")
    if not path or path.startswith("/") or ".." in parts or "\0" in path:
        raise OutsideProject(text)
    if "\n" in path:
        raise OutsideProject(text)
    literal = []
    for part in parts:
        if _MAGIC.search(part):
            break
        literal.append(part)
    place = "/".join([".", *(part for part in literal if part != ".")])
    return Pattern(place, text, ".*" if path == "." else _regex(path))


def read_patterns(texts: Iterable[str], expand: Callable[[str], str], project: str) -> tuple[list[Pattern], list[str]]:
    """Read several, with references to variables in them; returns those that are in the project, and the others."""
    found, outside = [], []
    for text in map(expand, texts):
        try:
            found.append(read_pattern(text, project))
        except OutsideProject:
            outside.append(shown(" ".join(text.split())))
    return found, outside


_TOKEN = re.compile(r"(?P<stars>\*+)|\\(?P<escaped>.)|(?P<class>\[[!^]?.[^\]]*\])|(?P<char>.)", re.DOTALL)


def _regex(glob: str) -> str:
    found, open_braces, last_brace = [], 0, glob.rfind("}")
    for token in _TOKEN.finditer(glob):
        char = token["char"]
        if token["stars"]:
            found.append(_stars(glob, token))
        elif token["class"]:
            found.append(_class(token["class"][1:-1]))
        elif char == "/" and found and found[-1] == _ANY_DEPTH:
            continue  # it is part of that
        elif char == "{" and token.end() <= last_brace:
            open_braces += 1
            found.append("(")
        elif open_braces and char in _IN_BRACES:
            open_braces -= char == "}"
            found.append(_IN_BRACES[char])
        else:
            found.append("[^/]" if char == "?" else _literal(token["escaped"] or char))
    return "".join(found) + ")" * open_braces


_ANY_DEPTH = "(.*/)?"
_IN_BRACES = {"}": ")", ",": "|"}


def _stars(glob: str, token: re.Match[str]) -> str:
    """Two that are all between slashes mean any directories, others anything within a name."""
    start, end = token.span()
    is_whole = glob[max(0, start - 1) : start] in ("", "/") and glob[end : end + 1] in ("", "/")
    if len(token["stars"]) == 1 or not is_whole:
        return "[^/]*"
    return _ANY_DEPTH if token.end() < len(glob) else ".*"


def _class(inner: str) -> str:
    negated, rest = ("^", inner[1:]) if inner[0] in "!^" else ("", inner)
    return f"[{negated}{'/' if negated else ''}{rest.replace(chr(92), chr(92) * 2).replace('[', '')}]"


def _literal(char: str) -> str:
    if char == "^":
        return r"\^"
    if char == "\\":
        return r"\\"
    return f"[{char}]" if char in _SPECIAL else char


_PICK = r"""
!is_over {
    if ($0 == "") is_over = 1
    else if (substr($0, 1, 1) == "=") names[count] = substr($0, 2)
    else rules[++count] = $0
    next
}
{
    path = $0; wanted = 0
    if (substr(path, 1, 1) == "?") { wanted = 1; path = substr(path, 2) }
    is_directory = sub(/\/$/, "", path)
    above = path
    while (match(above, /\/[^\/]*$/)) {
        above = substr(above, 1, RSTART - 1)
        if (above in full) break
        full[above]
    }
    name = substr(path, 3)
    if (name == "" || path in taken) next
    for (i = 1; i <= count; i++) {
        rule = substr(rules[i], 2)
        if (substr(rules[i], 1, 1) == "+") { if (name ~ rule) wanted = hit[i] = 1 }
        else if (name ~ rule) { wanted = 0; break }
    }
    if (!wanted) next
    taken[path]
    if (is_directory) directories[path]; else print path
}
END {
    for (path in directories) if (!(path in full)) print path
    for (i = 1; i <= count; i++) if (i in names && !(i in hit)) print names[i] | "cat 1>&2"
}
"""
"""First come rules, a ``+`` or ``-`` and a regular expression each, maybe with a pattern behind a ``=`` to name if
nothing matches, and an empty line; then paths, those of directories with a slash, those that are wanted anyway behind a
question mark. Directories are named only if nothing is in them: in others, it is what they have."""

_COPY = 'tree=$1; shift; tar -cf - "$@" | tar -xf - -C "$tree"'
"""Copies files into a tree: for a *tar* that cannot read names from a file, as that of small systems."""

FIND = f"""
_t_root=$(pwd -P)
_t_find() {{
    for _t_place do
        _t_above=${{_t_place%/*}}
        if [ "$(cd -P -- "$_t_above" 2>/dev/null && pwd -P)" = "$_t_root${{_t_above#.}}" ]; then
            find "$_t_place" -type d ! -path '*
*' 2>/dev/null | sed 's,$,/,'
            find "$_t_place" \\( -type f -o -type l \\) ! -path '*
*' 2>/dev/null
        fi
    done
    return 0
}}
_t_untracked() {{
    git -c core.fsmonitor= -c core.hooksPath=/dev/null ls-files -o -z 2>/dev/null |
        tr '\\n\\0' '\\001\\n' | grep -v "$(printf '\\001')" | sed 's,^,?./,'
    return 0
}}
_t_pick() {{
    LC_ALL=C awk {shlex.quote(_PICK)}
}}
_t_tar() {{
    if tar --no-recursion --no-unquote -cf /dev/null -T /dev/null 2>/dev/null; then
        tar --no-recursion --no-unquote -cf "$1" -T "$2"
        return
    fi
    _t_tree=$1.tree
    mkdir "$_t_tree" && tr '\\n' '\\000' < "$2" | xargs -0 sh -c {shlex.quote(_COPY)} sh "$_t_tree" &&
        (cd "$_t_tree" && tar -cf "$1" .)
    _t_code=$?
    rm -rf "$_t_tree"
    return "$_t_code"
}}
"""
"""Functions of a shell that stands in the project's directory: what is in places, what git does not know, what of it
is wanted, and an archive of that. A place that is behind a link has nothing in it, and no link is followed."""


def listing(patterns: Sequence[Pattern], excluded: Sequence[Pattern], *, untracked: bool) -> str:
    """Write a command that prints the files which patterns mean; after `FIND`. Its errors are patterns without files.

    Args:
        patterns: What is wanted.
        excluded: What is not, even so; each means just what it matches.
        untracked: Whether what git does not know is wanted too.
    """
    wanted = chain.from_iterable((f"+^({each.regex})(/.*)?$", f"={each.text}") for each in patterns)
    rules = [*wanted, *(f"-^({each.regex})$" for each in excluded)]
    places = " ".join(shlex.quote(each.place) for each in patterns)
    parts = [f"printf '%s\\n' {' '.join(map(shlex.quote, (*rules, '')))}"]
    if places:
        parts.append(f"_t_find {places}")
    if untracked:
        parts.append("_t_untracked")
    return f"{{ {'; '.join(parts)}; }} | _t_pick"
