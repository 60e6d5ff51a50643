"""Names of machines and jobs, where there is little room for them."""


def shortened(name: str, most: int) -> str:
    """Leave the middle out of a name of more than *most* characters: both ends of an instance's id mean something."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"
