"""The pages world: a fictional encyclopedia with one search, and six kinds of questions over several of its pages."""

from resilisim.worlds.pages.generated import PAGES_VERSION, Recipe, generated_world, guess_rates, pages_v1
from resilisim.worlds.pages.graph import Graph, generate_graph
from resilisim.worlds.pages.originals import hotpotqa_world, loft_world
from resilisim.worlds.pages.prose import Page, write_pages
from resilisim.worlds.pages.world import Encyclopedia, PagesWorld, question_task

__all__ = [
    "PAGES_VERSION",
    "Encyclopedia",
    "Graph",
    "Page",
    "PagesWorld",
    "Recipe",
    "generate_graph",
    "generated_world",
    "guess_rates",
    "hotpotqa_world",
    "loft_world",
    "pages_v1",
    "question_task",
    "write_pages",
]
