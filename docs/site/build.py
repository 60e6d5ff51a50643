"""Builds the site: ``nox -s docs``, or ``python -m docs.site.build DIRECTORY``."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.cmd.build import build_main

from docs.site import api, stage

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def main(target: Path) -> int:
    """Build the site into a directory; returns what to exit with. A warning is an error."""
    with TemporaryDirectory() as directory:
        pages = Path(directory) / "pages"
        lay_out(pages)
        status: int = build_main(
            ["-b", "html", "-W", "--keep-going", "-q", "-d", str(Path(directory) / "trees"), str(pages), str(target)]
        )
        return status


def lay_out(target: Path) -> None:
    """Put everything that Sphinx reads into a directory."""
    places = stage.places(ROOT)
    pages = {to: stage.stage((ROOT / source).read_text(), source, places) for source, to in places.items()}
    pages |= dict(api.pages())
    front = pages["index.md"] + api.index() + stage.index(places)
    pages["index.md"] = front + "".join(stage.navigation(front))
    for place, text in pages.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text)
    (target / "root").mkdir()
    (target / "root" / "llms.txt").write_text(stage.index_for_programs((ROOT / stage.FRONT).read_text(), places))
    shutil.copytree(ROOT / "docs/pictures", target / "pictures", ignore=shutil.ignore_patterns("*.py"))
    shutil.copytree(HERE / "static", target / "static")
    shutil.copy(HERE / "conf.py", target)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
