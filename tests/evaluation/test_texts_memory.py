"""Packed texts that would take a thousand times their size are refused before they are read."""

from __future__ import annotations

import base64
import resource
import zlib
from typing import Any

import pytest

from resilisim.errors import StoreError
from resilisim.evaluation import evaluate, opened, read_records
from resilisim.evaluation.episode import texts
from tests.evaluation.toy_policies import toy_tasks


def packed(data: bytes, record: Any) -> str:
    packer = zlib.compressobj(1, zdict=texts._dictionary(record))
    return texts.FORMAT + base64.b64encode(packer.compress(data) + packer.flush()).decode("ascii")


BOMBS = {
    "lists of lists": lambda: b"[" + b",".join([b"[]"] * 5_000_000) + b"]",
    "objects": lambda: b'{"spoken":[' + b",".join([b"{}"] * 5_000_000) + b"]}",
    "numbers": lambda: b'{"spoken":[' + b",".join([b"1"] * 2_000_000) + b"]}",
    "short texts": lambda: b'{"spoken":[' + b",".join([b'"a"'] * 2_000_000) + b"]}",
    "nested": lambda: b"[" * 2_000_000 + b"]" * 2_000_000,
}


@pytest.fixture(scope="module")
def record() -> Any:
    result = evaluate("plan-follower", toy_tasks(1), "optimal", record_texts="all")
    return next(read_records(result.directory))


@pytest.mark.parametrize("name", BOMBS)
def test_many_small_parts_are_refused_before_they_are_read(name: str, record: Any) -> None:
    text = packed(BOMBS[name](), record)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreError, match=r"^the texts of episode 0 are broken: [^\n]*$"):
        opened({**record, "texts": text})
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 1_200  # MB, of which the unpacked text itself is up to 256


def test_a_text_that_is_too_long_is_refused_before_its_end(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "MOST_BYTES", 20_000_000)
    text = packed(b'{"spoken":{"prompt":"' + b"a" * 30_000_000, record)
    with pytest.raises(StoreError, match=r"^the texts of episode 0 are broken: [^\n]*$"):
        opened({**record, "texts": text})


def test_long_texts_with_many_commas_are_read(record: Any) -> None:
    prompt = 'a, b [c] {d} \\" ' * 400_000
    whole = opened(record) | {"texts": {"prompt": prompt, "replies": [""] * len(record["steps"])}}
    assert opened(texts.stored(whole, "all"))["texts"]["prompt"] == prompt


def test_what_no_record_has_is_refused(record: Any) -> None:
    for extra in (b'{"spoken":null,"more":1}', b"[]", b'{"spoken":{"prompt":"","replies":[],"more":1}}'):
        with pytest.raises(StoreError, match="are broken"):
            opened({**record, "texts": packed(extra, record)})
