"""Configuration of the documentation site: `make docs` builds it, and every warning is an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
linkcheck_anchors = False
smartquotes_action = "qe"  # no dashes: texts name options, such as --reset


def setup(app: Sphinx) -> None:
    """Leave decisions out of the search: who looks for a word wants to know how it is, not why."""

    def hide(app: Sphinx, doctree: nodes.document) -> None:
        if app.env.docname.startswith("decisions"):
            app.env.metadata[app.env.docname]["nosearch"] = True

    app.connect("doctree-read", hide)
