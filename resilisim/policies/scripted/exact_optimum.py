"""The exact optimum as a policy: the ceiling, played out."""

from __future__ import annotations

from resilisim.policies.base import Info
from resilisim.policies.scripted import messages
from resilisim.simulator.exact import solve


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
        best = solve(info["problem"]).best_action(info["state"])
        if best.kind == "execute" and best.tool is not None:
            return messages.call(best.tool)
        return messages.FINISH
