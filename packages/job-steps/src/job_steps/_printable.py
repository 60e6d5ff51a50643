"""Text for terminals."""


def printable(text: str) -> str:
    """Replace what would control a terminal: errors and logs have text in them that steps have chosen."""
    return "".join(each if each.isprintable() or each in "\n\t" else "\ufffd" for each in text)
