"""The tables and figures of the papers whose agents answer questions: KPI-Chain's of pages, RP-ReAct's of records.

Published figures stand beside as marked rows. They were measured with other questions and real models, so they are
never compared with ours. `templates/published-worlds.json` holds them as the papers print them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from resilisim.errors import InvalidInputError
from resilisim.evaluation.episode.record import EpisodeRecord
from resilisim.evaluation.extraction_judge import ExtractionJudge
from resilisim.evaluation.run.store import read_manifest, refuse_explored
from resilisim.evaluation.table.comparing import refuse_incomparable
from resilisim.evaluation.table.facts import read_facts
from resilisim.reporting.page import packaged_file
from resilisim.reporting.papers.answers import Answers
from resilisim.reporting.papers.calibration import Calibration
from resilisim.reporting.papers.kpi_chain import benchmark_of, benchmark_score, kpi_chain_tables
from resilisim.reporting.papers.paper_table import KPI_CHAIN, RP_REACT, PaperTable
from resilisim.reporting.papers.rp_react import domain_of, rp_react_tables
from resilisim.worlds import load_world

PAPER_OF_WORLD: Final[Mapping[str, str]] = {
    "pages-v1": KPI_CHAIN,
    "pages": KPI_CHAIN,
    "hotpotqa": KPI_CHAIN,
    "loft": KPI_CHAIN,
    "mcp": KPI_CHAIN,
    "records-v1": RP_REACT,
    "records": RP_REACT,
    "toolqa": RP_REACT,
}


def paper_tables(directories: Sequence[Path | str]) -> list[PaperTable]:
    """Return the tables of the paper that was measured in a world like that of the runs, published figures beside.

    Of KPI-Chain (`pages-v1`, HotpotQA, LOFT, `mcp`): table 1, figures 3 and 4, latency and shares of calls (5.2, D.1),
    ablations (5.4), gain and cost by hops (D.2), and precision, recall and success by the confidence threshold (C.1).
    Of RP-ReAct (`records-v1`, ToolQA): tables 1 to 3.

    Args:
        directories: Folders of runs in one world: of several agents or models, or of parts of the questions.

    Raises:
        InvalidInputError: The runs are of another world, of several, or hold an episode twice; one was explored; or no
            episode is there.
        StoreError: One is not a folder of results.

    Example:
        >>> from resilisim.evaluation import evaluate
        >>> from resilisim.reporting import paper_tables
        >>> results = evaluate("random", 2)
        >>> paper_tables([results.directory])
        Traceback (most recent call last):
        ...
        resilisim.errors.InvalidInputError: ... was played in no world: expected runs in one of pages-v1, ...
    """
    names = [str(directory) for directory in directories]
    manifests = [read_manifest(name) for name in names]
    for name, manifest in zip(names, manifests, strict=True):
        refuse_explored(name, manifest["arguments"], "the papers count episodes")
    worlds = {manifest["arguments"].get("environment", {}).get("world") for manifest in manifests}
    world = str(next(iter(worlds), None))
    paper = PAPER_OF_WORLD.get(world.partition(":")[0])
    if len(worlds) != 1 or paper is None:
        played = "in no world" if None in worlds else f"in {world!r}"
        what = f"was played {played}" if len(worlds) == 1 else f"were played in {len(worlds)} worlds"
        raise InvalidInputError(
            f"{', '.join(names) or 'no folder'} {what}: expected runs in one of {', '.join(PAPER_OF_WORLD)} "
            "(those on apis-v1 have `resilisim apis tables`)"
        )
    refuse_incomparable(manifests, names)
    is_quest = world.startswith("loft:") and "quest" in world.lower()
    answers = (
        Answers(lambda record: ("", benchmark_of(record, is_quest)), benchmark_score)
        if paper == KPI_CHAIN
        else Answers(domain_of, lambda record: float(record["outcome"]))
    )
    judge = _judge_in(world) if paper == KPI_CHAIN else None
    calibration = None if judge is None else Calibration(judge, answers)
    answers.collectors = () if calibration is None else (calibration.add,)
    for number, (name, manifest) in enumerate(zip(names, manifests, strict=True)):
        asked = [manifest["arguments"].get(which, ()) for which in ("policy_names", "prompts")]

        def add(
            record: EpisodeRecord, name: str = name, number: int = number, asked: list[Sequence[str]] = asked
        ) -> None:
            policy, prompt = (
                of.index(one) if one in of else len(of)
                for of, one in zip(asked, (record["policy"], record["prompt_type"]), strict=True)
            )
            answers.add(record, name, (number, policy, prompt))

        read_facts(name, add)
    if not answers.players:
        raise InvalidInputError(f"{', '.join(names)} has no finished episode: expected at least one")
    published = json.loads(packaged_file("published-worlds.json"))
    if paper == RP_REACT:
        return list(rp_react_tables(answers, published))
    return list(kpi_chain_tables(answers, published, judge, calibration))


def _judge_in(world: str) -> ExtractionJudge | None:
    """Return who knows the questions of a world; None if its files are not there, or it would have to be started."""
    try:
        is_there = not getattr(load_world(world), "starts_for_tasks", False)
        return ExtractionJudge(world) if is_there else None
    except InvalidInputError:
        return None
