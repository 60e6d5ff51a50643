"""Files that describe a group: TOML, and which runner of GitLab's ``config.toml`` to use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from fleeting._errors import ConfigError, ConfigProblem, Mistake
from fleeting._wording import describe, did_you_mean, quoted

Table: TypeAlias = Mapping[str, object]


def read_toml(path: Path) -> tuple[str, Mapping[str, object]]:
    """Read a file, and return its text and its top table.

    Raises:
        ConfigError: It is not TOML.
        OSError: It cannot be read.
    """
    import tomllib  # help needs no files

    text = _read(path)
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(path, *_mistake(str(error))) from error
    except RecursionError:
        raise _no_toml(path, "invalid TOML: the brackets are nested too deeply") from None
    except ValueError as error:  # Python's own limit for the length of a number
        raise _no_toml(path, "invalid TOML: a number has thousands of digits") from error


def find_runner(file: Table, name: str | None, *, source: str = "") -> tuple[str, Table]:
    """Find the ``[[runners]]`` entry that is meant, and its key path.

    Args:
        file: The whole of a ``config.toml``.
        name: The entry's ``name``. None: the only one with ``[runners.autoscaler]``.
        source: Name of the file, for messages.

    Raises:
        ConfigError: There is none, or it is open which one is meant; names those that there are.
    """
    try:
        return _choose(_entries(file), name)
    except ConfigError as error:
        raise ConfigError(error.problems, source=source) from None


def _read(path: Path) -> str:
    """Read the text; some editors put a mark of the byte order before it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        found = f"not UTF-8: byte 0x{error.object[error.start]:02x} in line {line}"
        raise _no_toml(path, found, "save the file as UTF-8") from error
    except OSError as error:
        error.filename = error.filename or str(path)  # reading, unlike opening, leaves it out
        raise


def _mistake(message: str) -> tuple[str, str]:
    """Say what tomllib refuses and where, and how to correct the most common mistake."""
    what, _, where = message.removesuffix(")").rpartition(" (at ")
    hint = "write a value, and put text in quotes" if what == "Invalid value" else ""
    return f"invalid TOML at {where}: {what[:1].lower()}{what[1:]}", hint


def _no_toml(path: Path, found: str, hint: str = "") -> ConfigError:
    problem = ConfigProblem(path="", found=found, hint=hint, mistake=Mistake.SYNTAX)
    return ConfigError([problem], source=str(path))


def _entries(file: Table) -> Mapping[str, Table]:
    """The runners of the file by their key paths."""
    match file.get("runners"):
        case None:
            raise _wrong("", "there is no [[runners]] table", hint=did_you_mean("runners", file))
        case list(entries) if all(isinstance(entry, Mapping) for entry in entries):
            return {f"runners[{index}]": entry for index, entry in enumerate(entries)}
        case other:
            hint = "write [[runners]]" if isinstance(other, Mapping) else ""
            raise _wrong("runners", describe(other), "an array of tables", hint=hint)


def _choose(entries: Mapping[str, Table], name: str | None) -> tuple[str, Table]:
    """Find the entry that is meant, and its key path."""
    scaled = {key: entry for key, entry in entries.items() if "autoscaler" in entry}
    if name is None:
        return _only(scaled, entries)
    named = {key: entry for key, entry in entries.items() if entry.get("name") == name}
    if not named:
        known = _names(entries)
        raise _wrong("runners", f"none is named {quoted(name)} ({_listed(known)})", hint=did_you_mean(name, known))
    if len(named) > 1:
        raise _wrong("runners", f"{len(named)} are named {quoted(name)}", hint="give them different names")
    ((key, entry),) = named.items()
    if key not in scaled:
        raise _wrong(f"{key}.autoscaler", "this table is missing", hint=_instead(entry))
    return key, entry


def _only(scaled: Mapping[str, Table], entries: Mapping[str, Table]) -> tuple[str, Table]:
    match list(scaled.items()):
        case []:
            hints = [hint for hint in map(_instead, entries.values()) if hint]
            raise _wrong("runners", "none has a [runners.autoscaler] table", hint="".join(hints[:1]))
        case [only]:
            return only
        case _:
            found = f"{len(scaled)} have a [runners.autoscaler] table ({_listed(_names(scaled))})"
            raise _wrong("runners", found, hint="choose one with --runner, or with runner= in Python")


def _names(entries: Mapping[str, Table]) -> list[str]:
    return [name for entry in entries.values() if isinstance(name := entry.get("name"), str) and name]


def _listed(names: Sequence[str]) -> str:
    return f"names: {', '.join(map(quoted, names))}" if names else "without names"


def _instead(entry: Table) -> str:
    """What stands where ``autoscaler`` could."""
    if "machine" in entry:
        return "[runners.machine] configures Docker Machine, which is a different autoscaler"
    return did_you_mean("autoscaler", entry)


def _wrong(path: str, found: str, expected: str = "", *, hint: str = "") -> ConfigError:
    return ConfigError([ConfigProblem(path=path, found=found, expected=expected, hint=hint)])
