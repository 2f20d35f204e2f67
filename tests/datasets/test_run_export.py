"""A run as Parquet tables: nothing of its records is lost, and no table is ever half there."""

import json
import sys
from itertools import islice
from pathlib import Path

import pandas
import pyarrow.parquet
import pytest

from resilisim.datasets import run_tables
from resilisim.datasets.run_tables import RUN_TABLES, export_run
from resilisim.errors import MissingExtraError, StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.record import FAILURE_SCHEMA, LAW_LABELS, LOSS_LABELS, RECORD_SCHEMA
from resilisim.evaluation.episode.texts import opened
from resilisim.evaluation.run.store import RunStore, read_failures, read_manifest, read_records
from resilisim.policies.agent_record import AGENT_SCHEMA
from resilisim.provenance import content_hash, encode_json_line
from tests.datasets.toy_source import no_file_above
from tests.evaluation.agent_models import FollowingModel, following
from tests.evaluation.synthetic import synthetic_run
from tests.evaluation.toy_policies import Quitter, Reading, toy_tasks

GOLDEN = Path(__file__).parents[1] / "golden" / "run_tables.json"
ARGUMENTS = {"num_episodes": 40, "seeds": [0, 1]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with everything in it: flawed plans, an LLM agent whose endpoint is down at times, failures."""

    def fails(request):
        return len(request.messages) > 3 and int(request.cache_scope[:8], 16) % 3 == 0

    folder = tmp_path_factory.mktemp("run")
    policies = [following(FollowingModel(fails)), Reading, Quitter]
    evaluate(policies, toy_tasks(), ("optimal", "flawed", "baseline"), 2, out=folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def tables(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    export_run(run, folder)
    return folder


def rows_of(folder, name):
    rows = pyarrow.parquet.read_table(folder / name).to_pylist()
    return rows


def write_synthetic(folder, count=40, **changes):
    """Write a run that nobody played."""
    arguments = {**ARGUMENTS, **changes}
    records = synthetic_run(num_tasks=5, num_seeds=4, prompts=("optimal",), policies=("random", "careful"))
    with RunStore(folder, arguments, 40) as store:
        for record in islice(records, count):
            line = encode_json_line({**record, "manifest": content_hash(arguments)})
            store.append_encoded(line, record["index"])
    return folder


def parsed(text):
    return None if text is None else json.loads(text)


def without_nulls(mapping, text, *optional):
    """Return a mapping of which one value is JSON text, without those that are optional and not there."""
    mapping = mapping | {text: parsed(mapping[text])}
    return {name: value for name, value in mapping.items() if value is not None or name not in (text, *optional)}


SUMS_OF_AGENTS = {
    *("agent_model", "agent_calls", "agent_seconds", "agent_cost"),
    *("agent_prompt_tokens", "agent_completion_tokens"),
}


def rebuilt_agent(row, calls):
    """Return the part of an LLM agent as its record has it."""
    own = {
        name.removeprefix("agent_"): value
        for name, value in row.items()
        if name.startswith("agent_") and name not in SUMS_OF_AGENTS
    }
    texts = ("options", "models", "counters", "components", "first_failure", "structure")
    return (
        own
        | {name: parsed(own[name]) for name in texts}
        | {
            "schema": AGENT_SCHEMA,
            "messages": [without_nulls(message, "tool_calls", "tool_call_id") for message in own["messages"]],
            "calls": [rebuilt_call(call) for call in calls],
            "events": [without_nulls(event, "details") for event in own["events"]],
        }
    )


def rebuilt_call(row):
    reply = {
        name: row[name] for name in ("thoughts", "text", "finish_reason", "latency_seconds", "attempts", "dropped")
    }
    usage = {name: row[name] for name in ("prompt_tokens", "completion_tokens", "is_estimate")}
    call = {name: row[name] for name in ("model", "turn", "messages", "tools", "from_cache", "cost")}
    return {
        **call,
        "role": row["component"],
        "settings": parsed(row["settings"]),
        "reply": {**reply, "usage": usage, "model": row["answered_by"], "tool_calls": parsed(row["tool_calls"])},
    }


def rebuilt(folder, manifest):
    """Return the records that tables were made of, from these tables alone."""
    steps, calls = rows_of(folder, "steps.parquet"), rows_of(folder, "calls.parquet")
    records = []
    for row in rows_of(folder, "episodes.parquet"):
        index = row["index"]
        flaw = {name: row[f"flaw_{name}"] for name in ("type", "method", "severity", "plan")}
        if row["flaw_limits"] is not None:
            flaw["limits"] = parsed(row["flaw_limits"])
        score = {name: row[name] for name in ("level", "coverage", "minimum", "order", "output", "completion")}
        losses = {label: row[f"loss_{label}"] for label in LOSS_LABELS if row.get(f"loss_{label}")}
        record = {
            "schema": RECORD_SCHEMA,
            **{name: row[name] for name in row if name in plain_columns()},
            "flaw": None if row["flaw_type"] is None else {**flaw, "edits": parsed(row["flaw_edits"])},
            "score": {**score, "ended_by": row["ended_by"]},
            "losses": losses,
            "law": parsed(row["law"]),
            "rules": parsed(row["rules"]),
            "manifest": manifest,
            "steps": [
                {name: step[name] for name in step if name not in KEY_NAMES | {"reply"}}
                for step in steps
                if step["index"] == index
            ],
        }
        assert row["num_steps"] == len(record["steps"])
        if row["prompt"] is not None:
            replies = [step["reply"] for step in steps if step["index"] == index]
            record["texts"] = {"prompt": row["prompt"], "replies": replies}
        if row["agent_architecture"] is not None:
            record["agent"] = rebuilt_agent(row, [call for call in calls if call["index"] == index])
        records.append(record)
    return records


KEY_NAMES = {column.name for column in run_tables.KEYS}


def plain_columns():
    """Return the columns that stand in a record under the same name, as they are."""
    return KEY_NAMES | {
        *("task_type", "complexity", "required_tools", "required_outputs", "privileged", "protocol", "planner"),
        *("outcome", "ended_by", "optimum", "optimum_gap", "regret", "luck", "salt"),
        *("optimum_after_searches", "searches_needed", "no_search_ceiling"),
    }


def test_records_can_be_built_again_from_the_tables(run, tables):
    records = [
        {**record, "losses": {label: loss for label, loss in record["losses"].items() if loss}}
        for record in map(opened, read_records(run))
    ]
    assert {"texts" in record for record in records} == {True, False}
    assert rebuilt(tables, read_manifest(run)["hash"]) == records
    assert {record["flaw"] is None for record in records} == {True, False}
    assert {"agent" in record for record in records} == {True, False}
    failures = list(read_failures(run))
    rows = [
        {name: value for name, value in row.items() if value is not None} for row in rows_of(tables, "failures.parquet")
    ]
    assert [{"schema": FAILURE_SCHEMA, **row} for row in rows] == failures
    assert failures


def test_every_table_says_what_run_it_is_of(run, tables):
    assert {path.name for path in tables.iterdir()} == set(RUN_TABLES)
    for name, schema in RUN_TABLES.items():
        metadata = pyarrow.parquet.read_schema(tables / name).metadata
        assert json.loads(metadata[b"resilisim.manifest"]) == read_manifest(run)
        assert metadata[b"resilisim.table"].decode() == schema.name


def test_columns_are_those_that_readers_rely_on(tables):
    found = {
        name: [[field.name, str(field.type)] for field in pyarrow.parquet.read_schema(tables / name)]
        for name in RUN_TABLES
    }
    losses = [name for name, _ in found["episodes.parquet"] if name.startswith("loss_")]
    assert losses == [*(f"loss_{label}" for label in LOSS_LABELS if label not in LAW_LABELS), "loss_other"]
    found["episodes.parquet"] = [column for column in found["episodes.parquet"] if column[0] not in losses]
    assert found == json.loads(GOLDEN.read_text())


def test_pandas_reads_them(run, tables):
    episodes = pandas.read_parquet(tables / "episodes.parquet")
    steps = pandas.read_parquet(tables / "steps.parquet")
    assert len(episodes) == len(list(read_records(run)))
    # The identity of the attribution holds for the columns, joined or not.
    gap = 1 - episodes["outcome"] - (1 - episodes["optimum"]) - episodes["regret"] + episodes["luck"]
    assert gap.abs().max() < 1e-9
    regret = steps.groupby("index")["regret"].sum()
    assert (episodes.set_index("index")["regret"] - regret).abs().max() < 1e-9


def test_an_export_is_repeated_when_the_run_has_grown(tmp_path):
    out = tmp_path / "out"
    for count in (0, 12, 40):
        result = export_run(write_synthetic(tmp_path / str(count), count), out)
        assert (result.num_episodes, result.num_planned) == (count, 40)
        assert [facts.file for facts in result.tables] == ["episodes.parquet", "steps.parquet", "failures.parquet"]
        for facts in result.tables:
            assert facts.num_records == len(rows_of(out, facts.file))
            assert facts.num_bytes == (out / facts.file).stat().st_size
    assert {path.name for path in out.iterdir()} == {facts.file for facts in result.tables}


def test_an_export_that_is_stopped_leaves_the_tables_from_before(tmp_path):
    run, out = write_synthetic(tmp_path / "run"), tmp_path / "out"
    seen = []

    def stop(number):
        seen.append(number)
        if len(seen) == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_run(run, out, progress=stop)
    assert list(out.iterdir()) == []
    export_run(run, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (out / ".steps.parquet.99999.tmp").write_bytes(b"what a kill has left")
    with no_file_above(2_000), pytest.raises(StoreError, match=r"cannot write .*parquet: .*; no table was changed"):
        export_run(run, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_broken_record_is_named(run, tmp_path):
    record = next(record for record in read_records(run) if "agent" in record)
    packed = record.pop("texts")
    for change, expected in (
        ({"agent": {}}, "field 'agent', field 'architecture'"),
        (
            {"agent": {name: value for name, value in record["agent"].items() if name != "components"}},
            "lacks 'components'",
        ),
        ({"agent": {**record["agent"], "calls": [{}]}}, "lacks 'reply'"),
        ({"agent": {**record["agent"], "models": 3}}, "field 'agent', field 'models': got 3; expected an object"),
        ({"seed": 2**63}, "field 'seed': got 9223372036854775808"),
        ({"luck": float("inf")}, "is not JSON"),
        ({"manifest": "0" * 64}, "belongs to another run"),
    ):
        folder = tmp_path / expected.split()[-1].strip("'")
        write_synthetic(folder, 0)
        line = json.dumps({**record, "manifest": content_hash(ARGUMENTS), **change}).encode() + b"\n"
        (folder / "episodes.jsonl").write_bytes(line)
        with pytest.raises(StoreError, match=expected) as refusal:
            export_run(folder, tmp_path / "out")
        assert "\n" not in str(refusal.value)
        assert list((tmp_path / "out").iterdir()) == []
    # What was said is no figure: without it the rest of a run is exported all the same.
    for number, (texts, warned) in enumerate(((packed[:-9], "are broken"), ("2:" + packed[2:], "by a later version"))):
        folder = tmp_path / str(number)
        write_synthetic(folder, 0)
        line = json.dumps({**record, "manifest": content_hash(ARGUMENTS), "texts": texts}).encode() + b"\n"
        (folder / "episodes.jsonl").write_bytes(line)
        with pytest.warns(UserWarning, match=f"{warned}.*the tables leave them out"):
            assert export_run(folder, tmp_path / "out").num_episodes == 1


def test_labels_of_other_versions_are_not_lost(tmp_path):
    run = write_synthetic(tmp_path / "run", 0)
    (record,) = synthetic_run(num_tasks=1, num_seeds=1, prompts=("optimal",), policies=("random",))
    changed = {
        **record,
        "manifest": content_hash(ARGUMENTS),
        "losses": {"a_new_one": 0.25, "another": 0.125, "wrong_order": 0.5},
    }
    (run / "episodes.jsonl").write_bytes(encode_json_line(changed))
    export_run(run, tmp_path / "out")
    (row,) = rows_of(tmp_path / "out", "episodes.parquet")
    assert (row["loss_other"], row["loss_wrong_order"], row["loss_unneeded_tool"]) == (0.375, 0.5, 0.0)


def test_tables_of_others_are_not_overwritten(tmp_path):
    run, out = write_synthetic(tmp_path / "run"), tmp_path / "out"
    export_run(write_synthetic(tmp_path / "other", seeds=[7]), out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(StoreError, match=r"episodes\.parquet is not a table of this run: use another folder"):
        export_run(run, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "calls.parquet").write_text("notes")
    with pytest.raises(StoreError, match=r"calls\.parquet is not a table of this run"):
        export_run(run, foreign)
    pandas.DataFrame({"a": [1]}).to_parquet(foreign / "calls.parquet")
    with pytest.raises(StoreError, match=r"calls\.parquet is not a table of this run"):
        export_run(run, foreign)


def test_what_is_no_run_or_cannot_be_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(StoreError, match="is not a folder of results"):
        export_run(tmp_path, tmp_path / "out")
    (tmp_path / "file").touch()
    run = write_synthetic(tmp_path / "run", 1)
    with pytest.raises(StoreError, match="cannot write to"):
        export_run(run, tmp_path / "file")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match=r"pip install -c constraints.txt '\.\[datasets\]'"):
        export_run(run, tmp_path / "out")
