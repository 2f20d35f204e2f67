from __future__ import annotations

import os
import subprocess
import sys

import pytest

import resilisim

COMMANDS = ["tools", "tasks", "bound", "play", "evaluate", "report", "demo"]


def test_bare_command_and_help_list_every_command(command):
    for arguments in ([], ["--help"], ["-h"]):
        outcome = command(*arguments)
        assert outcome.code == 0
        for name in COMMANDS:
            assert name in outcome.out


@pytest.mark.parametrize("group", ["tools", "tasks"])
def test_bare_group_shows_its_help(command, group):
    outcome = command(group)
    assert outcome.code == 0
    assert "list" in outcome.out
    assert "show" in outcome.out


def test_version(command):
    assert command("--version").out == f"resilisim {resilisim.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["evalute"], ["evalute", "evaluate"]),
        (["tools", "lst"], ["lst", "list"]),
        (["bound", "--toolz", "a"], ["--toolz", "--tools"]),
        (["tasks", "generate"], ["--out"]),
        (["tasks", "generate", "--out", "x", "--count", "zero"], ["--count", "zero"]),
        (["tasks", "generate", "--out", "x", "--count", "0"], ["--count", "0"]),
        (["bound", "--tools", "file_operations_reader", "--turns", "-1"], ["--turns", "-1"]),
        (["bound", "--tools", "file_operations_reader", "--success-probability", "2"], ["--success-probability", "2"]),
        (["tools", "show"], ["name"]),
        (["tasks", "generate", "--out", "x", "--count=none"], ["--count", "none"]),
        (["tools", "list", "extra"], ["extra"]),
        (["--nonsense"], ["--nonsense"]),
    ],
)
def test_wrong_usage_is_one_line_with_the_value_and_the_nearest_name(command, arguments, words):
    line = command(*arguments).refusal()
    for word in words:
        assert word in line


def test_a_reader_that_has_seen_enough_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "resilisim", "tools", "list"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert "Traceback" not in done.stderr


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from resilisim.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('torch', 'faiss', 'sentence_transformers', 'numba', 'scipy', 'jsonschema')"
        " if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip().splitlines()[-1] == "[]"


def test_help_groups_the_options(command):
    for name in ("evaluate", "bound", "play"):
        text = command(name, "--help").out
        for heading in ("Law of the luck", "End rules", "Environment", "Output"):
            assert heading in text, (name, heading)
    words = " ".join(command("evaluate", "--help").out.replace("│", " ").split())
    for part in (
        "kpi-chain[theta=0.8]",
        "flawed:FLAW:SEVERITY; again for more. [default: (baseline)]",
        "[default: auto]",
    ):
        assert part in words
