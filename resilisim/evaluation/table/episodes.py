"""The episodes of a run as columns: what comparisons need of each, and no more, so that half a million fit easily."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resilisim.errors import StoreError, unknown_name
from resilisim.evaluation.episode.record import RECORD_SCHEMA, ceiling_of, tries_again
from resilisim.evaluation.run.store import EPISODES_NAME, read_manifest
from resilisim.run_folder import MANIFEST_NAME, read_json_lines
from resilisim.statistics import fold_of

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class EpisodeTable:
    """The episodes of a run, or a part of them, in the order in which they ended; 64 bytes each.

    Attributes:
        manifest: The run's manifest.
        policies: Names of policies, in the order in which they were met.
        prompts: Prompt types, likewise.
        tasks: Ids of tasks, likewise.
        task_types: Their types, one for each task.
        required_tools: Their required tools, likewise.
        policy: (num_episodes,) place of the policy in `policies`.
        prompt: (num_episodes,) place of the prompt type in `prompts`.
        task: (num_episodes,) place of the task in `tasks`.
        seed: (num_episodes,) episode seed.
        index: (num_episodes,) place in the plan of the run.
        outcome: (num_episodes,) 1 for a full success, else 0.
        partial: (num_episodes,) 1 for a partial success, else 0.
        optimum: (num_episodes,) V* of the start.
        ceiling: (num_episodes,) the ceiling that fits what the agent was told (`records.ceiling_of`).
        luck: (num_episodes,) sum of luck.
        regret: (num_episodes,) sum of regret.
        turns: (num_episodes,) messages.
        tries_again: (num_episodes,) whether the agent may try again in fresh episodes, which leaves luck meaningless.
        privileged: (num_episodes,) whether the policy saw the state.
        optimum_gap: By how much any V* may be too low; 0 where all are exact.
    """

    manifest: Mapping[str, Any] = field(repr=False)
    policies: tuple[str, ...]
    prompts: tuple[str, ...]
    tasks: tuple[str, ...] = field(repr=False)
    task_types: tuple[str, ...] = field(repr=False)
    required_tools: tuple[tuple[str, ...], ...] = field(repr=False)
    policy: NDArray[np.int16] = field(repr=False)
    prompt: NDArray[np.int16] = field(repr=False)
    task: NDArray[np.int32] = field(repr=False)
    seed: NDArray[np.int64] = field(repr=False)
    index: NDArray[np.int64] = field(repr=False)
    outcome: NDArray[np.int8] = field(repr=False)
    partial: NDArray[np.int8] = field(repr=False)
    optimum: NDArray[np.float64] = field(repr=False)
    ceiling: NDArray[np.float64] = field(repr=False)
    luck: NDArray[np.float64] = field(repr=False)
    regret: NDArray[np.float64] = field(repr=False)
    turns: NDArray[np.int32] = field(repr=False)
    tries_again: NDArray[np.bool_] = field(repr=False)
    privileged: NDArray[np.bool_] = field(repr=False)
    optimum_gap: float = 0.0

    def __len__(self) -> int:
        """Number of episodes."""
        return len(self.task)

    @property
    def num_planned(self) -> int:
        """How many episodes the run has when it is finished."""
        return int(self.manifest.get("arguments", {}).get("num_episodes", len(self)))

    @cached_property
    def folds(self) -> IntArray:
        """Fold of each task in the cross-fitting of beta; shape (num_tasks,)."""
        return np.array([fold_of(task) for task in self.tasks], dtype=np.int64)

    def groups(self) -> list[tuple[str, str]]:
        """Return each (policy, prompt type) that has episodes, by the order of the run's command."""
        pairs = np.unique(np.stack([self.policy, self.prompt], axis=1), axis=0)
        arguments = self.manifest.get("arguments", {})

        def rank(asked: list[str], name: str) -> int:
            return asked.index(name) if name in asked else len(asked)

        named = [(self.policies[policy], self.prompts[prompt]) for policy, prompt in pairs]
        policies, prompts = arguments.get("policy_names", []), arguments.get("prompts", [])
        return sorted(named, key=lambda pair: (rank(policies, pair[0]), rank(prompts, pair[1])))

    def where(self, chosen: NDArray[np.bool_]) -> EpisodeTable:
        """Return the part of the table with the chosen episodes; the names keep their places.

        Args:
            chosen: (num_episodes,) whether each episode belongs to it.
        """
        return replace(self, **{name: getattr(self, name)[chosen] for name in _COLUMNS})

    def group(self, policy: str, prompt: str) -> EpisodeTable:
        """Return the episodes of one policy under one prompt type.

        Raises:
            InvalidInputError: The table has no such policy, or no such prompt type.
        """
        if policy not in self.policies:
            raise unknown_name("policy", policy, self.policies)
        if prompt not in self.prompts:
            raise unknown_name("prompt type", prompt, self.prompts)
        chosen = (self.policy == self.policies.index(policy)) & (self.prompt == self.prompts.index(prompt))
        return self.where(chosen)


# Type code of array.array, and how each column is filled from a record.
_COLUMNS = {
    "policy": np.int16,
    "prompt": np.int16,
    "task": np.int32,
    "seed": np.int64,
    "index": np.int64,
    "outcome": np.int8,
    "partial": np.int8,
    "optimum": np.float64,
    "ceiling": np.float64,
    "luck": np.float64,
    "regret": np.float64,
    "turns": np.int32,
    "tries_again": np.bool_,
    "privileged": np.bool_,
}
_CODES = {np.int8: "b", np.bool_: "b", np.int16: "h", np.int32: "i", np.int64: "q", np.float64: "d"}


def table_of(records: Iterable[Mapping[str, Any]], manifest: Mapping[str, Any]) -> EpisodeTable:
    """Return the table of records, which are read once.

    Args:
        records: Episode records.
        manifest: The manifest of their run.

    Raises:
        StoreError: One of them is no episode record, or is of another run; the text gives its place.
    """
    columns: dict[str, array[Any]] = {name: array(_CODES[kind]) for name, kind in _COLUMNS.items()}
    add = {name: column.append for name, column in columns.items()}
    policies: dict[str, int] = {}
    prompts: dict[str, int] = {}
    tasks: dict[str, int] = {}
    task_types: list[str] = []
    required: list[tuple[str, ...]] = []
    gap = 0.0
    for number, record in enumerate(records, start=1):
        try:
            if record["schema"] != RECORD_SCHEMA:
                raise StoreError(f"episode {number} has the schema {record['schema']!r:.60}, not {RECORD_SCHEMA!r}")
            if record["manifest"] != manifest.get("hash", record["manifest"]):
                raise StoreError(f"episode {number} belongs to another run than {MANIFEST_NAME} describes")
            name = record["instance_id"]
            task = tasks.setdefault(name, len(tasks))
            if task == len(task_types):
                task_types.append(record["task_type"])
                required.append(tuple(record["required_tools"]))
            add["task"](task)
            add["policy"](policies.setdefault(record["policy"], len(policies)))
            add["prompt"](prompts.setdefault(record["prompt_type"], len(prompts)))
            add["seed"](record["seed"])
            add["index"](record["index"])
            add["outcome"](record["outcome"])
            add["partial"](record["score"]["level"] == "partial_success")
            add["optimum"](record["optimum"])
            add["ceiling"](ceiling_of(record))
            add["luck"](record["luck"])
            add["regret"](record["regret"])
            add["turns"](len(record["steps"]))
            add["tries_again"](tries_again(record))
            add["privileged"](record["privileged"])
            gap = max(gap, record["optimum_gap"])
        except (KeyError, TypeError, OverflowError, AttributeError) as error:
            problem = f"lacks the field {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise StoreError(f"episode {number} {problem}") from error
    arrays: dict[str, NDArray[Any]] = {name: np.array(column, dtype=_COLUMNS[name]) for name, column in columns.items()}
    return EpisodeTable(
        manifest=manifest,
        policies=tuple(policies),
        prompts=tuple(prompts),
        tasks=tuple(tasks),
        task_types=tuple(task_types),
        required_tools=tuple(required),
        **arrays,
        optimum_gap=gap,
    )


def read_episode_table(directory: Path | str) -> EpisodeTable:
    """Return the episodes in a run's folder, finished or not, read once, one at a time.

    Raises:
        StoreError: It is no folder of results, or cannot be read, or a line is no episode.
    """
    manifest = read_manifest(directory)
    path = Path(directory) / EPISODES_NAME
    return table_in(directory, read_json_lines(path) if path.exists() else (), manifest)


def table_in(directory: Path | str, records: Iterable[Mapping[str, Any]], manifest: Mapping[str, Any]) -> EpisodeTable:
    """Return the table of a folder's records (`table_of`), with the folder's name in errors.

    Args:
        directory: The folder.
        records: Its episode records.
        manifest: Its manifest.

    Raises:
        StoreError: One of them is no episode record, or is of another run.
    """
    path = Path(directory) / EPISODES_NAME
    try:
        return table_of(records, manifest)
    except StoreError as error:
        raise error if str(path) in str(error) else StoreError(f"{path}: {error}") from error
