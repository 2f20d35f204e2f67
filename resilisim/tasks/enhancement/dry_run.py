"""What a run would ask, before anything is asked: calls, and tokens by estimate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from resilisim.chat import ChatRequest
from resilisim.chat.types import estimated_prompt_tokens
from resilisim.tasks.enhancement.enhancer import EnhancementMode, EnhancementOptions
from resilisim.tasks.enhancement.outcomes import MAX_DETAIL_LENGTH
from resilisim.tasks.enhancement.prompting import LONGEST_REPEATED_ANSWER, correction
from resilisim.tasks.types import Task


@dataclass(frozen=True, slots=True)
class CallForecast:
    """What would be asked.

    Attributes:
        tasks: Tasks to be enhanced.
        cached: First questions whose answers are in the cache.
        calls: Calls if each first answer can be used.
        most_calls: Calls if each answer but the last is sent back.
        prompt_tokens_estimate: Prompt tokens of `calls`, by the rule of `resilisim.chat.types`.
        most_prompt_tokens_estimate: Prompt tokens of `most_calls`, by the same rule.
        most_completion_tokens: Largest number of tokens that the answers of `calls` can have.
        most_completion_tokens_with_re_asks: The same of `most_calls`.
    """

    tasks: int
    cached: int
    calls: int
    most_calls: int
    prompt_tokens_estimate: int
    most_prompt_tokens_estimate: int
    most_completion_tokens: int
    most_completion_tokens_with_re_asks: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the forecast as JSON values."""
        return dataclasses.asdict(self)


def forecast_calls(
    tasks: Iterable[Task],
    mode: EnhancementMode,
    options: EnhancementOptions,
    is_cached: Callable[[ChatRequest], bool] = lambda request: False,
) -> CallForecast:
    """Count what a run would ask; nothing is asked.

    Args:
        tasks: The tasks that are still to be enhanced.
        mode: What would be asked.
        options: How.
        is_cached: Whether the answer to a request is known.
    """
    num_tasks = cached = prompt_tokens = most_prompt_tokens = 0
    for task in tasks:
        num_tasks += 1
        request = options.request(mode.ask(task))
        tokens = estimated_prompt_tokens(request)
        if is_cached(request):
            cached += 1
        else:
            prompt_tokens += tokens
            most_prompt_tokens += tokens
        most_prompt_tokens += sum(
            tokens + repetition * _tokens_of_correction(options) for repetition in range(1, 1 + options.re_asks)
        )
    calls, most_calls = num_tasks - cached, num_tasks * (1 + options.re_asks) - cached
    return CallForecast(
        tasks=num_tasks,
        cached=cached,
        calls=calls,
        most_calls=most_calls,
        prompt_tokens_estimate=prompt_tokens,
        most_prompt_tokens_estimate=most_prompt_tokens,
        most_completion_tokens=calls * options.max_tokens,
        most_completion_tokens_with_re_asks=most_calls * options.max_tokens,
    )


def _tokens_of_correction(options: EnhancementOptions) -> int:
    """Return about how many tokens a refused answer and the longest reason add to a prompt."""
    frame = estimated_prompt_tokens(ChatRequest(correction("", "x" * MAX_DETAIL_LENGTH)))
    return frame + min(options.max_tokens, LONGEST_REPEATED_ANSWER)
