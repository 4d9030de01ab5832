"""Settings of the documentation site: `make docs`."""

import os
from importlib import metadata
from typing import Any

project = "pagefl"
author = copyright = "The pagefl authors"
version = release = metadata.version("pagefl")

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "index"  # index.rst includes index.md, which stays readable on a code host
exclude_patterns = ["index.md"]
templates_path: list[str] = []
suppress_warnings = ["myst.header"]  # pages that begin with a second-level heading

html_theme = "furo"
pygments_dark_style = "monokai"  # furo's own underlines the names of modules
html_title = f"pagefl {release}"
html_theme_options = {"navigation_with_keys": True}
html_favicon = "../src/pagefl/console/assets/icon.svg"
html_static_path = ["static"]
html_css_files = ["notebooks.css"]

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_preserve_defaults = True  # as the source writes them, not `<function <lambda>>`
python_maximum_signature_line_length = 88  # longer ones have a parameter on each line
autodoc_default_options = {"members": True}

nb_execution_mode = "auto"  # notebooks are kept without outputs, and executed here
nb_execution_raise_on_error = True
nb_execution_timeout = 300

# Links within the site are always checked, links to other hosts only if they can be reached.
linkcheck_ignore = [] if os.environ.get("PAGEFL_CHECK_EXTERNAL_LINKS") else [r"https?://"]

# Links that leave this folder on a code host lead to a page of the site.
ELSEWHERE = {"](../CONTRIBUTING.md": "](contributing.md", "](../../README.md": "](../index.rst"}


def _within_the_site(app: object, name: str, source: list[str]) -> None:
    for link, page in ELSEWHERE.items():
        source[0] = source[0].replace(link, page)


def setup(app: Any) -> None:
    app.connect("source-read", _within_the_site)
