"""What settings of several groups have to be."""

import re

import attrs

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
A_NAME = "1 to 64 letters, digits, dots, dashes and underscores, starting with a letter or digit"


def is_name(_: object, __: "attrs.Attribute[str]", value: str) -> None:
    """Refuse what cannot begin an instance's id."""
    if not NAME.fullmatch(value):
        raise ValueError(A_NAME)
