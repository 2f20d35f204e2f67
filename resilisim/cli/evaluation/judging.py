"""`resilisim judge`: a language model as a judge of answers that have an exact score."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from resilisim.chat import ChatModel
from resilisim.cli.options import MODEL_PANEL, JsonFlag, OptionGroup, output_option, takes
from resilisim.cli.output import Progressing, answer, table
from resilisim.errors import InvalidInputError
from resilisim.evaluation import ModelSettings
from resilisim.evaluation.answer_judge import JudgedAnswer, judge_agreement, judge_run, judged_accuracy
from resilisim.evaluation.run.store import read_manifest
from resilisim.provenance import encode_json_line
from resilisim.run_folder import write_file_atomically
from resilisim.statistics.estimates import fields_to_json

JUDGE = OptionGroup(
    ModelSettings,
    [
        "models",
        "base_url",
        "concurrency",
        "retries",
        "timeout_seconds",
        "requests_per_minute",
        "tokens_per_minute",
        "cache",
    ],
    MODEL_PANEL,
    changed={
        "models": {"help": "The judge: openai:NAME, local, local:PATH, scripted:FILE."},
        "concurrency": {"help": "Answers judged at once."},
    },
)


@takes(settings=JUDGE)
def judge(
    *,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run in a world.")],
    settings: ModelSettings,
    out: Annotated[
        Path | None, output_option("--out", help="JSON Lines file for the verdict of each answer.", dir_okay=False)
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Let a language model judge the answers of a run in a world, and say how far it agrees with the exact score.

    The exact score stays what counts. With --cache, what was judged before is not asked again.
    """
    made = list(settings.make().values())
    if len(made) != 1:
        raise InvalidInputError(
            f"{len(made)} models were given as the judge: expected one, such as --model openai:NAME"
        )
    total = int(read_manifest(directory)["arguments"].get("num_episodes", 0))
    with Progressing("judging answers", total) as progress:
        found = asyncio.run(_judged(directory, made[0].default, settings.concurrency, progress))
    if out is not None:
        write_file_atomically(out, b"".join(encode_json_line(one.to_mapping()) for one in found))
    policies: dict[str, list[JudgedAnswer]] = {}
    for one in found:
        policies.setdefault(one.policy, []).append(one)
    results: list[dict[str, Any]] = []
    for policy, answers in policies.items():
        verdicts, exact = [one.verdict for one in answers], [one.exact for one in answers]
        agreement = judge_agreement(verdicts, exact)
        accuracy = judged_accuracy(verdicts).accuracy
        shares = {"policy": policy, "exact": sum(exact) / len(exact), "judge": accuracy}
        results.append({**shares, **fields_to_json(agreement)})
    names = {
        "policy": "policy",
        "exact": "exact score",
        "judge": "judge",
        "agreement": "agreement",
        "kappa": "kappa",
        "num_both": "both right",
        "num_judge_only": "only the judge",
        "num_exact_only": "only the score",
        "num_neither": "neither",
        "num_unreadable": "unreadable",
    }
    rows = [[result[name] for name in names] for result in results]
    notes = [] if out is None else [f"verdicts: {out}"]
    answer(as_json, results, table(f"{len(found):,} answers", list(names.values()), rows, digits=3), notes=notes)


async def _judged(directory: Path, model: ChatModel, concurrency: int, progress: Progressing) -> list[JudgedAnswer]:
    try:
        return await judge_run(directory, model, concurrency=concurrency, told=lambda: progress.advance(1))
    finally:
        await model.aclose()
