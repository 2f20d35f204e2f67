"""The check of one episode that was submitted: everything in its record has to follow from its messages and the draws.

The messages of agents of this package have to follow from the recorded words of their models. What cannot be checked is
claimed (`CLAIMS`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from resilisim.chat.prices import PriceTable
from resilisim.envs.conversation import ConversationEnv
from resilisim.envs.settings import EnvironmentSettings
from resilisim.errors import InvalidInputError, ResiliSimError, StoreError, one_line
from resilisim.evaluation.episode.record import EpisodeRecord, is_branch, tries_again
from resilisim.evaluation.episode.rejudging import compare_records, message_reader, rejudged
from resilisim.evaluation.episode.texts import has_agent_texts, opened, prompt_of
from resilisim.evaluation.run.plan import PlannedEpisode, PlannedEpisodes
from resilisim.evaluation.run.replay import play_again, recorded_models
from resilisim.evaluation.run.rescoring import check_origin
from resilisim.evaluation.run.store import record_in_line
from resilisim.policies.llm.policy import LlmPolicy
from resilisim.policies.registry import LLM_POLICIES, make_policy, split_options
from resilisim.tool_library import ToolLibrary, default_library

RefusalKind = Literal[
    "run",
    "privileged",
    "missing",
    "doubled",
    "other_episode",
    "tries_again",
    "texts",
    "record",
    "replay",
    "agent",
    "chain",
    "draws",
]
REASONS_TO_REFUSE: Final[Mapping[RefusalKind, str]] = {
    "run": "what the run was asked for is not what the set fixes",
    "privileged": "a policy sees what no agent may see",
    "missing": "episodes are missing",
    "doubled": "episodes stand there twice",
    "other_episode": "episodes are not those of the run",
    "tries_again": "an agent has tried again on the same draws",
    "texts": "what was said was left out",
    "record": "records do not follow from what happened",
    "replay": "the environment answers otherwise",
    "agent": "messages do not follow from what the model said",
    "chain": "lines are not as they were written",
    "draws": "a score above the ceiling, by more luck than an agent has that does not know the draws",
}

# Agents that can be played again from the recorded words of their models without running what a model wrote.
BOUND_AGENTS: Final = tuple(name for name in LLM_POLICIES if name not in ("code-act", "rp-react"))
_READ_FILES: Final = ("templates", "examples")  # options that name files

# What a submission says and no check can prove, by places in a record (a field, with those in it).
CLAIMS: Final[Mapping[str, str]] = {
    "policy": "who played: names of policies and models, and that nobody has helped",
    "agent.models": "who played: names of policies and models, and that nobody has helped",
    "agent.calls.reply.model": "who played: names of policies and models, and that nobody has helped",
    "agent.calls.model": "who played: names of policies and models, and that nobody has helped",
    "agent.calls.reply.text": "what models said, beyond what messages follow from",
    "agent.calls.reply.thoughts": "what models said, beyond what messages follow from",
    "agent.calls.reply.finish_reason": "what models said, beyond what messages follow from",
    "agent.calls.reply.dropped": "what models said, beyond what messages follow from",
    "agent.calls.reply.usage": "tokens, costs and times",
    "agent.calls.reply.latency_seconds": "tokens, costs and times",
    "agent.calls.reply.attempts": "tokens, costs and times",
    "agent.calls.from_cache": "tokens, costs and times",
    "agent.calls.cost": "tokens, costs and times",
    "agent.components.cost": "tokens, costs and times",
}
# The same of an agent whose code is not at hand: all that it says of itself.
OWN_CLAIMS: Final[Mapping[str, str]] = {
    "agent": "what agents of somebody else's, and those that run code, say of themselves: their messages are not bound "
    "to the words of a model",
    "steps.error": "how an agent broke",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a run is not taken: what was found, and what was expected."""

    kind: RefusalKind
    text: str
    episode: int | None = None  # its number, None where it is about the whole run

    def __str__(self) -> str:
        """Return one line."""
        return self.text if self.episode is None else f"episode {self.episode}: {self.text}"


@dataclass(frozen=True, slots=True)
class CheckSetup:
    """What travels to each process."""

    path: Path  # of the episodes
    plan: PlannedEpisodes
    arguments: Mapping[str, Any]  # of the run, which are those of the set
    manifest_hash: str
    library: str | None  # as JSON; None is the default one


@dataclass(frozen=True, slots=True)
class CheckedEpisode:
    """What was found in one episode."""

    index: int
    policy: str
    prompt_type: str
    luck: float
    variance: float  # of the luck
    refusals: tuple[Refusal, ...]
    is_bound: bool = False  # whether its messages follow from the recorded words of a model
    sent: tuple[str | None, ...] = ()  # its messages


class EpisodeChecker:
    """Checks batches of recorded episodes; made once in each process."""

    def __init__(self, setup: CheckSetup) -> None:
        self._setup = setup
        library = default_library() if setup.library is None else ToolLibrary.of_text(setup.library)
        self._library = library
        self._env = ConversationEnv(EnvironmentSettings(**setup.arguments["environment"]), library=library)
        self._read = message_reader(library, setup.arguments["environment"])

    def __call__(self, job: tuple[int, Sequence[tuple[int, bytes]]]) -> Iterator[tuple[int, list[CheckedEpisode]]]:
        """Yield what was found in a batch of lines, with its number."""
        number, lines = job
        yield number, [self.check(place, line) for place, line in lines]

    def check(self, place: int, line: bytes) -> CheckedEpisode:
        """Return what was found in a line, given its number; StoreError if it holds no record."""
        path = self._setup.path
        record = record_in_line(line, place, path)
        index, plan = record["index"], self._setup.plan
        facts = (index, record["policy"], record["prompt_type"], record["luck"], 0.0)
        if index >= len(plan):
            text = f"it is outside the run, expected a number from 0 to {len(plan) - 1}"
            return CheckedEpisode(*facts, (Refusal("other_episode", text, index),))
        planned = plan[index]
        refused = [Refusal(kind, text, index) for kind, text in self._refused(record, planned)]
        if refused:  # nothing else is certain about it, not even that its task can be solved
            return CheckedEpisode(*facts, tuple(refused))
        try:
            again = rejudged(record, self._library, self._read)
        except InvalidInputError as error:
            return CheckedEpisode(*facts, (Refusal("record", str(error), index),))
        verdict, difference = compare_records(record, again)
        if verdict != "agreeing":
            return CheckedEpisode(*facts, (Refusal("record", f"{difference}", index),))
        refusal, is_bound = self._replayed(opened(record), planned)
        variance = sum(luck_variance(step) for step in record["steps"])
        return CheckedEpisode(
            *facts[:4],
            variance,
            () if refusal is None else (refusal,),
            is_bound,
            tuple(self._sent_by(record)),
        )

    def _refused(self, record: EpisodeRecord, planned: PlannedEpisode) -> Iterator[tuple[RefusalKind, str]]:
        """Yield what the record of an episode says that no record at its place may say."""
        setup, task = self._setup, planned.task
        expected = {
            "policy": setup.arguments["policy_names"][planned.policy],
            "prompt_type": planned.prompt,
            "seed": planned.seed,
            **{name: getattr(task, name) for name in ("instance_id", "task_type", "complexity")},
            "required_tools": list(task.required_tools),
        }
        part: Mapping[str, Any] = record
        for name, value in expected.items():
            if part[name] != value:
                yield "other_episode", f"{name} is {part[name]!r:.80}, expected {value!r:.80}"
        try:
            check_origin(record, setup.manifest_hash, setup.arguments["environment"])
        except InvalidInputError as error:
            yield "other_episode", str(error)
        if record["privileged"] or record.get("agent", {}).get("oracle"):
            yield "privileged", f"policy {record['policy']} is privileged, expected one that does not see the state"
        if is_branch(record):
            yield "other_episode", "it has a weight, expected one that was played on the draws of the set"
        if tries_again(record):
            restarts = record["agent"]["restarts"]
            yield "tries_again", f"it began anew {restarts} times in the same draws, expected the first try alone"
        try:
            whole = opened(record)
        except StoreError as error:
            yield "texts", str(error)
            return
        if prompt_of(whole) is None or ("agent" in whole and not has_agent_texts(whole)):
            yield "texts", "its texts were left out, expected prompt, replies and all calls (--record-texts all)"

    def _replayed(self, record: EpisodeRecord, planned: PlannedEpisode) -> tuple[Refusal | None, bool]:
        """Return where the environment, sent the same messages, or the agent, told the same words, ends elsewhere.

        And whether the messages are bound to the words of a model.
        """
        then: Any = {name: value for name, value in record.items() if name != "agent"}
        _, difference = compare_records(then, play_again(self._env, record, planned.task), tolerance=0.0)
        if difference is not None:
            return Refusal("replay", f"sent the same messages, {difference}", record["index"]), False
        try:
            agent = self._agent_of(record, planned)
            if agent is None:
                return None, False
            _, difference = compare_records(record, play_again(self._env, record, planned.task, agent), tolerance=0.0)
        except ResiliSimError as error:
            difference = str(error)
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # of the agent's part
            difference = f"its part cannot be read ({type(error).__name__}: {one_line(error)})"
        if difference is None:
            return None, True
        text = f"told the same words of its model, {difference}"
        return Refusal("agent", text, record["index"]), True

    def _agent_of(self, record: EpisodeRecord, planned: PlannedEpisode) -> LlmPolicy[Any] | None:
        """Return the agent of an episode, with its recorded replies in place of models; None if it cannot be had."""
        models = recorded_models(record)
        spec = self._setup.arguments["policies"][planned.policy]
        name, options = split_options(spec)
        if models is None or name not in BOUND_AGENTS or any(option in options for option in _READ_FILES):
            return None
        agent = make_policy(spec, offered={"library": self._library, "models": models, "prices": PriceTable()})
        return agent if isinstance(agent, LlmPolicy) else None

    @staticmethod
    def _sent_by(record: EpisodeRecord) -> Iterator[str | None]:
        """Yield the messages of an episode, None for a stop."""
        for step in record["steps"]:
            if step["kind"] != "agent_error":
                yield None if step["kind"] == "stop" else step["message"]


def luck_variance(step: Mapping[str, Any]) -> float:
    """Return the variance of a message's luck: it is (1 - p) D or -p D, D what success changes of V*."""
    chance, luck = step["success_probability"], step["luck"]
    if chance is None or not 0.0 < chance < 1.0:
        return 0.0
    odds = chance / (1.0 - chance)
    return float(luck * luck * (odds if step["success"] else 1.0 / odds))
