"""Configuration of the documentation site: `make docs` builds it, and every warning is an error."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

import resilisim

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

# Pages that run commands find those of this environment.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

project = "ResiliSim"
author = "The ResiliSim developers"
copyright = "The ResiliSim developers, Apache-2.0"
version = release = resilisim.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "command_reference",
    "docstrings",
    "markdown_twins",
    "mathml",
    "records",
]
exclude_patterns = ["_build", "extensions"]
default_role = "code"

# Markdown
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "linkify", "substitution"]
myst_heading_anchors = 3
myst_substitutions = {"version": version}
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_merge_streams = True
nb_execution_timeout = 600
nb_execution_raise_on_error = True

# Docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = False  # the signature has the types
maximum_signature_line_length = 88

# Pages
html_theme = "furo"
html_math_renderer = "mathml"
html_title = "ResiliSim"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "extensions/search_scores.js")
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
linkcheck_anchors = False
smartquotes_action = "qe"  # no dashes: texts name options, such as --reset


LISTING = re.compile(r'<div class="highlight-(?:console|sh) .*?</pre>', flags=re.DOTALL)
OPTION = re.compile(r"(?<=[\s\[(>])--?[a-z][\w-]*(?![\w-]*=\")")


def keep_options_whole(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Mark the options in commands: a browser that wraps a long line would break them after their hyphens."""
    if "body" in context:
        marked = r'<span class="option">\g<0></span>'
        context["body"] = LISTING.sub(lambda listing: OPTION.sub(marked, listing.group()), context["body"])


def leave_decisions_out_of_the_search(app: Sphinx, doctree: nodes.document) -> None:
    """Who looks for a word wants to know how it is, not why."""
    if app.env.docname.startswith("decisions"):
        app.env.metadata[app.env.docname]["nosearch"] = True


def setup(app: Sphinx) -> None:
    """Register what the pages of this site need beside the extensions."""
    app.connect("doctree-read", leave_decisions_out_of_the_search)
    app.connect("html-page-context", keep_options_whole)
