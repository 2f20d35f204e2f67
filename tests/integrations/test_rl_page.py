"""The page about RL libraries: its examples are short, and each has its check in `make integrations`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations" / "rl-libraries.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_at_most_ten_lines_besides_imports(block: str) -> None:
    lines = [line for line in block.splitlines() if line and not line.startswith(("import ", "from "))]
    assert len(lines) <= 10
    ast.parse(block)
    assert max(map(len, block.splitlines())) <= 130


def test_every_section_is_run_by_a_check_with_pinned_versions() -> None:
    sections = [text.partition("\n")[0] for text in PAGE.split("\n## ")[1:]]
    checks = {path.parent: path.read_text(encoding="utf-8") for path in ROOT.glob("integrations/*/check.py")}
    for section in sections:
        (folder,) = [each for each, text in checks.items() if f'section="{section}"' in text]
        pinned = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
        assert "torch==2.13.0" in pinned, "a free range may bring gigabytes of CUDA"
        assert all("==" in line for line in pinned)


def test_no_page_installs_what_is_on_no_index() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("resilisim/**/*.py")]
    told = re.compile(r"pip install[^\n`]* '?\"?resilisim(?!-\d)\b(?!\.|/)")
    assert not [path for path in pages if told.search(path.read_text(encoding="utf-8"))]
