"""What decides records: the same spec makes the same bytes anywhere, and one that makes no sense is refused."""

import pickle
import subprocess
from dataclasses import replace

import pytest

from resilisim import benchmark_tasks
from resilisim.datasets.conversations import ConversationSpec
from resilisim.datasets.preferences import PreferenceSpec
from resilisim.datasets.prompt_records import PromptSpec
from resilisim.datasets.rollout import TRAINING_ENVIRONMENT
from resilisim.errors import InvalidInputError
from resilisim.provenance import encode_json_line
from resilisim.tool_library import default_library

TASKS = benchmark_tasks()[:3]
PLAYED = {"prompts": ("optimal", "chain_of_thought"), "search": False, "alternatives": False}


def test_the_same_bytes_whatever_was_made_before_and_in_another_process(python):
    specs = [PromptSpec(seed=3), ConversationSpec(seeds=2, **PLAYED), PreferenceSpec(**PLAYED)]
    code = (
        "import sys, pickle; from resilisim import benchmark_tasks, default_library\n"
        "from resilisim.provenance import encode_json_line\n"
        f"for spec in reversed(pickle.loads({pickle.dumps(specs)!r})):\n"
        "    source = spec.make(default_library())\n"
        "    for task in reversed(benchmark_tasks()[:3]):\n"
        "        for record in source.records(task): sys.stdout.buffer.write(encode_json_line(record))\n"
    )
    printed = subprocess.run([*python, "-c", code], capture_output=True, check=True).stdout
    expected = b""
    for spec in specs:
        source = spec.make(default_library())
        here = [[encode_json_line(record) for record in source.records(task)] for task in TASKS]
        assert len({line for lines in here for line in lines}) > 10
        expected = b"".join(line for lines in reversed(here) for line in lines) + expected
    assert printed == expected


@pytest.mark.parametrize(
    ("spec", "options", "words"),
    [
        (PromptSpec, {"types": ("optimale",)}, ["prompt type 'optimale'", "'optimal'"]),
        (PromptSpec, {"flaws": ("sequential",)}, ["flaw 'sequential'", "'sequential_order'"]),
        (PromptSpec, {"severities": ("sever",)}, ["severity 'sever'", "'severe'"]),
        (PromptSpec, {"flaws": ("tool_misuse",), "methods": ("swap",)}, ["method 'swap'", "semantic_similarity"]),
        (PromptSpec, {"types": ()}, ["no prompt type", "baseline"]),
        (PromptSpec, {"types": ("optimal", "optimal")}, ["twice"]),
        (PromptSpec, {"plan_format": "html"}, ["plan format 'html'", "'xml'"]),
        (PromptSpec, {"seed": -1}, ["seed is -1"]),
        (ConversationSpec, {"prompts": ("basline",)}, ["'baseline'"]),
        (ConversationSpec, {"prompts": ()}, ["no prompt type"]),
        (ConversationSpec, {"prompts": ("optimal", "optimal")}, ["twice"]),
        (ConversationSpec, {"flaws": ("mising_step",)}, ["'missing_step'"]),
        (ConversationSpec, {"severities": ("sever",)}, ["'severe'"]),
        (ConversationSpec, {"flaws": ()}, ["no flaws"]),
        (ConversationSpec, {"seeds": 0}, ["seeds is 0", "expected at least 1"]),
        (ConversationSpec, {"first_seed": -1}, ["first_seed is -1"]),
        (ConversationSpec, {"first_seed": 2**63 - 1, "seeds": 2}, ["first_seed"]),
        (
            ConversationSpec,
            {"pass_parameters": False, "environment": replace(TRAINING_ENVIRONMENT, parameters="strict")},
            ["strict"],
        ),
        (ConversationSpec, {"policy": "exact-optimun"}, ["'exact-optimum'"]),
        (ConversationSpec, {"call_arguments": "objects"}, ["form of arguments", "'object'"]),
        (PreferenceSpec, {"explore": 1.5}, ["explore is 1.5"]),
        (PreferenceSpec, {"min_margin": 0.0}, ["min_margin is 0.0"]),
        (PreferenceSpec, {"prompts": ("optimel",)}, ["'optimal'"]),
    ],
)
def test_wrong_options_are_refused_in_one_line(spec, options, words):
    with pytest.raises(InvalidInputError) as refused:
        spec(**options).make(default_library())
    assert "\n" not in str(refused.value)
    assert [word for word in words if word not in str(refused.value)] == []
