"""JSON Lines that survive a kill, a full disk and a second writer; hashes that depend on content alone."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim import run_folder
from resilisim.errors import StoreError
from resilisim.provenance import canonical_json, content_hash, encode_json
from resilisim.run_folder import (
    ABSENT,
    JsonLinesWriter,
    first_difference,
    load_manifest,
    read_json_lines,
    refuse_other_arguments,
    run_manifest,
)
from tests.guards import WAITING_SECONDS

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_hashes_are_of_the_one_canonical_text() -> None:
    assert canonical_json({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(float("nan"))
    assert content_hash(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert content_hash({"b": 1, "a": 2}) == content_hash(b'{"a":2,"b":1}') != content_hash({"a": 1})
    manifest = run_manifest({"seeds": [0, 1]})
    assert manifest["hash"] == content_hash({"seeds": [0, 1]})
    assert set(manifest["versions"]) == {"python", "resilisim", "numpy", "gymnasium"}
    json.loads(canonical_json(manifest))


@given(values=st.lists(json_values, max_size=6), data=st.data())
def test_a_file_cut_anywhere_gives_its_whole_lines_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, values: list[object], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "lines.jsonl"
    with JsonLinesWriter(path) as writer:
        for value in values:
            writer.write(value)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert list(read_json_lines(path)) == values[:kept]
    with JsonLinesWriter(path) as writer:
        for value in values[kept:]:
            writer.write(value)
    assert path.read_bytes() == whole


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'{"a":1}\n' + b"x" * (3 * run_folder.TAIL_BLOCK + 7))
    JsonLinesWriter(path).close()
    assert path.read_bytes() == b'{"a":1}\n'
    path.write_bytes(b"x" * (2 * run_folder.TAIL_BLOCK))
    JsonLinesWriter(path).close()
    assert path.read_bytes() == b""


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    room = 25
    write = os.write

    def limited_write(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = write(descriptor, data[:room])
        room -= written
        return written

    with JsonLinesWriter(path) as writer:
        monkeypatch.setattr(run_folder.os, "write", limited_write)
        writer.write({"number": 1})
        with pytest.raises(StoreError, match="disk is full") as failure:
            writer.write({"number": 2})
        assert "\n" not in str(failure.value)
        assert path.read_bytes() == b'{"number":1}\n'
        room = 1000
        writer.write({"number": 3})
    assert list(read_json_lines(path)) == [{"number": 1}, {"number": 3}]


def test_the_real_full_device() -> None:
    with pytest.raises(StoreError, match="/dev/full: "), JsonLinesWriter("/dev/full") as writer:
        writer.write({"number": 1})


def test_every_line_is_utf8_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    values = ["é€", {"half": "\ud800 é"}, "\udfff"]
    with JsonLinesWriter(path) as writer:
        for value in values:
            writer.write(value)
    assert path.read_text(encoding="utf-8").splitlines() == ['"é€"', r'{"half":"\ud800 \u00e9"}', r'"\udfff"']
    assert list(read_json_lines(path)) == values
    assert encode_json({"a": ["\ud800"]}, indent=1) == b'{\n "a": [\n  "\\ud800"\n ]\n}'


@pytest.mark.parametrize(
    "line", [b"nonsense", b'"\xed\xa0\x80"', b"\xff", b'{"a":NaN}', b"[" * 100_000, b'{"a":-Infinity}', b"1" * 5000]
)
def test_whole_lines_that_are_not_json_are_refused_in_one_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"1\n" + line + b"\n2\n")
    lines = read_json_lines(path)
    assert next(lines) == 1
    with pytest.raises(StoreError, match=r"^line 2 of .*lines\.jsonl is not JSON: [^\n]*$"):
        next(lines)


def test_a_file_has_one_writer_and_its_folder_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    with JsonLinesWriter(path), pytest.raises(StoreError, match="another process is writing"):
        JsonLinesWriter(path)
    JsonLinesWriter(path).close()
    with pytest.raises(StoreError, match="no such file or directory"):
        JsonLinesWriter(tmp_path / "absent" / "lines.jsonl")
    with pytest.raises(StoreError, match="cannot read"):
        next(read_json_lines(tmp_path / "absent.jsonl"))


def test_a_killed_writer_leaves_a_prefix(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    script = (
        "import sys, itertools\n"
        "from resilisim.run_folder import JsonLinesWriter\n"
        "writer = JsonLinesWriter(sys.argv[1])\n"
        "for number in itertools.count():\n"
        "    writer.write({'number': number, 'padding': 'x' * 5000})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)])
    while not path.exists() or path.stat().st_size < 200_000:
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    with JsonLinesWriter(path) as writer:
        writer.write({"number": -1})
    numbers = [value["number"] for value in read_json_lines(path)]
    assert numbers == [*range(len(numbers) - 1), -1]


def test_a_pipe_whose_reader_has_gone_ends_the_writer(tmp_path):
    code = (
        "from resilisim.run_folder import JsonLinesWriter\n"
        "with JsonLinesWriter('/dev/stdout') as writer:\n"
        "    for number in range(100_000):\n"
        "        writer.write({'number': number})\n"
    )
    shell = f'{sys.executable} -c "{code}" 2>{tmp_path / "errors"} | head -n 2'
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=WAITING_SECONDS, check=False)
    assert done.stdout.splitlines() == ['{"number":0}', '{"number":1}']


THERE = {"num_episodes": 40, "policies": ["a"], "seeds": [0], "checkpoints": {"a": 1}}


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ({"b": 1, "a": {"c": [1]}}, {"b": 2, "a": {"c": [2]}}, ("a.c", [1], [2])),
        ({"a": 1}, {"a": 1}, None),
        ({"a": None}, {}, ("a", None, ABSENT)),
        # What was typed is named before what follows from it.
        (THERE, {**THERE, "num_episodes": 60, "seeds": [0, 1]}, ("seeds", [0], [0, 1])),
        (THERE, {**THERE, "policies": ["b"], "checkpoints": {"b": 1}}, ("policies", ["a"], ["b"])),
        (THERE, {**THERE, "num_episodes": 60}, ("num_episodes", 40, 60)),
    ],
)
def test_the_first_difference_is_the_most_telling(there: object, here: object, expected: object) -> None:
    assert first_difference(there, here) == expected


def test_long_lists_that_begin_alike_are_told_apart_by_their_length(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"seeds is 40 values: \[0, .* there and 60 values: \[0, .* here"):
        refuse_other_arguments(tmp_path, {"seeds": list(range(40))}, {"seeds": list(range(60))})


@pytest.mark.parametrize(
    "text",
    [
        '{"schema": "resilisim-manifest-1", "arguments": {"x": NaN}, "hash": "a"}',
        '{"schema": "resilisim-manifest-1", "arguments": {"x": 1e999}, "hash": "a"}',
        '{"schema": "resilisim-manifest-1", "arguments": {"x": ' + "9" * 5000 + '}, "hash": "a"}',
        '{"schema": "resilisim-manifest-1", "arguments": ' + "[" * 5000 + "]" * 5000 + ', "hash": "a"}',
        '{"schema": "resilisim-manifest-1", "arguments": {}, "arguments": {"x": 1}, "hash": "a"}',
        '{"schema": "resilisim-manifest-1", "arguments": 5, "hash": "a"}',
        '{"schema": "resilisim-manifest-1", "hash": []}',
        "[]",
        "\x00",
    ],
)
def test_a_manifest_that_nobody_wrote_is_refused_in_one_line(text, tmp_path):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(StoreError) as caught:
        load_manifest(tmp_path / "manifest.json")
    assert "\n" not in str(caught.value)


def test_arguments_that_no_manifest_may_hold_are_refused():
    deep = 1
    for _ in range(100):
        deep = [deep]
    for value in (10**400, deep):
        with pytest.raises(StoreError, match="the arguments of a run cannot be written"):
            run_manifest({"x": value})
    assert run_manifest({"salt": "\ud800"})["arguments"] == {"salt": "\ud800"}


def test_a_line_that_is_open_is_there_and_ended_in_its_place(tmp_path):
    path = tmp_path / "lines.jsonl"
    with JsonLinesWriter(path) as writer:
        first = writer.write_open(b'{"a":1}\n', room=40)
        assert list(read_json_lines(path)) == [{"a": 1}], "whatever happens next"
        second = writer.write_open(b'{"b":1}\n', room=40)
        writer.write_in_place(first, b'{"a":2,"c":"it fits"}\n')
        writer.write_in_place(second, b'{"b":2,"c":"' + b"x" * 100 + b'"}\n')  # the last may be longer
        with pytest.raises(ValueError, match="does not fit"):
            writer.write_in_place(first, b'{"a":3,"c":"' + b"x" * 100 + b'"}\n')
        third = writer.write_open(b'{"d":1}\n', room=40)
        writer.write_in_place(third, b'{"d":2}\n')
        writer.write({"e": 1})
    assert list(read_json_lines(path)) == [{"a": 2, "c": "it fits"}, {"b": 2, "c": "x" * 100}, {"d": 2}, {"e": 1}]
    assert path.read_bytes().endswith(b'{"d":2}\n{"e":1}\n')
