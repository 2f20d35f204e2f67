"""What a failed episode is put down to: the first failure that nothing has made good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from resilisim.policies.llm.plan_execute.plan import PlanStep, StepError, StepOutcome
from resilisim.policies.llm.plan_execute.references import references_in
from resilisim.policies.llm.run import AgentRun


class OpenFailures:
    """The failures of one attempt's steps that are not made good yet.

    Steps that a replan brings in after a failure are there for its sake and belong to its line, and so does a step that
    does once more what failed, or that was not done because it needs what failed; every other step begins a line of its
    own. The success of a step makes good what failed
    in its line, and nothing else.

    Args:
        task: The task, in which nothing is a reference to a step.
    """

    def __init__(self, task: str = "") -> None:
        self._task = task
        self._lines: dict[int, int] = {}  # number of a step -> number of the step with which its line began
        self._open: dict[int, StepError] = {}  # the first failure of each line

    def see(self, outcome: StepOutcome) -> None:
        """Take in what became of a step."""
        step, error = outcome.step, outcome.error
        if error is not None and error.kind == "reference":
            needed = sorted({*(step.needs or ()), *references_in(step.arguments, (self._task,)).numbers})
            cause = next((number for number in needed if self._line(number) in self._open), step.number)
            self._lines[step.number] = self._line(cause)
        line = self._line(step.number)
        if error is None:
            self._open.pop(line, None)
        else:
            self._open.setdefault(line, error)

    def replan(self, steps: Iterable[PlanStep], before: Sequence[PlanStep], past: Sequence[StepOutcome]) -> None:
        """Say which lines the steps of a new plan belong to.

        Args:
            steps: The steps.
            before: The steps that were still to be done.
            past: What became of the steps so far, the latest last.
        """
        failed = [outcome.step for outcome in reversed(past) if not outcome.ok]
        latest = past[-1].step if past and not past[-1].ok else None
        for step in steps:
            if any(step.number == other.number or step.does_the_same_as(other) for other in before):
                continue
            again = next((other for other in failed if _is_repeated_by(other, step)), latest)
            if again is not None:
                self._lines[step.number] = self._line(again.number)

    def first(self) -> StepError | None:
        """Return the first failure that is open, if there is one."""
        return next(iter(self._open.values()), None)

    def _line(self, number: int) -> int:
        return self._lines.get(number, number)


def _is_repeated_by(failed: PlanStep, step: PlanStep) -> bool:
    """Tell whether a step is another one once more: the same call, or the same words without one."""
    if step.tool is None:
        return failed.tool is None and step.task == failed.task
    return (step.tool, dict(step.arguments)) == (failed.tool, dict(failed.arguments))


class FailureNotes:
    """Failures that will be written down when the episode ends, unless an answer makes them good.

    Args:
        run: The episode.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._kept: list[tuple[str, str, str]] = []

    def add(self, component: str, message: str, words: str = "") -> None:
        """Keep a failure: the component, what is wrong, and the words in question."""
        self._kept.append((component, message, words))

    def forget(self) -> None:
        """Drop what is kept: a later attempt came to an answer."""
        self._kept.clear()

    def write_down(self) -> None:
        """Write down what is kept, in order."""
        for component, message, words in self._kept:
            self._run.note("failure", component, message, **({"excerpt": words} if words else {}))
        self._kept.clear()
