"""The exact optimum as a policy: the ceiling, played out."""

from __future__ import annotations

import functools

from resilisim.envs.session import Info
from resilisim.policies.scripted import messages
from resilisim.simulator.exact import solve
from resilisim.simulator.problem import Problem
from resilisim.simulator.state import EpisodeState
from resilisim.workflows.steps import step_parameters


class ExactOptimumPolicy:
    """Sends a message with the highest Q* in every state, and reports completion when all is done.

    It is privileged: it is told the problem (law, end rules, required list) and the state, though not the luck. Its
    mean success is V* of the start, which no agent that does not know its luck can beat.
    """

    name = "exact-optimum"
    privileged = True

    def reset(self, observation: str, info: Info) -> None:
        """Nothing is kept between messages."""

    def act(self, observation: str, info: Info) -> str | None:
        """Return an optimal message.

        Raises:
            ExactLimitError: The task is too large to be solved exactly.
        """
        state: EpisodeState = info["state"]
        return _best_message(info["problem"], state.status, state.counters)


# The same states come up again in other episodes of a task. Which executions of a tool were the earlier ones matters to
# luck alone, so their numbers are left out.
@functools.lru_cache(maxsize=20_000)
def _best_message(problem: Problem, status: tuple[int, ...], counters: tuple[int, ...]) -> str:
    best = solve(problem).best_action(EpisodeState(status, counters, (0,) * problem.num_tools))
    if best.kind == "execute" and best.tool is not None:
        # Parameters that say nothing, so that the call is accepted in strict mode too.
        return messages.call(best.tool, step_parameters(problem.library[best.tool], {}, None))
    # A search leaves a row of equal calls before the loop rule ends the episode.
    return messages.FINISH if best.kind == "finish" else messages.search(best.query or "")
