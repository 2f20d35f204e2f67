"""Evaluation: episodes of policies on tasks, judged by the exact optimum, stored safely, summarised honestly."""

from __future__ import annotations

from resilisim.evaluation.answer_judge import (
    JudgeAgreement,
    JudgedAccuracy,
    JudgedAnswer,
    Verdict,
    judge,
    judge_agreement,
    judge_run,
    judged_accuracy,
)
from resilisim.evaluation.episode.play import open_session, play_episode
from resilisim.evaluation.episode.record import LOSS_LABELS, RECORD_SCHEMA, EpisodeRecord, StepRecord
from resilisim.evaluation.episode.texts import opened
from resilisim.evaluation.results import EvaluationResult, evaluate, read_results
from resilisim.evaluation.run.contestants import ModelSettings
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.runner import RunLimits
from resilisim.evaluation.run.store import read_manifest, read_records
from resilisim.evaluation.submission import (
    PublishedSet,
    SubmissionCheck,
    check_submission,
    define_set,
    load_set,
    write_set,
)
from resilisim.evaluation.table.comparing import compare_runs, compare_tables
from resilisim.evaluation.table.episodes import EpisodeTable, read_episode_table
from resilisim.evaluation.table.leaderboard import read_leaderboard
from resilisim.evaluation.table.summary import GroupSummary, SummaryTable

__all__ = [
    "LOSS_LABELS",
    "RECORD_SCHEMA",
    "EpisodeRecord",
    "EpisodeTable",
    "EvaluationResult",
    "GroupSummary",
    "JudgeAgreement",
    "JudgedAccuracy",
    "JudgedAnswer",
    "ModelSettings",
    "PublishedSet",
    "RunLimits",
    "StepRecord",
    "SubmissionCheck",
    "SummaryTable",
    "Verdict",
    "check_submission",
    "compare_runs",
    "compare_tables",
    "define_set",
    "evaluate",
    "judge",
    "judge_agreement",
    "judge_run",
    "judged_accuracy",
    "load_set",
    "merge_runs",
    "open_session",
    "opened",
    "play_episode",
    "read_episode_table",
    "read_leaderboard",
    "read_manifest",
    "read_records",
    "read_results",
    "write_set",
]
