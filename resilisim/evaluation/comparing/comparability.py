"""Which runs can be compared: those whose episodes mean the same and share their luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from resilisim.errors import InvalidInputError
from resilisim.provenance import ABSENT, first_difference
from resilisim.tasks.benchmark import texts_revision

# What a run's arguments say about who played, what and how often: it may differ, only common episodes are paired.
# Everything else decides what an episode is. Scoring episodes again does not play others.
MAY_DIFFER = frozenset(
    {
        "checkpoints",
        "models",
        "models_of_policies",
        "num_episodes",
        "policies",
        "policy_names",
        "prompts",
        "prompts_of_agents",
        "record_texts",
        "rescored_from",
        "seeds",
        "shard",
        "tasks",
    }
)
_NAMES = {
    "benchmark.version": "benchmark version",
    "benchmark.sha256": "benchmark",
    "benchmark.texts": "revision of the texts that agents read",
    "environment.base": "law (base success probability)",
    "environment.not_executed": "law (factor not_executed)",
    "environment.failed": "law (factor failed)",
    "environment.history": "law (factor history)",
    "environment.max_turns": "end rule max_turns",
    "environment.max_consecutive_failures": "end rule max_consecutive_failures",
    "environment.loop_length": "end rule loop_length",
    "environment.prompt_style": "prompt style",
    "environment.salt": "salt of the luck",
    "library": "tool library",
    "planner": "trained policy that plans prompts",
}


def refuse_incomparable(manifests: Sequence[Mapping[str, Any]], names: Sequence[object] = ()) -> None:
    """Raise an error that names the first difference between runs that keeps them from being compared.

    Tasks, seeds, policies, prompt types and models may differ.

    Args:
        manifests: The manifests of the runs.
        names: What the runs are called, for the text.

    Raises:
        InvalidInputError: Two of them differ in benchmark, wording of what agents read, library, law, end rules, salt,
            or another option of the environment.
    """
    called = [str(name) for name in names] or [f"run {number + 1}" for number in range(len(manifests))]
    for place in range(1, len(manifests)):
        found = incomparable(manifests[0], manifests[place])
        if found is not None:
            what, one, other = found
            raise InvalidInputError(
                f"{called[0]} and {called[place]} cannot be compared: {what} is {one} in one and {other} in the other"
            )


def incomparable(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Return what keeps two runs from being compared and what each says there; None if nothing does.

    Args:
        one: A manifest.
        other: Another one.
    """
    left, right = _decisive(one), _decisive(other)
    # Versions first: a reader should learn the plainest reason, not what follows from it.
    found = first_difference(_versions(left), _versions(right)) or first_difference(left, right)
    if found is None:
        return None
    place, here, there = found
    return _NAMES.get(place, place.replace("environment.", "environment option ")), _shown(here), _shown(there)


def _decisive(manifest: Mapping[str, Any]) -> dict[str, Any]:
    arguments = manifest.get("arguments", {})
    decisive = {name: value for name, value in arguments.items() if name not in MAY_DIFFER}
    if "benchmark" in decisive:
        decisive["benchmark"] = {**decisive["benchmark"], "texts": texts_revision(arguments)}
    # The trained policy that plans prompts belongs to the episodes; those that play do not.
    planner = arguments.get("environment", {}).get("planner")
    if planner in arguments.get("checkpoints", {}):
        decisive["planner"] = arguments["checkpoints"][planner]
    return decisive


def _versions(arguments: Mapping[str, Any]) -> dict[str, Any]:
    benchmark = arguments.get("benchmark", {})
    return {f"benchmark.{name}": benchmark.get(name) for name in ("version", "texts")}


def _shown(value: object) -> str:
    return "absent" if value is ABSENT else f"{value!r:.60}"
