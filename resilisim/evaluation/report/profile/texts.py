"""What the page of a robustness profile says in words."""

from __future__ import annotations

from collections.abc import Mapping

from resilisim.evaluation.robustness.plan import RELIABILITY, TURNS

AXIS_TITLES: Mapping[str, str] = {RELIABILITY: "When tools fail more often", TURNS: "When turns are few"}

AXIS_TEXTS: Mapping[str, str] = {
    RELIABILITY: (
        "Success against the chance that a tool succeeds whose dependencies have succeeded and before which nothing "
        "has failed (the law's base). A uniform number decides each execution, and it is the same at every "
        "reliability: what succeeds at 0.6 also succeeds at 0.9 if the history before it is the same."
    ),
    TURNS: (
        "Success against the number of turns of an episode. The luck of an execution does not depend on how many turns "
        "there are."
    ),
}

FLAWS_TITLE = "When the plan is wrong"
FLAWS_TEXT = (
    "Success under plans with a flaw of one of several severities, beside the sound plans of the same tasks. An agent "
    "that believes the plan ends at obey; one that does not can still reach deviate."
)

AFTER_SEARCH = "after search"  # the ceiling where tools must be found
REQUIRED_RETRIED = "required tools, retried"  # the reference of which no policy bears the name

READING: Mapping[str, str] = {
    "optimum V*": (
        "The highest success rate that any agent can have that knows the law and the required tools, but not the luck "
        "to come; solved exactly for every task and every setting, and averaged over the tasks."
    ),
    REQUIRED_RETRIED: (
        "A reference, no policy: the required tools in their order, each again until it succeeds, nothing else; exact, "
        "too. The plan in a sound prompt also runs tools that these depend on where that helps, so obeying it brings "
        "more as a rule. A policy that follows a plan has luck besides and can lie on either side of both."
    ),
    AFTER_SEARCH: (
        "The same with the turns left after the fewest searches, with the clauses of the work order, that show the "
        "required tools. It is the ceiling where a prompt leaves the tools to be found (baseline, chain of thought); "
        "elsewhere the ceiling is V*."
    ),
    "share of ceiling": "Success divided by the ceiling. The raw share can exceed 100% by luck.",
    "luck-adjusted": (
        "Success with the luck of the draws taken out: mean(outcome − β × luck), β fitted on other tasks. It estimates "
        "the same rate as the raw share of successes, with less noise. Charts show it where it is offered; agents that "
        "try again in fresh episodes have raw rates only."
    ),
    "mean along an axis": (
        "The area under the curve (trapezoid rule) divided by the area under that of the ceiling. A raw share can "
        "exceed 100% by luck."
    ),
    "obey": (
        "The chance of success of doing the plan in the prompt to the letter, sound or flawed, each step again until "
        "it succeeds; exact, so without the luck of the runs. Calls are refused as in the runs (a plan that lacks "
        "parameters can be followed where they may be left out)."
    ),
    "deviate": "V*: what an agent can still reach that does not believe the plan; exact.",
    "recovered": (
        "In percent: (success − obey) / (V* − obey), the share of what obeying gives away that an agent gets back. 0 "
        "for one that does the flawed plan to the letter, 100 for the optimum, below 0 for one that does worse than by "
        "obeying."
    ),
    "intervals": (
        "95%, clustered by task: episodes of one task are one unit of evidence. They say how far a number would move "
        "with other tasks of the same kind and other luck. Where no episode differs, they are those of a rate of 0 "
        "among as many tasks. A single task has none."
    ),
    "privileged *": "A policy that is shown the state and the required tools; no fair comparison with the others.",
}

DROP_NOTE = (
    "Drop: success under the sound plan minus success under the flawed one, on the same tasks, seeds and luck. Drops "
    "and what is recovered are luck-adjusted where that is offered."
)
EXACT_NOTE = "The rows without intervals are exact for these tasks: solved, not estimated."
CHANGE_NOTE = (
    "Change: the same tasks, seeds and luck in both settings, so the difference is taken task by task. There is none "
    "in the standard setting itself."
)
RUNS_NOTE = "A run's own report is linked once it is written (resilisim report FOLDER) and the profile is made again."
