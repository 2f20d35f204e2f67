"""What LLM agents used and where they gave up, summed over episodes, and how evenly they do over models."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from resilisim.evaluation.episode.record import EpisodeRecord, weight_of
from resilisim.policies.agent_record import AgentRecord

# An episode that failed although no component gave up: the agent was wrong and did not notice.
NOBODY = "nobody"
THRESHOLDS = ("offload_tokens", "preview_tokens")  # options of RP-ReAct
SUM_FIELDS = ("calls", "prompt_tokens", "completion_tokens", "latency_seconds", "from_cache")


def sampling_of(agent: AgentRecord) -> str:
    """Return how an agent's replies were sampled, component by component where they differ; empty if none was asked."""
    by_role: dict[str, str] = {}
    for call in agent.get("calls", ()):
        if call["role"] not in by_role:
            settings = call.get("settings", {})
            words = [
                f"{name.replace('_', '-')} {settings[name]:g}" for name in ("temperature", "top_p") if name in settings
            ]
            by_role[call["role"]] = ", ".join(words) or "as the model has it"
    if len(set(by_role.values())) < 2:
        return next(iter(by_role.values()), "")
    return "; ".join(f"{role} {words}" for role, words in sorted(by_role.items()))


def mixture_note(sampling: Mapping[str, str]) -> str | None:
    """Say that agents of one table were sampled differently, by their names; None if they were not."""
    by_words: dict[str, list[str]] = {}
    for name, words in sampling.items():
        if words:
            by_words.setdefault(words, []).append(name)
    if len(by_words) < 2:
        return None
    listed = "; ".join(f"{', '.join(names)}: {words}" for words, names in by_words.items())
    return (
        f"Models were sampled differently ({listed}), which may be a part of any difference between agents: "
        "--model-option temperature=0.6 --model-option top_p=1 would be the same for all."
    )


@dataclass(slots=True)
class AgentSums:
    """Sums over the episodes of one LLM agent under one prompt type.

    Branches of an agent that was explored count by their weight, as in all other tables: so of each task they are one
    episode, or as much of it as was played, and what an episode took is what it takes on average.
    """

    policy: str
    prompt_type: str
    num_episodes: float = 0
    num_right: float = 0  # episodes that were a full success
    protocols: dict[str, float] = field(default_factory=dict)  # episodes by how the model called tools
    components: dict[str, dict[str, float]] = field(default_factory=dict)  # component -> sums of `SUM_FIELDS`
    has_estimates: bool = False  # whether some tokens were estimated, because an endpoint did not count
    cost: float | None = 0.0  # US dollars; None once the price of a model was not known
    # Failed episodes by the first component to give up, or by the limit that was hit before any did: a cap of the
    # agent, or what ended the episode (turns, loop, consecutive_failures)
    first_failures: dict[str, float] = field(default_factory=dict)
    endings: dict[str, float] = field(default_factory=dict)  # episodes by what ended the agent
    malformed_replies: float = 0  # replies that could not be read
    thresholds: Mapping[str, Any] = field(default_factory=dict)  # options by which outputs are stored, if any are
    offloads: float = 0  # outputs of tools that were stored instead of shown
    tokens_saved: float = 0  # tokens of prompts that this has saved
    sampling: str = ""  # how replies were sampled (`sampling_of`), in the first episode that asked
    cut_replies: float = 0  # replies that were cut off at their limit of tokens
    # Episodes by number of replans: all, those that the agent ended with an answer, those that were right
    replans: dict[str, dict[int, float]] = field(default_factory=lambda: {"all": {}, "finished": {}, "right": {}})

    def add(self, record: EpisodeRecord) -> None:
        """Add one episode, which must have an agent's part."""
        agent, weight = record["agent"], weight_of(record)
        is_right = record["outcome"] == 1
        self.num_episodes += weight
        self.num_right += weight * is_right
        _count(self.protocols, agent["protocol"], weight)
        usages: Mapping[str, Mapping[str, Any]] = agent["components"]
        for role, usage in usages.items():
            sums = self.components.setdefault(role, dict.fromkeys(SUM_FIELDS, 0))
            for name in SUM_FIELDS:
                sums[name] += weight * usage[name]
            self.has_estimates |= usage["is_estimate"]
            self.cost = None if self.cost is None or usage["cost"] is None else self.cost + weight * usage["cost"]
        if not is_right:
            _count(self.first_failures, _blamed(record), weight)
        _count(self.endings, agent["ended_by"], weight)
        self.sampling = self.sampling or sampling_of(agent)
        self.malformed_replies += weight * sum(event["kind"] == "malformed_reply" for event in agent["events"])
        options = agent.get("options", {})
        self.thresholds = self.thresholds or {name: options[name] for name in THRESHOLDS if name in options}
        self.offloads += weight * agent["counters"].get("offloads", 0)
        self.tokens_saved += weight * agent["counters"].get("tokens_saved", 0)
        self.cut_replies += weight * agent["counters"].get("cut_replies", 0)
        replans = agent["counters"].get("replans", 0)
        _count(self.replans["all"], replans, weight)
        if agent["ended_by"] == "answer":
            _count(self.replans["finished"], replans, weight)
        if is_right:
            _count(self.replans["right"], replans, weight)

    def total(self, name: str) -> float:
        """Return a sum over all components."""
        return sum(sums[name] for sums in self.components.values())

    @property
    def tokens(self) -> float:
        """Tokens of prompts and replies."""
        return self.total("prompt_tokens") + self.total("completion_tokens")

    @property
    def tokens_per_call(self) -> float:
        """Tokens of prompts and replies per call of a model; NaN without calls."""
        calls = self.total("calls")
        return self.tokens / calls if calls else math.nan

    @property
    def tokens_per_task(self) -> float:
        """Tokens of prompts and replies per episode; NaN without episodes."""
        return self.tokens / self.num_episodes if self.num_episodes else math.nan

    def to_mapping(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        replans = {which: {str(n): counts[n] for n in sorted(counts)} for which, counts in self.replans.items()}
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {
            **{name: dict(value) if isinstance(value, Mapping) else value for name, value in fields.items()},
            "replans": replans,
        }


def _count(counts: dict[Any, float], name: str | int, weight: float) -> None:
    counts[name] = counts.get(name, 0) + weight


def _blamed(record: EpisodeRecord) -> str:
    """Return what a failed episode is put down to: the first component to give up, else the limit that was hit."""
    agent = record["agent"]
    if agent["first_failure"] is not None:
        return str(agent["first_failure"]["component"])
    ended_by = record["ended_by"] if agent["ended_by"] == "environment" else agent["ended_by"]
    return NOBODY if ended_by in ("answer", "gave_up", "completion") else str(ended_by)


def saturation(accuracies: Sequence[float]) -> float:
    """Return 1 - (highest - mean accuracy) of one agent over models: 1 if all models do equally well with it.

    As in Molinari and Ciravegna (2026), "Evaluation Metrics". Accuracies are shares from 0 to 1; no model gives NaN.
    """
    return 1.0 - (max(accuracies) - statistics.fmean(accuracies)) if accuracies else math.nan


def combined_performance_score(accuracies: Sequence[float]) -> float:
    """Return the CPS of one agent (Molinari and Ciravegna 2026): its saturation times its highest accuracy."""
    return saturation(accuracies) * max(accuracies) if accuracies else math.nan


def deviation_over_models(accuracies: Sequence[float]) -> float:
    """Return the sample standard deviation of one agent's accuracy over models; NaN with fewer than two.

    Molinari and Ciravegna (2026) do not say which deviation theirs is; their tables fit this one (one degree of freedom
    less).
    """
    return statistics.stdev(accuracies) if len(accuracies) > 1 else math.nan
