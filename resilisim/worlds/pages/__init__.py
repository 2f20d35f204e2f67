"""The pages world: a fictional encyclopedia with one search, and six kinds of questions over several of its pages."""

from resilisim.worlds.pages.generated import guess_rates
from resilisim.worlds.pages.hotpotqa_and_loft import hotpotqa_world, loft_world

__all__ = ["guess_rates", "hotpotqa_world", "loft_world"]
