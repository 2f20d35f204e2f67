"""ReAct as a policy: one loop over the tools of the environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from resilisim.policies.llm.options import AgentOptions, limit
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.llm.react.loop import FINISH_FORM, LONGEST_OBSERVATION, LoopStep, loop_instructions, react_loop
from resilisim.policies.llm.run import AgentRun


@dataclass(frozen=True, slots=True, kw_only=True)
class ReActOptions(AgentOptions):
    """Options of ReAct."""

    steps: int = limit(20, "steps of the loop; 100 is the control for runs that hit their limit", least=1)
    observation_chars: int = limit(LONGEST_OBSERVATION, "characters after which an observation is cut", least=100)


class ReAct(LlmPolicy[ReActOptions]):
    """Thought, action, observation, until it finishes or has used its steps (Yao et al., 2023).

    Its calls are counted under "agent". With native calls the model's words beside a call are its thought.
    """

    name = "react"
    options_class = ReActOptions
    components = ("agent",)
    uses_native_calls = True
    finish_form = FINISH_FORM

    async def play(self, run: AgentRun) -> str | None:
        """Run the loop on the task; the answer is what finish was given."""
        taken: list[dict[str, Any]] = []
        run.structure["steps"] = taken

        def keep(step: LoopStep) -> None:
            taken.append(step.to_mapping())

        result = await react_loop(
            run,
            role="agent",
            system=loop_instructions(run, self.prompts),
            question=run.task,
            tools=run.tools,
            steps=self.options.steps,
            prompts=self.prompts,
            longest_observation=self.options.observation_chars,
            on_step=keep,
        )
        return result.answer
