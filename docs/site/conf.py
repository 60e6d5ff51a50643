"""How Sphinx builds the site: ``nox -s docs`` lays the pages out beside a copy of this file."""

import builtins
from importlib.metadata import version as version_of
from typing import Any

from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain

from docs.site import api

project = "taskscaler"
author = "the taskscaler authors"
version = release = version_of("taskscaler")
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "py:obj"  # docstrings name things in single backticks: a link where there is one
toc_object_entries = False  # each has a heading

html_theme = "furo"
html_title = "taskscaler and fleeting"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["static"]
html_extra_path = ["root"]  # copied to where the site begins
html_css_files = ["site.css"]

myst_heading_anchors = 6
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["myst.header"]  # a page may skip a level

napoleon_use_rtype = False
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80


class Domain(PythonDomain):
    """Finds names where readers expect them."""

    def find_obj(self, env: Any, modname: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (Sphinx's own)
        """Look in gitlab_jobs from its own pages only, and from them nowhere else: neither knows of the other."""
        found = super().find_obj(env, modname, *args, **kwargs)
        name, apart = args[1], "gitlab_jobs"
        if name in vars(builtins):
            return []
        own = env.docname.rpartition("/")[2].partition(".")[0] == apart
        return [each for each in found if (each[0].partition(".")[0] == apart) is own]


def setup(app: Sphinx) -> None:
    """Have signatures and fields shown as readers need them."""
    app.add_domain(Domain, override=True)
    app.connect(
        "autodoc-process-signature",
        lambda _app, _what, _name, value, _options, shown, returned: (api.signature(value, shown), returned),
    )
    app.connect(
        "autodoc-process-docstring",
        lambda _app, what, _name, _value, _options, lines: api.described(what, lines),
        priority=400,  # before napoleon reads it
    )
