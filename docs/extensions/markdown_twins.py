"""Each page also as Markdown, for programs that read: `PAGE.md` beside `PAGE.html`, `llms.txt` and `llms-full.txt`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx_markdown_builder.builder import MarkdownBuilder

INTRODUCTION = """\
# ResiliSim

> Tools that fail by a known law, with a Gymnasium API: thirty simulated ones, libraries of your own, worlds in which
> calls really run, and your own functions or MCP servers under a law. The best possible success rate of a task is
> computed; agents meet the same draws, every lost point is traced to luck or to one call, and luck is removed from
> scores. Python 3.11 or newer, Apache-2.0. On no package index: install from a clone.

Import `resilisim`; the command is `resilisim`. Environments: `resilisim/Conversation-v0` (text messages) and
`resilisim/Workflow-v0` (integers, vectorised). A policy is any object with `reset(observation, info)` and
`act(observation, info)`. All pages in one file: [llms-full.txt](llms-full.txt).
"""


def write_twins(app: Sphinx, failure: Exception | None) -> None:
    """Write the pages that the site has, once it stands."""
    if failure is not None or app.builder.format != "html":
        return
    builder = MarkdownBuilder(app, app.env)
    builder.init()
    builder.prepare_writing(set())
    pages = ordered(app)
    for page in [*pages, *sorted(app.env.found_docs - set(pages))]:
        builder.write_doc(page, plain(app.env.get_and_resolve_doctree(page, builder, tags=app.tags)))
    folder = Path(app.outdir)
    (folder / "llms.txt").write_text(contents(app), encoding="utf-8")
    texts = [(folder / f"{page}.md").read_text(encoding="utf-8").strip() for page in pages]
    (folder / "llms-full.txt").write_text("\n\n---\n\n".join(texts) + "\n", encoding="utf-8")


def plain(page: nodes.document) -> nodes.document:
    """Return a page with what the Markdown builder does not know put as text: cards, tabs, captions, abbreviations."""
    for node in list(page.findall(nodes.Element)):
        children = [each for child in node.children for each in _known(child)]
        if children != node.children:  # by their parents, since nodes of tabs do not say whose they are
            node.clear()
            node.extend(children)
    return page


def _known(node: nodes.Node) -> list[nodes.Node]:
    match type(node).__name__:
        case "sd_tab_input":
            return []
        case "sd_tab_label" | "caption":
            return [nodes.paragraph("", "", nodes.strong("", node.astext()))]
        case "PassthroughTextElement" | "abbreviation":
            return [each for child in node.children for each in _known(child)]
    return [node]


def ordered(app: Sphinx) -> list[str]:
    """Return the pages in the order of the contents."""
    pages: list[str] = []

    def add(page: str) -> None:
        if page not in pages:
            pages.append(page)
            for below in app.env.toctree_includes.get(page, ()):
                add(below)

    add(app.config.root_doc)
    return pages


def contents(app: Sphinx) -> str:
    """Return `llms.txt`: what this is, and every page with its first sentence, under the captions of the contents."""
    lines = [INTRODUCTION]
    for tree in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        lines += [f"## {tree['caption']}", ""]
        for _, page in tree["entries"]:
            lines += [entry(app, page), *(f"  {entry(app, below)}" for below in app.env.toctree_includes.get(page, ()))]
        lines.append("")
    return "\n".join(lines)


def entry(app: Sphinx, page: str) -> str:
    """Return a page's line: its title, its address, and the first sentence of its text."""
    paragraph = next(app.env.get_doctree(page).findall(nodes.paragraph), None)
    text = "" if paragraph is None else re.split(r"(?<=[.?!:])\s", " ".join(paragraph.astext().split()))[0]
    return f"- [{app.env.titles[page].astext()}]({page}.md)" + (f": {text.rstrip(':')}" if text else "")


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the twins when the site is built."""
    app.setup_extension("sphinx_markdown_builder")
    app.connect("build-finished", write_twins)
    return {"parallel_read_safe": True}
