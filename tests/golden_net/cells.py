"""The cells of the net: small runs through the public doors, and what each of their episodes came to.

A row of a cell is outcome, V* of the start, sum of regret, sum of luck, and number of messages. Nothing here imports
what is inside the package, so that the same cells can be played before and after a change.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import resilisim
from resilisim.chat.middleware import ChatModelSettings
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.simulator import build_problem, start_state
from resilisim.simulator.exact import solve
from resilisim.tasks.benchmark import benchmark_tasks
from tests.chat.loopback import LoopbackServer
from tests.doubles.habit_models import CompetentModel, path_of

Row: TypeAlias = tuple[float, float, float, float, float]
Cells: TypeAlias = Mapping[str, Callable[[], list[Row]]]

VERSION = "benchmark-v1"  # of the tasks that the net plays, whichever is the present one
NUM_TASKS, NUM_SHORT = 60, 8
SCRIPTED = ("random", "plan-follower", "repairing-follower", "exact-optimum", "learned-names")
TRAINED = ("policy:default", "policy:benchmark")
PROMPTS = ("baseline", "chain_of_thought", "optimal", "flawed")
DURATIONS = [
    {"seconds": 1, "probability": 0.7},
    {"seconds": 10, "probability": 0.2},
    {"seconds": 60, "probability": 0.1},
]
LAWS: Mapping[str, Any] = {
    "benchmark": "benchmark",
    "public-apis": "public-apis",
    "meaningful-errors": "meaningful-errors",
    "one outage": {"outage": {"begins": 0.05, "ends": 0.33, "groups": "all"}},
    "rate-limits": "rate-limits",
    "broken": {"broken": {"probability": 0.1, "tools": ["file_operations_reader", "network_fetcher"]}},
    "corrupt": {"corrupt": {"probability": 0.2, "shows": "payload"}},
    "validators": {"corrupt": {"probability": 0.2, "shows": "validators"}},
    "slow and worse": {
        "latency": {"distribution": DURATIONS, "timeout": 30, "budget": 120},
        "drift": {"per_message": -0.02},
    },
}
QUICK = ("benchmark", "public-apis", "meaningful-errors")  # laws under which long tasks are solved in no time
AGENTS = ("direct", "react", "plan-and-execute", "code-act", "reflexion", "rp-react", "kpi-chain")


def _rows(records: Iterable[Mapping[str, Any]]) -> list[Row]:
    return [
        (one["outcome"], one["optimum"], one["regret"], one["luck"], float(len(one["steps"])))
        for one in sorted(records, key=lambda one: one["index"])
    ]


def _evaluated(
    policy: str, prompts: str | tuple[str, ...], law: Any, tasks: Any, seeds: int, **options: Any
) -> list[Row]:
    return _rows(resilisim.evaluate(policy, tasks, prompts, seeds, law=law, progress=False, **options).records())


def _asked(agent: str, law: str) -> list[Row]:
    """Play a language-model agent whose model, behind an endpoint, makes the right calls."""
    tasks = benchmark_tasks(VERSION)[:: len(benchmark_tasks(VERSION)) // NUM_SHORT][:NUM_SHORT]
    with LoopbackServer(CompetentModel(tasks)) as server:
        url = server.base_url.removesuffix("/v1") + path_of(agent, "plain")
        chat = ChatModelSettings(base_url=url, api_key="none")
        model = ModelSettings(models=("openai:competent",), chat=chat)
        return _evaluated(agent, "baseline", law, [task.instance_id for task in tasks], 2, model=model)


def _injected(law: Any, required: tuple[str, ...], **options: Any) -> list[Row]:
    """Play a program of four functions that calls each up to three times, some of them by themselves out of order."""

    def read(path: str) -> str:
        if path.endswith("7"):
            raise OSError("no such file")
        return path

    def check(text: str) -> bool:
        return bool(text)

    def charge(amount: int) -> int:
        return amount

    def send(text: str, *, copies: int = 1) -> int:
        return copies

    rows = []
    for seed in range(40):
        with tempfile.TemporaryDirectory() as folder:
            turns = {"turns": 12} if required else {}
            settings: dict[str, Any] = {"law": law, "seed": seed, "record": folder, **turns, **options}
            try:
                with resilisim.inject([read, check, charge, send], required=required, **settings) as tools:
                    calls = [
                        (tools["read"], (f"file {seed % 10}",)),
                        (tools["check"], ("x",)),
                        (tools["charge"], (seed,)),
                    ]
                    calls = [*calls, (tools["send"], ("done",))]
                    for tool, arguments in calls if seed % 3 else [calls[1], calls[0], *calls[2:]]:
                        for _ in range(3):
                            try:
                                tool(*arguments)
                                break
                            except (resilisim.InjectedFailure, OSError):
                                continue
            except resilisim.EpisodeEnded:
                pass
            path = Path(folder) / "episodes.jsonl"
            rows += _rows(json.loads(line) for line in path.read_text().splitlines()) if path.exists() else []
            calls_made = [json.loads(line) for line in (Path(folder) / "calls.jsonl").read_text().splitlines()]
            kinds = ("ok", "injected", "real", "misuse")
            rows += [
                (float(kinds.index(c["outcome"])), c.get("success_probability") or 0.0, 0.0, 0.0, float(c["ran"]))
                for c in calls_made
            ]
    return rows


def _short_tasks() -> list[str]:
    short = [task.instance_id for task in benchmark_tasks(VERSION) if len(task.required_tools) <= 2]
    return short[:: len(short) // NUM_SHORT][:NUM_SHORT]


def _optima() -> list[Row]:
    library = resilisim.default_library()
    values = []
    for task in benchmark_tasks(VERSION):
        problem = build_problem(library, task.required_tools)
        values.append(solve(problem).value(start_state(problem)))
    return [(0.0, value, 0.0, 0.0, 0.0) for value in values]


def all_cells() -> Cells:
    """Return every cell by name."""
    cells: dict[str, Callable[[], list[Row]]] = {"V* of all tasks": _optima}
    short, first = _short_tasks(), [task.instance_id for task in benchmark_tasks(VERSION)[:NUM_TASKS]]
    for law, meaning in LAWS.items():
        is_quick = law in QUICK
        tasks, prompts = (first, PROMPTS) if is_quick else (short, PROMPTS[::2])
        for policy in SCRIPTED:
            # Names are learned from the tasks that are played.
            spec = f"{policy}[benchmark={VERSION}]" if policy == "learned-names" else policy
            cells[f"{policy} · {law}"] = partial(_evaluated, spec, prompts, meaning, tasks, 1)
        for policy in TRAINED:
            cells[f"{policy} · {law}"] = partial(_evaluated, policy, "baseline", meaning, short, 2)
    for world, policies in {"pages:8": ("reference", "random"), "records:8": ("reference", "random")}.items():
        for policy in policies:
            for law in ("none", "benchmark"):
                rules = {"max_turns": 10, "max_consecutive_failures": 5, "loop_length": 4}  # not those of worlds
                cells[f"{policy} · {law} · {world}"] = partial(_evaluated, policy, "baseline", law, world, 2, **rules)
    for agent in AGENTS:
        for law in ("benchmark", "public-apis"):
            cells[f"{agent} · {law}"] = partial(_asked, agent, law)
    wanted = ("read", "check", "charge", "send")
    own: dict[str, dict[str, Any]] = {
        "in order": {},
        "any order": {"ordered": False},
        "once": {"once": ("charge",)},
        "after": {"fail": "after"},
        "after, once": {"fail": "after", "once": ("charge", "send")},
        "dependencies": {"dependencies": {"send": ("charge",)}, "once": ("send",)},
    }
    for name, options in own.items():
        for law in ("benchmark", "0.8"):
            number: Any = float(law) if law == "0.8" else law
            cells[f"inject {name} · {law}"] = partial(_injected, number, wanted, **options)
    for law in ("rate-limits", "outages", "meaningful-errors"):
        cells[f"inject without a goal · {law}"] = partial(_injected, law, ())
    return cells
