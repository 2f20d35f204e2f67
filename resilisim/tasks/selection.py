"""Which tools a task needs: four rules, of which each type of task has one.

- `matched`: for each step of the type's skeleton a tool that does it, found by meaning; fewer tools drop middle steps.
- `random`: any tools of the library.
- `category`: one tool of a drawn category, alone or with a tool that validates or logs; or any two tools.
- `paths`: the longest path of the dependency graph to a tool that computes, and further paths, which begin or end in
  the chain or stand beside it, until there are enough tools. All but those at which a path begins follow one that
  they depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from resilisim.seeding import Draws
from resilisim.tasks.matching import Candidates
from resilisim.tasks.task import SkeletonStep, TaskTemplate, sorted_by_dependencies
from resilisim.tool_library.library import ToolLibrary
from resilisim.tool_library.tool import SEMANTIC_TYPES

EXTRA_SHARE = 1 / 3  # of the tasks of two tools: how many pair a category's tool with one that validates or logs

# The place of a tool in a work order that no skeleton orders: as data flows; without a role it is amid processors.
_PLACE_OF_ROLE = {role: place for place, role in enumerate(SEMANTIC_TYPES)} | {None: 1}

# The step that each tool of a task was matched to; None where it was not chosen by meaning.
ChosenTools: TypeAlias = dict[str, SkeletonStep | None]


@dataclass(frozen=True, slots=True)
class ToolPool:
    """What tools are drawn from: a library, its tools that texts can ask for, and those that match each step."""

    library: ToolLibrary
    usable: tuple[str, ...]  # in the library's order
    candidates: Mapping[SkeletonStep, Candidates]

    def draw_match(self, step: SkeletonStep, chosen: Mapping[str, object], draws: Draws) -> str | None:
        """Draw a tool for a step, the better matches more often; None if all are chosen already."""
        free = {tool: weight for tool, weight in self.candidates[step].items() if tool not in chosen}
        return draws.weighted(tuple(free), tuple(free.values())) if free else None


def draw_tools(template: TaskTemplate, draws: Draws, pool: ToolPool) -> ChosenTools:
    """Draw the tools of a task of some type, in the order in which they are required, each with its step."""
    number = draws.weighted(tuple(template.num_tools), tuple(template.num_tools.values()))
    chosen = _RULES[template.selection](template, min(number, len(pool.usable)), draws, pool)
    names = list(chosen)
    if template.selection != "matched":
        names.sort(key=lambda name: _PLACE_OF_ROLE[pool.library[name].semantic_type])
    return {name: chosen[name] for name in sorted_by_dependencies(names, pool.library)}


def _matched(template: TaskTemplate, number: int, draws: Draws, pool: ToolPool) -> ChosenTools:
    steps = list(template.steps)
    while len(steps) > max(number, 2):
        del steps[draws.between(1, len(steps) - 2)]
    chosen: ChosenTools = {}
    for step in steps:
        name = pool.draw_match(step, chosen, draws)
        if name is not None:
            chosen[name] = step
    return chosen


def _random(template: TaskTemplate, number: int, draws: Draws, pool: ToolPool) -> ChosenTools:
    return dict.fromkeys(draws.shuffled(pool.usable)[:number])


def _of_category(template: TaskTemplate, number: int, draws: Draws, pool: ToolPool) -> ChosenTools:
    if number > 1 and draws.uniform() >= EXTRA_SHARE:
        return _random(template, number, draws, pool)
    categories = tuple(dict.fromkeys(pool.library[name].category for name in pool.usable))
    category = draws.choice(categories)
    chosen: ChosenTools = {
        draws.choice([name for name in pool.usable if pool.library[name].category == category]): None
    }
    if number > 1:
        step = draws.choice(template.matched_steps)
        name = pool.draw_match(step, chosen, draws)
        if name is not None:
            chosen[name] = step
    return chosen


def _paths(template: TaskTemplate, number: int, draws: Draws, pool: ToolPool) -> ChosenTools:
    (step,) = template.matched_steps
    end = pool.draw_match(step, {}, draws)
    chain = _path_to(end, (), draws, pool, longest=True)[-number:] if end is not None else ()
    while len(chain) < number:
        chain += _further_path(chain, number - len(chain), draws, pool)
    return {name: step if name == end else None for name in chain}


def _further_path(chain: Sequence[str], most: int, draws: Draws, pool: ToolPool) -> tuple[str, ...]:
    """Return a path of tools that are not in the chain; where the graph has none that is short enough, any tool."""
    ends = [name for name in draws.shuffled(pool.usable) if name not in chain]
    for end in ends:
        path = _path_to(end, chain, draws, pool)
        follows = any(name in chain for name in pool.library.dependencies(path[0]))
        leads = any(end in pool.library.dependencies(name) for name in chain)
        if len(path) <= most and (len(path) > 1 or follows or leads):
            return path
    return (ends[0],)


def _path_to(end: str, chain: Sequence[str], draws: Draws, pool: ToolPool, *, longest: bool = False) -> tuple[str, ...]:
    """Walk from a tool back along dependencies, drawn at random, to one without or to the chain; return it forwards."""
    path = [end]
    while needed := [name for name in pool.library.dependencies(path[0]) if name in pool.usable]:
        levels = [pool.library[name].dependency_metadata.level for name in needed]
        furthest = [name for name, level in zip(needed, levels, strict=True) if level == max(levels)]
        before = draws.choice(furthest if longest else needed)
        if before in chain:
            break
        path.insert(0, before)
    return tuple(path)


_RULES: Mapping[str, Callable[[TaskTemplate, int, Draws, ToolPool], ChosenTools]] = {
    "matched": _matched,
    "random": _random,
    "category": _of_category,
    "paths": _paths,
}
