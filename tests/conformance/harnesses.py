"""What harnesses of several groups have in common."""

WHAT_TAKES_AN_ENDPOINT = (
    "troubles",
    "launch",
    "set_state",
    "secrets",
    "writes",
    "requests",
    "trouble_after",
    "room",
    "elsewhere",
    "respelled",
)
"""What a harness cannot have where no cloud of ours answers requests."""
