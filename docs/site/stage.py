"""The pages of the site, from the repository's: pure, but for reading and writing files.

Pages in the repository are written for those who read them there, beside the code. The site's differ in where they are,
in what their links lead to, and in a few marks that only one of both understands.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from posixpath import basename, dirname, join, normpath, relpath

HOME = "https://github.com/taskscaler/taskscaler"
"""Where the repository is published: what is not on the site is linked there."""

_PUBLISHED = f"{HOME}/blob/main/"

FRONT = "docs/README.md"
"""The page that becomes the front page; its lists make the navigation."""

_LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLAIN = re.compile(r"^```(?:csv|jsonl)$", re.MULTILINE)
"""Languages that repositories know and the site does not."""

_TARGET = re.compile(r'<a id="([^"]+)"></a>')
_SECTION = re.compile(r"^## ([^\n:]+).*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CHANGE = re.compile(r"^ *(\S+) --> (\S+)(?:: (.*))?$", re.MULTILINE)


def places(root: Path) -> dict[str, str]:
    """Where each page of the repository is on the site: paths from the root of both."""
    found = sorted(path.relative_to(root).as_posix() for path in root.glob("docs/*/*.md"))
    pages = {path: path.removeprefix("docs/") for path in found}
    for package in sorted(path.parent for path in root.glob("packages/*/pyproject.toml")):
        pages[f"packages/{package.name}/README.md"] = f"packages/{package.name}.md"
        pages[f"packages/{package.name}/CHANGELOG.md"] = f"changelogs/{package.name}.md"
    return {**pages, FRONT: "index.md", "CONTRIBUTING.md": "contributing.md"}


def stage(text: str, source: str, pages: Mapping[str, str]) -> str:
    """Make a page of the site of one of the repository.

    Args:
        text: The page.
        source: Its path in the repository.
        pages: All pages, as `places` has them.
    """
    text = _outside_of_blocks(text, lambda prose: _LINK.sub(lambda link: f"]({lead(link[1], source, pages)})", prose))
    text = _TARGET.sub(lambda target: f"[]{{#{target[1].lower()}}}", text)
    text = _PLAIN.sub("```text", text)
    return _DIAGRAM.sub(lambda block: as_table(block[1]), text)


def lead(link: str, source: str, pages: Mapping[str, str]) -> str:
    """Where a link of a page leads on the site: to a page there, or to the repository where it is published."""
    path, mark, heading = link.partition("#")
    if link.startswith(_PUBLISHED):
        target = path.removeprefix(_PUBLISHED)
    elif "://" in link or not path:
        return link
    else:
        target = normpath(join(dirname(source), path))
    here = dirname(pages[source]) or "."
    if target in pages:
        return relpath(pages[target], here) + mark + heading.lower()  # as the site's generator keeps them
    if target.startswith("docs/pictures/"):
        return relpath(target.removeprefix("docs/"), here)
    kind = "blob" if "." in basename(target) or target == "LICENSE" else "tree"
    return f"{HOME}/{kind}/main/{target}{mark}{heading}"


def as_table(diagram: str) -> str:
    """A diagram of states, which repositories draw, as a table of its changes."""
    rows = [
        f"| {' | '.join(part.replace('[*]', '') or '' for part in (before, why or '', after))} |"
        for before, after, why in _CHANGE.findall(diagram)
    ]
    return "\n".join(["| from | when | to |", "|---|---|---|", *rows])


def navigation(front: str) -> list[str]:
    """The tables of contents of the front page, which are not shown there: one for each of its sections."""
    return [
        f"\n```{{toctree}}\n:hidden:\n:caption: {section[1]}\n\n{listed}\n```\n"
        for section in _SECTION.finditer(front)
        if (listed := "\n".join(dict.fromkeys(_pages_of(section[0]))))
    ]


def index(pages: Mapping[str, str]) -> str:
    """Lists of pages that the documentation's own index does not have, for the front page."""
    packages = "".join(f"- [{to[9:-3]}]({to})\n" for to in pages.values() if to.startswith("packages/"))
    changes = "".join(f"- [{to[11:-3]}]({to})\n" for to in pages.values() if to.startswith("changelogs/"))
    project = "- [Contributing](contributing.md)\n"
    return f"\n## Packages\n\n{packages}\n## Changelogs\n\n{changes}\n## Project\n\n{project}"


def index_for_programs(front: str, pages: Mapping[str, str]) -> str:
    """Make ``llms.txt``, the index of the documentation for programs: its own, with links to the pages as text.

    Source: the proposal at llmstxt.org.

    Args:
        front: The documentation's index.
        pages: All pages, as `places` has them.
    """
    title, summary, rest = _LINK.sub(lambda link: f"]({_as_text(link[1])})", front).split("\n\n", 2)
    introduction, mark, sections = rest.partition("\n## ")
    agents = (
        f"- [Drive the command line from a program]({_as_text('guides/agents.md')}): what is safe, exit statuses, JSON"
    )
    packages = [path for path in pages if path.startswith("packages/") and path.endswith("/README.md")]
    readmes = "".join(f"- [{path.split('/')[1]}]({_as_text(f'../{path}')})\n" for path in packages)
    return (
        f"{title}\n\n> {summary}\n\n{introduction.strip()}\n\n## For programs that run the commands\n\n{agents}\n"
        f"{mark}{sections.rstrip()}\n\n## Packages\n\n{readmes}"
    )


def _as_text(link: str) -> str:
    """Where a page that the documentation's index links to is published as it stands in the repository."""
    path, mark, heading = link.partition("#")
    return f"{HOME}/raw/main/{normpath(join(dirname(FRONT), path))}{mark}{heading}"


def _pages_of(section: str) -> list[str]:
    links = (link.partition("#")[0] for link in _LINK.findall(section))
    return [link.removesuffix(".md") for link in links if link.endswith(".md") and "://" not in link]


def _outside_of_blocks(text: str, change: Callable[[str], str]) -> str:
    """Change the prose of a page, and leave its blocks of code as they are."""
    parts, end = [], 0
    for block in _BLOCK.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])
