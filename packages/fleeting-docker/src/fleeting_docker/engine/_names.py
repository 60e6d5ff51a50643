"""Image references, as Docker reads them. Pure."""

DOCKER_HUB = "docker.io"


def registry_of(image: str) -> str:
    """Name the registry that an image comes from: ``host`` or ``host:port``."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named else DOCKER_HUB


def canonical(image: str) -> str:
    """Give a reference its tag, if it has neither tag nor digest: without one, Docker pulls every tag."""
    if "@" in image or ":" in image.rpartition("/")[2]:
        return image
    return f"{image}:latest"
