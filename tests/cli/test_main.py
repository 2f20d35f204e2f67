from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import resilisim
from resilisim.cli.main import COMMANDS, MOVED, RUNS, load_command
from resilisim.cli.output import console
from resilisim.tasks.benchmark import benchmark_tasks


def test_bare_command_and_help_list_every_command(command):
    for arguments in ([], ["--help"], ["-h"]):
        outcome = command(*arguments)
        assert outcome.code == 0
        for name in COMMANDS:
            assert name in outcome.out


@pytest.mark.parametrize(
    ("group", "listed"), [("tools", "search"), ("tasks", "enhance"), ("agents", "check"), ("runs", "compare")]
)
def test_bare_group_shows_its_help(command, group, listed):
    outcome = command(group)
    assert outcome.code == 0
    assert listed in outcome.out


def test_version(command):
    assert command("--version").out == f"resilisim {resilisim.__version__}\n"


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


@pytest.mark.parametrize("listed", [COMMANDS, RUNS], ids=["commands", "runs"])
def test_a_list_of_commands_says_what_each_says_of_itself(listed):
    for name, (place, summary) in listed.items():
        assert load_command(name, place, summary).help.partition("\n\n")[0].replace("\n", " ") == summary


def test_the_list_of_commands_fits_a_screen(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("--help").out.splitlines()
    assert len(lines) < 24  # the prompt takes a line, too
    assert max(map(len, lines)) <= 80
    assert len(COMMANDS) <= 19


@pytest.mark.parametrize("old", MOVED)
def test_an_old_spelling_is_answered_by_the_new_one(command, old):
    assert command(*old.split(), "NAME").refusal() == f"resilisim: `resilisim {old}` is now `resilisim {MOVED[old]}`"
    assert command(*MOVED[old].split(), "--help").code == 0


def test_no_text_names_an_old_spelling():
    root = Path(__file__).resolve().parents[2]
    places = (
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        ".ci/run",
        "docs",
        "resilisim",
        "examples",
        "benchmarks",
        "integrations",
    )
    files = [file for place in places for file in [root / place, *(root / place).rglob("*.*")] if file.is_file()]
    old = re.compile(
        rf"\bresilisim ({'|'.join(name for name in MOVED if name != 'agents')}|agents (?!list|show|check))\b"
    )
    texts = {
        file: file.read_text("utf-8") for file in files if file.suffix in ("", ".md", ".py", ".txt", ".html", ".js")
    }
    assert len(texts) > 300
    named = {str(file): old.search(text.replace("python -m ", "")) for file, text in texts.items()}
    assert [(file, match[0]) for file, match in named.items() if match] == []


def test_a_command_that_never_was_is_none_that_has_moved(command):
    assert command("compar").refusal() == "resilisim: unknown command 'compar': did you mean `resilisim runs compare`?"
    assert command("runs", "compar").refusal() == "resilisim: unknown command 'compar': did you mean 'compare'?"
    # Near a name of the group, but exactly that of a command elsewhere.
    assert (
        command("runs", "report").refusal() == "resilisim: unknown command 'report': did you mean `resilisim report`?"
    )
    assert command("frobnicate").refusal() == "resilisim: unknown command 'frobnicate'"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("bound --slow", "unknown option '--slow': did you mean '--law'?"),
        ("bound --requird a", "unknown option '--requird': did you mean '--required'?"),
        ("bound --required", "--required needs a value"),
        ("bound surplus", "unexpected after the command and its arguments: surplus"),
        ("report", "DIR is missing"),
        ("evaluate --policy random", "--out is missing"),
        ("bound --turns ten", "--turns is 'ten': expected a whole number"),
        ("bound --turns=0", "--turns is '0': expected at least 1"),
        ("bound --search lexcal", "unknown value 'lexcal' in --search: did you mean 'lexical'?"),
        ("bound --search xyz", "unknown value 'xyz' in --search: expected one of semantic, lexical"),
    ],
)
def test_what_the_parser_refuses_is_said_as_every_other_refusal(command, words, line):
    assert command(*words.split()).refusal() == f"resilisim: {line}"


def test_help_groups_the_options(command):
    for name in ("evaluate", "bound", "play"):
        text = command(name, "--help").out
        for heading in ("Failure model", "End rules", "Environment", "Output"):
            assert heading in text, (name, heading)
    words = " ".join(command("evaluate", "--help").out.split())
    assert " ]" not in command("mcp", "serve", "--help").out  # behind --seed, which has no upper bound
    for part in ("react[steps=10]", "flawed:FLAW:SEVERITY; repeatable. [default: (baseline)]", "[default: auto]"):
        assert part in words


def all_commands():
    """Yield the words of each command, and the command."""

    def inside(words, found):
        yield words, found
        for name in getattr(found, "commands", ()):
            yield from inside((*words, name), found.get_command(None, name))

    for name, (place, summary) in COMMANDS.items():
        yield from inside((name,), load_command(name, place, summary))


@pytest.mark.parametrize(
    ("words", "made"), list(all_commands()), ids=lambda value: str(value) if type(value) is tuple else ""
)
def test_help_fits_80_columns_and_cuts_no_name(command, words, made):
    text = command(*words, "--help").out
    assert max(len(line) for line in text.splitlines()) <= 80
    for parameter in made.params:
        assert all(name in text for name in parameter.opts if name.startswith("--")), parameter.name


FULL = "resilisim: the output cannot be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("tools list --json | head -c 1", 0, ""),
        ("tools list >/dev/full", 3, FULL),
        ("--help >/dev/full", 3, FULL),
        ("tools list >&-", 3, "resilisim: the output cannot be written: Bad file descriptor\n"),
        ("tools list 2>&- >/dev/null", 0, ""),
    ],
)
def test_an_output_that_is_closed_or_full_is_told_in_a_line(arguments, code, told, python):
    script = f"set -o pipefail; {shlex.join(python)} -m resilisim {arguments}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, told)


def test_bytes_that_are_no_text_can_be_typed(python):
    typed = b"c nonsense\xff\xfe\nf\n"
    arguments = ["play", "--json", "--search", "lexical", "--task", benchmark_tasks()[0].instance_id]
    done = subprocess.run([*python, "-m", "resilisim", *arguments], input=typed, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"][0]["message"] == "<tool_call>nonsense\ufffd\ufffd</tool_call>"


def test_what_only_prints_leaves_the_working_folder_clean(command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for line in ("tasks stats", "bound --required file_operations_reader,data_processing_parser", "agents list"):
        assert command(*line.split()).code == 0
    assert not list(tmp_path.iterdir())


# Integers that nobody means, on every option that takes one; whether the core refuses them, too, is tested there.
def test_every_option_that_takes_a_whole_number_has_its_largest():
    every = [([*words, option.opts[-1]], option) for words, made in all_commands() for option in made.params]
    checked_later = {"train --seed", "train --steps", "runs profile --turns"}
    for path, option in every:
        described = getattr(option, "type_descriptor", None)
        if described is not None and "int" in str(described.annotation):
            assert option.max is not None or " ".join(path) in checked_later, path


@pytest.mark.parametrize("width", ["72", "200"])
def test_a_pipe_is_as_wide_as_columns_says(command, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    lines = command("tools", "show", "file_operations_reader").out.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert console().width == int(width)
