"""The `python` blocks of a page of docs/integrations, run as they stand but for what needs another network or hours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parent.parent / "docs" / "integrations"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\w+\.py)\n")


def run_blocks(
    page: str,
    instead: Mapping[str, str],
    take_file: Callable[[str, str], None] = lambda name, text: None,
    section: str = "",
) -> dict[str, Any]:
    """Run the blocks of a page one after the other, and return the names that they leave.

    Args:
        page: Its name.
        instead: What stands in place of texts of the page, each of which must occur.
        take_file: Takes a block that begins with the name of a file, and its name; it is not run.
        section: Heading of the only section whose blocks are run; all are if empty.
    """
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    blocks = _BLOCK.findall(text)
    assert blocks, f"{page} has no block"
    for old in instead:
        assert any(old in block for block in blocks), f"{page} does not hold {old!r}"
    names: dict[str, Any] = {"__name__": page}
    for block in blocks:
        for old, new in instead.items():
            block = block.replace(old, new)
        file = _FILE_NAME.match(block)
        if file is None:
            exec(compile(block, f"{page}.md", "exec"), names)
        else:
            take_file(file[1], block)
    print(f"{page}.md {section}: {len(blocks)} blocks were run")
    return names
