"""How Sphinx builds the site: `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # this checkout, and not what is installed

from perfmodel.version import __version__

project = "perfmodel"
author = copyright = "The perfmodel developers"  # noqa: A001
release = version = __version__

extensions = [
    "sphinx.ext.autodoc",
    "numpydoc",
    "myst_parser",
    "sphinx_copybutton",
    "sphinx_design",
    "docs.extensions.site",
]
exclude_patterns = ["_build", "extensions"]
default_role = "code"
nitpicky = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False
numpydoc_show_class_members = False
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_here_doc_delimiter = "EOF"

html_title = "perfmodel"
html_theme = "pydata_sphinx_theme"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_js_files = ["steps.js"]
html_copy_source = False
html_show_search_summary = False  # it would be fetched, which pages from files may not
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc", "twin-link"],
    "search_bar_text": "Search",
}
templates_path = ["_templates"]
