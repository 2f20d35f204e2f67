"""The pages world: a fictional encyclopedia with one search, and six kinds of questions over several of its pages."""

from resilisim.worlds.pages.graph import Graph, generate_graph
from resilisim.worlds.pages.prose import Page, write_pages

__all__ = ["Graph", "Page", "generate_graph", "write_pages"]
