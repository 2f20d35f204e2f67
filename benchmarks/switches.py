"""What each switch of agents moves: `python -m benchmarks.switches [--questions N]` prints tables in Markdown.

Limits, examples of tools, temperature by component, and the threshold above which outputs are stored, each in
records-v1 with the competent model of `tests.doubles.switch_models` behind a real endpoint on loopback.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from resilisim.chat.middleware import ChatModelSettings
from resilisim.envs import EnvironmentSettings
from resilisim.evaluation import EvaluationResult, ModelSettings, evaluate
from resilisim.evaluation.extension import extend_run, limit_of
from resilisim.evaluation.table.agents import AgentSums
from resilisim.reporting.agent_sections import agent_tables
from resilisim.statistics.estimates import clopper_pearson
from resilisim.tables.markdown import markdown_lines
from resilisim.tables.table import Table
from resilisim.tasks import find_task
from resilisim.worlds import load_world
from tests.chat.loopback import LoopbackServer
from tests.doubles.switch_models import SwitchModel
from tests.doubles.worlds import some_tasks

WORLD = "records-v1"
AT_ONCE = 8
WARM = ("temperature=1.2", "top_p=1")
T_VALUES = "25|100|400|1000|100000"


class Bench:
    """Plays agents on hard questions of records-v1.

    Args:
        questions: Number for each domain.
        url: Where the model answers.
        folder: Where runs are kept.
    """

    def __init__(self, questions: int, url: str, folder: Path) -> None:
        hard = [task for task in some_tasks(load_world(WORLD), questions) if task.metadata["difficulty"] == "hard"]
        self.tasks = [task.instance_id for task in hard]
        self._url = url
        self._folder = folder

    def models(self, name: str, *options: str) -> ModelSettings:
        """Return the model of a name."""
        chat = ChatModelSettings(max_concurrency=AT_ONCE)
        return ModelSettings(
            (f"openai:{name}@{self._url}",), chat, concurrency=AT_ONCE, episode_retries=2, model_options=options
        )

    def play(self, name: str, policies: str | Sequence[str], models: ModelSettings) -> EvaluationResult:
        """Play policies on all questions, into a folder of that name."""
        where, out = EnvironmentSettings().in_world(WORLD), self._folder / name
        played = evaluate(policies, self.tasks, environment=where, out=out, model=models, progress=False)
        if played.call.num_failures:
            raise RuntimeError(f"{played.call.num_failures} episodes broke, the last because {played.call.last_error}")
        return played

    def limits(self) -> Iterator[Table]:
        """Yield what limits do to a model that wanders, and what ReAct gains from 100 steps where it hit its own."""
        models = self.models("wandering", *WARM)
        agents = ["react[steps=5|10|20]", "rp-react[executor_steps=3|10]", "rp-react[steps=3]"]
        yield _table("Limits, with a model that wastes 60% of its replies", self.play("limits", agents, models))
        more = {"steps": 100, "max_llm_calls": 250}
        extended = extend_run(
            self._folder / "limits",
            self._folder / "more",
            find_task,
            policy="react[steps=20]",
            options=more,
            models_of=lambda policy: models,
            progress=False,
        )
        yield extended.table()

    def examples(self) -> Iterator[Table]:
        """Yield what examples of tools do for a model that does not know their parameters."""
        agents = ["rp-react[tool_examples=all|none,executor_steps=10|3]"]
        yield _table(
            "Examples of tools, with an unpractised model", self.play("ex", agents, self.models("unpractised"))
        )

    def temperatures(self) -> Iterator[Table]:
        """Yield what the temperature of each component does to a model that wanders the more the warmer it is."""
        agents = [
            f"rp-react[model_options=planner.temperature={planner};executor.temperature={executor}]"
            for planner, executor in ((0, 0), (0, 0.6), (0.6, 0), (0.6, 0.6), (1.2, 1.2))
        ]
        played = self.play("temperature", [*agents, "react[temperature=0|0.6|1.2]"], self.models("wandering"))
        yield _table("Temperature by component, with a model that wastes half as large a share of its replies", played)

    def thresholds(self) -> Iterator[Table]:
        """Yield what storing outputs saves by the threshold above which they are stored."""
        agents = [f"rp-react[offload_tokens={T_VALUES},preview_tokens=none]"]
        yield agent_tables(self.play("T", agents, self.models("competent")).agents())[-1]


def _table(caption: str, played: EvaluationResult) -> Table:
    """Return what policies came to."""
    limits: dict[str, Counter[str]] = {}
    for record in played.records():
        limit = limit_of(record)
        limits.setdefault(record["policy"], Counter()).update([] if limit is None else [limit])

    def right(sums: AgentSums) -> str:
        low, high = clopper_pearson(sums.num_right, sums.num_episodes)
        return f"{100 * sums.num_right / sums.num_episodes:.1f} [{100 * low:.1f}, {100 * high:.1f}]"

    return Table.of(
        f"{caption}: {played.num_episodes // len(played.agents()):,} hard questions, full success in percent",
        played.agents(),
        [
            ("agent", "policy"),
            ("right", right),
            ("ended by a limit", lambda sums: limits.get(sums.policy, Counter()).total(), ",d"),
            ("calls of the model", lambda sums: sums.total("calls") / sums.num_episodes, ".1f"),
            ("tokens", "tokens_per_task", ",.0f"),
        ],
        text_columns=2,
    )


def _server() -> LoopbackServer:
    return LoopbackServer(SwitchModel([load_world(WORLD)]), keeps_requests=False)


PARTS = ("limits", "examples", "temperatures", "thresholds")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.switches", description=__doc__)
    parser.add_argument("--questions", type=int, default=5, help="hard ones of each domain (default 5)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="which tables (default all)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, _server() as server:
        bench = Bench(options.questions, server.base_url, Path(folder))
        for part in options.parts:
            for table in getattr(bench, part)():
                print("\n".join(markdown_lines(table)), end="\n\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
