"""Files from outside: records, manifests, JSON Lines, YAML and JSON texts, and the folders of worlds.

Whatever they hold, a reader takes it or refuses it in one line; it never raises anything else, hangs or unfolds it.
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resilisim import evaluate
from resilisim.errors import InvalidInputError, ResiliSimError, StoreError
from resilisim.evaluation import opened, read_manifest, read_records
from resilisim.evaluation.run.rescoring import rescore_run
from resilisim.evaluation.run.store import check_episode, read_failures
from resilisim.inputs import MAX_NESTING, json_problem, read_json, read_json_lines
from resilisim.reporting import write_report
from resilisim.simulator import load_law
from resilisim.worlds.pages import hotpotqa_world, loft_world
from resilisim.worlds.pages.hotpotqa_and_loft import read_pages
from resilisim.worlds.records import load_toolqa
from resilisim.yaml_text import MAX_DEPTH, read_yaml

BUDGET = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LONG = settings(max_examples=3_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

odd_numbers = st.sampled_from([2**63, -(2**63) - 1, 10**300, 10**400, 1e300, -0.0, 0, -1, 1.5, 5e-324])
odd_texts = st.text(max_size=20) | st.sampled_from(
    ["", "\x00", "\ud800", "\u2028", "\u202e", "\x1b[2J", "<script>alert(1)</script>", "a" * 3_000, "__proto__", "=1+1"]
)
json_values = st.recursive(
    st.none() | st.booleans() | odd_numbers | st.integers() | st.floats(allow_nan=False) | odd_texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_texts, inner, max_size=3),
    max_leaves=8,
)


def taken(read):
    """Return what a reader makes of something, or the one line in which it refuses it."""
    try:
        return read(), None
    except InvalidInputError as error:
        return None, str(error)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, with failures, texts and an agent's part."""
    out = tmp_path_factory.mktemp("fuzz") / "run"

    def agent(session):
        session.call(session.tools[0].name, {"source": "x"})
        session.note_usage(10, 5, cost=0.1, model="m")
        return "done"

    evaluate("plan-follower", agents=agent, tasks=2, out=out, record_texts="all")
    (out / "failures.jsonl").touch()
    return out


def places(value, path=()):
    """Return the path of every value in a JSON value."""
    found = [path]
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for place, item in enumerate(value[:3]):
            found += places(item, (*path, place))
    return found


def changed(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], new)
    return copy


def read_everything(folder):
    """Read a folder by each of its readers; each takes it or refuses it."""
    readers = [
        read_manifest,
        lambda out: [opened(record) for record in read_records(out)],
        lambda out: list(read_failures(out)),
        lambda out: rescore_run(out),
        lambda out: write_report(out, out / "report.html"),
    ]
    for read in readers:
        with contextlib.suppress(ResiliSimError):
            read(folder)


def attack_run(run, data):
    """Change a value of a record or the manifest, or bytes of a file."""
    name = data.draw(st.sampled_from(["episodes.jsonl", "manifest.json", "failures.jsonl", "chain.jsonl"]))
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there) / "run"
        shutil.copytree(run, folder)
        file = folder / name
        if name == "episodes.jsonl" and data.draw(st.booleans()):
            first, *rest = file.read_bytes().splitlines(keepends=True)
            record = json.loads(first)
            path = data.draw(st.sampled_from(places(record)))
            line = json.dumps(changed(record, path, data.draw(json_values))).encode() + b"\n"
            file.write_bytes(b"".join([line, *rest]))
        else:
            content = bytearray(file.read_bytes() if file.exists() else b"")
            place = data.draw(st.integers(0, len(content)))
            cut = place + data.draw(st.integers(0, 40))
            new = data.draw(st.binary(max_size=20) | odd_texts.map(lambda text: text.encode("utf-8", "surrogatepass")))
            file.write_bytes(bytes(content[:place] + new + content[cut:]))
        read_everything(folder)


@pytest.mark.long
@BUDGET
@given(data=st.data())
def test_a_changed_run_is_read_or_refused(run, data):
    attack_run(run, data)


@pytest.mark.fuzz
@LONG
@given(data=st.data())
def test_many_changed_runs_are_read_or_refused(run, data):
    attack_run(run, data)


@BUDGET
@given(data=st.data())
def test_what_passes_the_writer_passes_the_reader(run, data):
    """The writer's check and the reader never disagree on a line."""
    line = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)[0]
    record = json.loads(line)
    new = changed(record, data.draw(st.sampled_from(places(record))), data.draw(json_values))
    encoded = json.dumps(new, separators=(",", ":")).encode() + b"\n"
    with tempfile.TemporaryDirectory() as there:
        (Path(there) / "episodes.jsonl").write_bytes(encoded)
        shutil.copy(run / "manifest.json", there)
        try:
            check_episode(encoded)
        except StoreError:
            with pytest.raises(StoreError):
                list(read_records(there))
        else:
            assert list(read_records(there)) == [new]


@BUDGET
@given(text=st.text(max_size=200) | json_values.map(lambda value: json.dumps(value)))
def test_json_is_a_plain_value_or_refused(text):
    value, refusal = taken(lambda: read_json(text, "file"))
    assert "\n" not in (refusal or "")
    assert json_problem(value) is None
    assert read_json(json.dumps(value), "file") == value


@BUDGET
@given(values=st.lists(json_values.filter(lambda value: json_problem(value) is None), max_size=4))
def test_lines_of_json_are_read_as_they_were_written(values):
    text = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    assert [value for value, _ in read_json_lines(text, "file")] == values


yaml_pieces = st.lists(
    st.sampled_from(
        ["a", "b", ":", ": ", "- ", "[", "]", "{", "}", ",", "\n", "  ", "&x ", "*x", "!!str ", "'", '"', "|\n"]
    )
    | st.sampled_from(
        ["1e-3", "1e300", ".nan", "yes", "<<: ", "? ", "---\n", "# c\n", "base", "0x1", "\t", "\x00", "%YAML 1.1\n"]
    )
    | odd_texts,
    max_size=25,
).map("".join)


@settings(max_examples=100, deadline=None)
@given(text=yaml_pieces)
def test_yaml_is_a_plain_value_or_refused(text):
    value, refusal = taken(lambda: read_yaml(text, "file"))
    assert "\n" not in (refusal or "")
    assert json.loads(json.dumps(value)) == value
    assert max(map(len, places(value))) <= MAX_DEPTH <= MAX_NESTING


@BUDGET
@given(text=yaml_pieces | json_values.map(lambda value: json.dumps(value)))
def test_a_law_file_is_a_law_or_refused(text):
    with tempfile.TemporaryDirectory() as there:
        for name in ("law.yaml", "law.json"):
            file = Path(there) / name
            file.write_bytes(text.encode("utf-8", "surrogatepass"))
            with contextlib.suppress(InvalidInputError):
                load_law(file)


QUESTION = {"_id": "1", "question": "Who?", "answer": "x", "supporting_facts": [["A", 0]], "context": [["A", ["b"]]]}
PASSAGE = {"pid": "p", "title_text": "A", "passage_text": "b"}
QUERY = {"qid": "1", "query_text": "Who?", "answers": ["x"], "metadata": {"qrels": [["p", 1]]}}
TOOLQA = {"qid": "easy-flight-0", "question": "Who?", "answer": "x"}


def attacked(data, value):
    """Return lines of JSON of a value, one of its parts changed, or any text."""
    if data.draw(st.integers(0, 4)) == 0:
        return data.draw(odd_texts)
    return json.dumps(changed(value, data.draw(st.sampled_from(places(value))), data.draw(json_values)))


def attack_worlds(data):
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)

        def write(name, text):
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8", "surrogatepass"))
            return file

        file = write(
            "hotpot.json", f"[{attacked(data, QUESTION)}]" if data.draw(st.booleans()) else attacked(data, QUESTION)
        )
        write("corpus.jsonl", attacked(data, PASSAGE))
        write("dev_queries.jsonl", attacked(data, QUERY))
        write("data/questions/easy/flight-easy.jsonl", attacked(data, TOOLQA))
        write("Page.txt", data.draw(odd_texts))
        for load in (
            lambda: hotpotqa_world(file).tasks(),
            lambda: loft_world(folder).tasks(),
            lambda: load_toolqa(folder).tasks(),
            lambda: read_pages(folder),
        ):
            with contextlib.suppress(InvalidInputError):
                load()


@BUDGET
@given(data=st.data())
def test_folders_of_worlds_are_read_or_refused(data):
    attack_worlds(data)


@pytest.mark.fuzz
@LONG
@given(data=st.data())
def test_many_folders_of_worlds_are_read_or_refused(data):
    attack_worlds(data)
