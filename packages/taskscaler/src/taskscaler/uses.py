"""For those that run jobs in slots, and tell what these used: few of many steps, in words, and nothing that cannot be.

May change with any minor version.
"""

from taskscaler._uses import (
    dearest,
    in_words,
    limit_in_words,
    possible_steps,
    possible_usage,
    together,
    took_in_words,
    used_in_words,
)

__all__ = [
    "dearest",
    "in_words",
    "limit_in_words",
    "possible_steps",
    "possible_usage",
    "together",
    "took_in_words",
    "used_in_words",
]
