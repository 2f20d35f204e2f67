"""Runs written from records, and pages read with a strict eye."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from resilisim.evaluation.run.store import RunStore
from resilisim.evaluation.table.facts import RunFacts, read_facts
from resilisim.provenance import content_hash, encode_json_line
from resilisim.reporting import write_report
from resilisim.reporting.viewer import BLOCK_TYPE
from resilisim.tables.table import Cell, CellLike

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>|[x](javascript:y)&\"'`*_#"
VOID = {"br", "hr", "img", "meta", "link", "col"}
EPISODE_LINK = re.compile(r"#episode-\d+")


class Checker(HTMLParser):
    """Reads a page, insists that elements are nested properly, and collects what it finds.

    Attributes:
        tables: The texts of the cells of each table, row by row.
    """

    def __init__(self, page: str = "") -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.scripts: list[str | None] = []
        self.tables: list[list[list[str]]] = []
        if page:
            self.feed(page)
            self.close()
            assert self.open == []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def values(self, *names: str) -> list[str]:
        """Return the values of attributes of these names."""
        return [value or "" for _, name, value in self.attributes if name in names]

    @property
    def ids(self) -> list[str]:
        return self.values("id")

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


def facts_of(folder: Path, records: Sequence[Mapping[str, Any]], **more: Any) -> RunFacts:
    """Write records as a run and return its facts."""
    return read_facts(write_run(folder, records, **more))


def make_run(folder: Path, records: Sequence[Mapping[str, Any]], planned: int | None = None) -> Path:
    """Write records as a run and return its report."""
    return write_report(write_run(folder, records, planned))


def check(path: Path) -> Checker:
    """Read a report and assert what must hold for each."""
    text = path.read_text(encoding="utf-8")
    page = Checker(text)
    assert not {"iframe", "object", "embed", "img"} & set(page.tags)
    # One script, the viewer's own; all others are data, which browsers do not run.
    assert [kind for kind in page.scripts if kind != BLOCK_TYPE] == [None]
    names = {name for _, name, _ in page.attributes}
    assert not any(name.startswith("on") or name == "style" for name in names)
    links = page.values("href", "src", "xlink:href")
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert len(page.ids) == len(set(page.ids))
    # The viewer's script opens episodes.
    targets = {link[1:] for link in links if link.startswith("#") and not EPISODE_LINK.fullmatch(link)}
    assert targets | set(" ".join(page.values("aria-labelledby")).split()) <= set(page.ids)
    shown = re.sub(r"<script.*?</script>", " ", text, flags=re.DOTALL)  # packed episodes may spell anything
    assert not any(word in shown for word in ("url(", "@import", "NaN"))
    assert "nan" not in re.sub(r"<[^>]*>", " ", shown).split()
    return page
