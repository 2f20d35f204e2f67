"""Runs written from records, and pages read with a strict eye."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from resilisim.evaluation.report import write_report
from resilisim.evaluation.report.page import Cell, CellLike
from resilisim.evaluation.report.viewer import BLOCK_TYPE as DATA
from resilisim.evaluation.run.store import RunStore
from resilisim.provenance import content_hash, encode_json_line

VOID = {"br", "hr", "img", "meta", "link", "col"}
EPISODE_LINK = re.compile(r"#episode-\d+")


class Checker(HTMLParser):
    """Reads a page, insists that elements are nested properly, and collects what it finds.

    Attributes:
        tables: The texts of the cells of each table, row by row.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str | None] = []
        self.tables: list[list[list[str]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "script":
            self.scripts.append(dict(attributes).get("type"))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")
        self.attributes += [(tag, name, value) for name, value in attributes]
        self.ids += [value or "" for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"script", "style"}:
            return
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data


def text_of(cell: CellLike) -> str:
    return cell.text if isinstance(cell, Cell) else cell


def write_run(folder: Path, records: Sequence[Mapping[str, Any]], planned: int | None = None, **more: Any) -> Path:
    """Write records as a run, with more arguments in its manifest, and return its folder."""
    policies = list(dict.fromkeys(record["policy"] for record in records)) or ["random"]
    arguments = {
        "benchmark": {"version": "benchmark-v1", "sha256": "abc"},
        "num_episodes": planned or len(records),
        "policy_names": policies,
        "prompts": list(dict.fromkeys(record["prompt_type"] for record in records)),
        "seeds": [0, 1],
        **more,
    }
    with RunStore(folder, arguments, arguments["num_episodes"]) as store:
        for index, record in enumerate(records):
            own = {**record, "index": index, "manifest": content_hash(arguments)}
            store.append_encoded(encode_json_line(own), index)
    return folder


def make_run(folder: Path, records: Sequence[Mapping[str, Any]], planned: int | None = None, **more: Any) -> Path:
    """Write records as a run and return its report."""
    return write_report(write_run(folder, records, planned, **more))


def check(path: Path) -> Checker:
    """Read a report and assert what must hold for each."""
    text = path.read_text(encoding="utf-8")
    page = Checker()
    page.feed(text)
    page.close()
    assert page.open == []
    assert not {"iframe", "object", "embed", "img"} & set(page.tags)
    # One script, the viewer's own; all others are data, which browsers do not run.
    assert [kind for kind in page.scripts if kind != DATA] == [None]
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        if name in {"href", "src", "xlink:href"}:
            assert value is not None
            assert value.startswith(("#", "data:,")), (tag, name, value)
        if name == "style":
            raise AssertionError("inline style")
    assert len(page.ids) == len(set(page.ids))
    targets = {value for _, name, value in page.attributes if name == "href" and value and value.startswith("#")}
    targets = {target for target in targets if not EPISODE_LINK.fullmatch(target)}  # the viewer's script opens those
    assert targets <= {f"#{target}" for target in page.ids}
    shown = re.sub(r"<script.*?</script>", " ", text, flags=re.DOTALL)  # packed episodes may spell anything
    assert "url(" not in shown
    assert "@import" not in shown
    assert "NaN" not in shown
    assert "nan" not in re.sub(r"<[^>]*>", " ", shown).split()
    for label_id in (value for _, name, value in page.attributes if name == "aria-labelledby"):
        assert set((label_id or "").split()) <= set(page.ids)
    return page
