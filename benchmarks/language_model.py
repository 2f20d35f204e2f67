"""How a language model's share of the ceiling grows while it is fine-tuned, over runs that go on from one another.

`python -m benchmarks.language_model runs/lm runs/lm-all` draws docs/images/language_model.svg from what they told.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measurement import REPOSITORY

TARGET = REPOSITORY / "docs" / "images" / "language_model.svg"


def shares(run: Path) -> list[tuple[int, dict[str, float]]]:
    """Return tokens read and shares by prompt type at each evaluation of a run."""
    lines = [json.loads(line) for line in (run / "progress.jsonl").read_text(encoding="utf-8").splitlines()]
    prompts = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["arguments"]["finetuning"]["prompts"]
    # Evaluations of before prompts were told apart say one share, which is that of a prompt where there is only one.
    return [
        (line["num_tokens"], line.get("shares") or ({prompts[0]: line["share"]} if len(prompts) == 1 else {}))
        for line in lines
    ]


def plot(runs: Sequence[Path], target: Path) -> None:
    """Draw a line for each prompt type over the tokens of all runs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    curves: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    before, ends = 0, []
    for run in runs:
        told = shares(run)
        for tokens, by_prompt in told:
            for prompt, share in by_prompt.items():
                curves[prompt].append(((before + tokens) / 1000.0, 100.0 * share))
        before += told[-1][0]
        ends.append(before / 1000.0)
    mpl.rcParams["svg.hashsalt"] = "resilisim"
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes: Any = figure.subplots()
    for prompt, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=prompt)
    for end in ends[:-1]:
        axes.axvline(end, color="0.8", linewidth=1.0, zorder=0)
    axes.set(xlabel="thousands of tokens read", ylabel="% of the ceiling, luck taken out", ylim=(0, 105))
    axes.legend(title="prompts", fontsize="small")
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    plot([Path(name) for name in sys.argv[1:]], TARGET)
