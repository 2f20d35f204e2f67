"""The installed commands, each in a process of its own, as a user runs them."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path


def run(*arguments, cwd=None, stdin=None):
    command = [str(Path(sys.executable).parent / "resilisim"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=300, check=False)


def test_command_and_module_are_the_same():
    by_module = subprocess.run(
        [sys.executable, "-m", "resilisim", "--help"], capture_output=True, text=True, check=True
    )
    assert by_module.stdout == run("--help").stdout


def test_refusals_have_exit_code_2_and_one_line():
    done = run("bound", "--required", "file_operations_reeder")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_policy_in_the_working_folder_is_evaluated_by_two_workers(tmp_path):
    (tmp_path / "my_policy.py").write_text(
        "class Quitter:\n"
        "    def reset(self, observation, info):\n        pass\n\n"
        "    def act(self, observation, info):\n        return None\n",
        encoding="utf-8",
    )
    arguments = ["--policy", "my_policy:Quitter", "--tasks", 4, "--out", "results", "--workers", 2, "--json"]
    done = run("evaluate", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)["results"][0]
    assert result["policy"] == "Quitter"
    assert result["success"]["value"] == 0.0
    assert result["biggest_loss"] == "gave_up_early"


def test_play_in_a_terminal(tmp_path):
    task = tmp_path / "tasks.jsonl"
    task.write_text('{"instance_id": "task_a", "required_tools": ["file_operations_reader"]}\n', encoding="utf-8")
    ours, theirs = pty.openpty()
    arguments = ["play", "--task", "task_a", "--tasks", str(task), "--success-probability", "1"]
    player = subprocess.Popen(
        [str(Path(sys.executable).parent / "resilisim"), *arguments], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, b"c file_operations_reader\nf\n")
    shown = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # the terminal closes with its last process
            break
        if not block:
            break
        shown += block
    assert player.wait(timeout=300) == 0
    text = shown.decode("utf-8", "replace")
    assert "[10 turns left]" in text
    assert "full_success" in text
    assert "Traceback" not in text
