"""Which prompt an episode begins with, as people write it: a type, and for a flawed one which flaw."""

from __future__ import annotations

from dataclasses import dataclass

from resilisim.errors import InvalidInputError, unknown_name
from resilisim.seeding import Draws
from resilisim.tasks import Task
from resilisim.workflows.flaws import DEFAULT_SEVERITY, FLAW_TYPES, FlawedWorkflow, FlawRefusal, Perturber, check_flaw
from resilisim.workflows.model import Workflow
from resilisim.workflows.prompts import PROMPT_TYPES

FLAWED = "flawed"
SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class PromptChoice:
    """A prompt type; for "flawed" also which flaw."""

    type: str
    flaw: str | None = None  # None draws, for each task, one that its plan can carry
    severity: str = DEFAULT_SEVERITY
    method: str | None = None  # None draws it

    def flawed(self, perturber: Perturber, workflow: Workflow, task: Task) -> FlawedWorkflow | FlawRefusal:
        """Return the flawed workflow of a task, or why its plan cannot carry the flaw."""
        if self.flaw is not None:
            return perturber.perturb(workflow, task.required_tools, self.flaw, self.severity, self.method)
        drawn = Draws("resilisim/flaw-type", task.instance_id).shuffled(FLAW_TYPES)
        return perturber.first_carried(workflow, task.required_tools, drawn, self.severity)


def parse_prompt_choice(text: str) -> PromptChoice:
    """Read "TYPE", "flawed:FLAW", "flawed:FLAW:SEVERITY" or "flawed:FLAW:SEVERITY:METHOD"."""
    prompt_type, *parts = text.split(SEPARATOR)
    if prompt_type not in PROMPT_TYPES:
        raise unknown_name("prompt type", prompt_type, PROMPT_TYPES)
    if not parts:
        return PromptChoice(prompt_type)
    if prompt_type != FLAWED or len(parts) > 3:
        raise InvalidInputError(
            f"prompt {text!r}: expected one of {', '.join(PROMPT_TYPES)}, or flawed:FLAW:SEVERITY:METHOD, "
            "of which the last two may be left out"
        )
    choice = PromptChoice(prompt_type, *parts)
    check_flaw(parts[0], choice.severity, choice.method)
    return choice
