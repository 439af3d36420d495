"""How Sphinx builds this site: ``make docs``. Nothing is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import besiege

project = "besiege"
author = "besiege contributors"
copyright = author
release = version = besiege.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "pages"]
exclude_patterns = ["_build", "_ext", "notebooks"]
default_role = "literal"
nitpicky = False

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings have them
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

html_theme = "furo"
html_title = "besiege"
html_static_path = ["_static"]
html_css_files = ["besiege.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#8a3b12", "color-brand-content": "#8a3b12"},
    "dark_css_variables": {"color-brand-primary": "#f0a070", "color-brand-content": "#f0a070"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
