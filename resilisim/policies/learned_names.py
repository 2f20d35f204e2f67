"""What remembering names of tools is worth: a policy that has read the training tasks and searches for nothing.

Where a prompt names no tools, they have to be searched for, and each search costs a turn. But the same thirty tools
come up in every task, so an agent that has seen some needs no search: a bag of words is enough. It is the row of a
table that shows how much of a score under such prompts can be memory.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

from resilisim.envs.reply import Info
from resilisim.policies.scripted import PlanFollower, ordered_steps
from resilisim.tasks import Task
from resilisim.tasks.benchmark import BENCHMARK_VERSION, benchmark_tasks
from resilisim.tasks.split import split_of
from resilisim.tasks.wording import clauses
from resilisim.tool_library import ToolLibrary, default_library
from resilisim.workflows import ExactPlanner, PlannedStep
from resilisim.workflows.prompts import parse_work_order

_NO_TOOL = ""  # the class of clauses that name no work
_WORDS = re.compile(r"[a-z]+")
_UNSEEN = 0.1  # times that a word counts as seen with a tool before any task was read


@dataclass(frozen=True, slots=True, eq=False)
class NameMemory:
    """Words that stood in the clauses for each tool: naive Bayes over bags of words.

    Attributes:
        num_clauses: Clauses read for each tool, and for none.
        num_with_word: Of these, how many had a word.
    """

    num_clauses: Mapping[str, int]
    num_with_word: Mapping[str, Mapping[str, int]]

    @classmethod
    def of_training_tasks(cls, benchmark: str = BENCHMARK_VERSION) -> NameMemory:
        """Read the tasks of a benchmark's training split whose orders are as many as their tools."""
        num_clauses, num_with_word = Counter[str](), defaultdict[str, Counter[str]](Counter)
        for task in benchmark_tasks(benchmark):
            steps = ordered_steps(task.description)
            if split_of(task.required_tools) != "train" or len(steps) != len(task.required_tools):
                continue
            tool_of = dict(zip(steps, task.required_tools, strict=True))
            for clause in clauses(task.description):
                tool = tool_of.get(clause, _NO_TOOL)
                num_clauses[tool] += 1
                num_with_word[tool].update(_words(clause))
        return cls(num_clauses, num_with_word)

    def names(self, work_order: str) -> tuple[str, ...]:
        """Return the tools that the clauses of a work order most likely ask for, in their order, each once."""
        return tuple(dict.fromkeys(self._likeliest(work_order)))

    def _likeliest(self, work_order: str) -> Iterator[str]:
        known = set().union(*self.num_with_word.values())
        for clause in clauses(work_order):
            words = _words(clause) & known
            tool = max(self.num_clauses, key=lambda name: self._log_likelihood(name, words))
            if tool != _NO_TOOL:
                yield tool

    def _log_likelihood(self, tool: str, words: set[str]) -> float:
        counted, total = self.num_with_word[tool], self.num_clauses[tool]
        return math.log(total) + sum(math.log((counted.get(word, 0) + _UNSEEN) / (total + 1.0)) for word in words)


def _words(clause: str) -> set[str]:
    return set(_WORDS.findall(clause.lower()))


training_memory = functools.cache(NameMemory.of_training_tasks)


class LearnedNames(PlanFollower):
    """Names the tools of a task from the words of its description, as the training tasks taught it, and never searches.

    It follows the exact planner's plan for the tools that it names, under the benchmark law. A plan in the prompt is
    not read. Names that a library does not have are left out; where none is left, it stops. `benchmark` is the version
    whose training tasks it has read.
    """

    name = "learned-names"

    def __init__(self, library: ToolLibrary | None = None, benchmark: str = BENCHMARK_VERSION) -> None:
        super().__init__(pass_parameters=False)
        self._benchmark = benchmark
        self._library = library if library is not None else default_library()
        self._planner = ExactPlanner(self._library)

    def reset(self, observation: str, info: Info) -> None:
        """Name the tools, and plan."""
        super().reset(observation, info)
        known = training_memory(self._benchmark).names(parse_work_order(observation))
        names = [name for name in known if self._library.resolve(name) == name]
        self._queries, self._steps = None, ()
        if names:
            guess = Task("guess", "", observation, {}, {}, tuple(names), {}, "", {}, observation)
            steps = self._planner.plan(guess).steps
            self._steps = tuple(
                PlannedStep(step.tool, max_tries=step.max_tries, skip_from=step.skip_from) for step in steps
            )

    def memory_beside_state(self) -> Hashable:
        """As of any follower: its plan is a function of the prompt."""
        return super().memory_beside_state()

    def _message(self, info: Info) -> str | None:
        return None if not self._steps and self._messages == 0 else super()._message(info)
