"""How Sphinx builds the site: ``nox -s docs`` lays the pages out beside a copy of this file."""

from importlib.metadata import version as version_of

from sphinx.application import Sphinx

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


def setup(app: Sphinx) -> None:
    """Have signatures and fields shown as readers need them."""
    app.connect(
        "autodoc-process-signature",
        lambda _app, _what, _name, value, _options, shown, returned: (api.signature(value, shown), returned),
    )
    app.connect(
        "autodoc-process-docstring",
        lambda _app, what, _name, _value, _options, lines: api.described(what, lines),
        priority=400,  # before napoleon reads it
    )
