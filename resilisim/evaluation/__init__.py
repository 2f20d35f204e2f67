"""Evaluation: episodes of policies on tasks, judged by the exact optimum, stored safely, summarised honestly."""

from __future__ import annotations

from resilisim.evaluation.answer_judge import judge_run
from resilisim.evaluation.episode.play import open_session, play_episode
from resilisim.evaluation.episode.record import EpisodeRecord, StepRecord
from resilisim.evaluation.episode.texts import opened
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.limits import RunLimits
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.store import read_manifest, read_records
from resilisim.evaluation.run_results import EvaluationResult, evaluate, read_results
from resilisim.evaluation.table.comparing import compare_runs
from resilisim.evaluation.table.gate import gate_runs

__all__ = [
    "EpisodeRecord",
    "EvaluationResult",
    "ModelSettings",
    "RunLimits",
    "StepRecord",
    "compare_runs",
    "evaluate",
    "gate_runs",
    "judge_run",
    "merge_runs",
    "open_session",
    "opened",
    "play_episode",
    "read_manifest",
    "read_records",
    "read_results",
]
