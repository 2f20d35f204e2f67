"""The pack of the viewer: what comes out is what went in, what does not fit is missing at the end, no text escapes."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilisim.evaluation.episode.record import LOSS_LABELS, EpisodeRecord
from resilisim.evaluation.episode.texts import opened, replies_of, stored
from resilisim.evaluation.report.page import page_policy
from resilisim.evaluation.report.viewer import viewer_assets, viewer_section
from resilisim.evaluation.report.viewer.packing import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    COLUMNS,
    EPISODE_LENGTH,
    LONGEST_NAME,
    MESSAGE_LENGTH,
    MOST_EVENTS,
    MOST_NAMES,
    OTHER,
    Budget,
    Numbering,
    Pack,
    Packer,
    Rank,
    Shortlist,
    encode,
    episode_texts,
    pack_chunks,
    rank_of,
    readable_message,
    short,
)
from resilisim.provenance import content_hash
from tests.evaluation.synthetic import synthetic_run

EVIL = "</script><script>alert('x')</script><!--&\"'\x00\x1b[31m\ud800\u202eevil"
KINDS = ("steps", "texts", "talks")
FLAW = {
    "type": "missing_step",
    "severity": "severe",
    "method": "middle_step_removal",
    "edits": [{"what": "removed", "where": {"step": 2}, "before": "data_processing_parser", "after": None}],
}


def unpack_block(block: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(block)))


def packed(records: list[EpisodeRecord], budget: Budget | None = None) -> Pack:
    packer = Packer(budget)
    for record in records:
        packer.add(record)
    return packer.pack("resilisim episode show run", {records[0]["instance_id"]: "Read the file."})


def unpacked(pack: Pack) -> list[dict[str, Any]]:
    """Read a pack as the script does, episode by episode."""
    index = unpack_block(pack.index)
    tables, columns, starts = index["tables"], index["columns"], index["starts"]
    rows = {kind: [row for block in getattr(pack, kind) for row in unpack_block(block)] for kind in KINDS}
    strings = [text for brought, *_ in rows["talks"] for text in brought]
    sizes = (pack.num_packed, pack.num_with_texts, pack.num_with_talks)
    assert [len(rows[kind]) for kind in KINDS] == [starts[kind][-1] for kind in KINDS] == list(sizes)
    assert len(strings) == starts["strings"][-1]
    for block, (first, last) in zip(pack.talks, itertools.pairwise(starts["strings"]), strict=True):
        assert sum(len(brought) for brought, *_ in unpack_block(block)) == last - first
    talks = dict(zip(index["with_talks"], rows["talks"], strict=True))

    def talk(row: int) -> Any:
        if row not in talks:
            return None
        _, prompt, replies, calls = talks[row]
        told = [[(role, strings[number]) for role, number in call[2]] for call in calls]
        return {
            "prompt": None if prompt is None else strings[prompt],
            "replies": replies,
            "calls": [(call[0], call[1], heard, call[3], call[4]) for call, heard in zip(calls, told, strict=True)],
        }

    def named(table: str, number: int) -> Any:
        return None if number < 0 else tables[table][number]

    episodes = []
    for row in range(pack.num_packed):
        at = {name: columns[name][row] for name in (*COLUMNS, "causes", "tools")}
        name, policy, model, privileged = tables["policies"][at["policy"]]
        task, type_, required = tables["tasks"][at["task"]]
        tables_of_names = {"prompt": "prompts", "seed": "seeds", "level": "levels", "ending": "endings"}
        episodes.append(
            {
                **{column: tables[table][at[column]] for column, table in tables_of_names.items()},
                **{column: at[column] / 1e6 for column in ("optimum", "regret", "luck")},
                "index": at["index"],
                "policy": name,
                "parts": (policy, model),
                "privileged": privileged,
                "instance_id": task,
                "task_type": tables["types"][type_],
                "required_tools": [tables["tools"][tool] for tool in required],
                "description": index["descriptions"][at["task"]],
                "flaw": named("flaws", at["flaw"]),
                "turns": at["turns"],
                "cause": named("causes", at["cause"]),
                "causes": {tables["causes"][cause] for cause in tables["cause_sets"][at["causes"]]},
                "tools": {tables["tools"][tool] for tool in tables["tool_sets"][at["tools"]]},
                "steps": [
                    {
                        "kind": tables["kinds"][kind],
                        "tool": named("tools", tool),
                        "success": None if success < 0 else bool(success),
                        "error": named("errors", error),
                        "attempt": attempt,
                        "success_probability": None if chance is None else chance / 1e6,
                        "value": value / 1e6,
                        "action_value": action / 1e6,
                        "luck": luck / 1e6,
                        "label": named("causes", cause),
                    }
                    for kind, tool, success, error, attempt, chance, value, action, luck, cause in rows["steps"][row]
                ],
                "messages": rows["texts"][row]["messages"] if row < pack.num_with_texts else None,
                "talk": talk(row),
            }
        )
    return episodes


def test_what_comes_out_of_a_pack_is_what_went_in() -> None:
    records = list(synthetic_run(num_tasks=12, num_seeds=3))
    records[5] = {**records[5], "flaw": FLAW, "policy": "react@openai:gpt", "seed": 2**60 + 1}
    pack = packed(records)
    assert (pack.num_episodes, pack.num_packed, pack.num_with_texts) == (len(records),) * 3
    episodes = {episode["index"]: episode for episode in unpacked(pack)}
    assert set(episodes) == {record["index"] for record in records}
    for record in records:
        episode = episodes[record["index"]]
        for name in ("policy", "instance_id", "task_type", "required_tools", "privileged"):
            assert episode[name] == record[name]
        names = (record["prompt_type"], str(record["seed"]), record["score"]["level"], record["ended_by"])
        assert (episode["prompt"], episode["seed"], episode["level"], episode["ending"]) == names
        assert episode["turns"] == len(record["steps"])
        for name in ("optimum", "regret", "luck"):
            assert episode[name] == pytest.approx(record[name], abs=1e-6)
        assert episode["causes"] == set(record["losses"])
        assert episode["tools"] == {step["tool"] for step in record["steps"]}
        assert episode["messages"] == [step["message"] for step in record["steps"]]
        costliest = max(record["losses"].values(), default=None)
        assert costliest is None if episode["cause"] is None else record["losses"][episode["cause"]] == costliest
        for found, step in zip(episode["steps"], record["steps"], strict=True):
            for name in ("kind", "tool", "success", "error", "attempt", "label"):
                assert found[name] == step[name]
            for name in ("success_probability", "value", "action_value", "luck"):
                assert found[name] == pytest.approx(step[name], abs=1e-6)
    assert episodes[5]["flaw"] == ["missing_step", "severe", "middle_step_removal"]
    assert episodes[5]["parts"] == ("react", "openai:gpt")
    assert episodes[6]["parts"] == (records[6]["policy"], None)
    assert episodes[records[0]["index"]]["description"] == "Read the file."


def test_failures_come_first_then_what_cost_most_whatever_order_they_arrived_in() -> None:
    records = list(synthetic_run(num_tasks=10, num_seeds=2))
    order = [episode["index"] for episode in unpacked(packed(records))]
    assert order == [episode["index"] for episode in unpacked(packed(records[::-1]))]
    expected = sorted(records, key=lambda record: (record["outcome"], -round(record["regret"], 9), record["index"]))
    assert order == [record["index"] for record in expected]


def with_texts(record: EpisodeRecord, prompt: str, said: str = "") -> EpisodeRecord:
    """Return a record that holds what was said, packed; of an agent with two calls if it said something."""
    replies = [f"reply {number} of {record['index']} {prompt}" for number in range(len(record["steps"]))]
    spoken: Any = {**record, "texts": {"prompt": prompt, "replies": replies}}
    if said:
        messages = [
            {"role": "system", "content": f"You are an agent. {prompt}"},
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": said},
            {"role": "user", "content": f"Observation: {replies[0]}"},
        ]
        sent = {"text": record["steps"][0]["message"], "tool_calls": [], "thoughts": f"I think. {said}"}
        wrote = {"text": said, "tool_calls": [{"id": "1", "name": "finish", "arguments": "{}"}]}
        calls = [
            {"role": "planner", "turn": 0, "messages": [0, 1], "reply": sent},
            {"role": "agent", "turn": 1, "messages": [0, 1, 2, 3], "reply": wrote},
        ]
        agent = {"messages": messages, "calls": calls, "structure": {}, "events": [], "components": {}}
        spoken["agent"] = agent
    return stored(spoken, "all")


def test_what_was_said_comes_out_turn_by_turn_and_once() -> None:
    records = list(synthetic_run(("random", "plan-follower"), ("baseline",), num_tasks=6, num_seeds=2))
    for number, record in enumerate(records):
        if number % 3:
            records[number] = with_texts(record, f"prompt of {record['instance_id']}", "words" * (number % 3 - 1))
    pack = packed(records)
    assert pack.num_with_talks == pack.num_talks == sum("texts" in record for record in records)
    prompts = {record["instance_id"] for number, record in enumerate(records) if number % 3}
    assert unpack_block(pack.index)["starts"]["strings"][-1] == 2 * len(prompts)  # with the system's, each once
    for episode in unpacked(pack):
        record, talk = records[episode["index"]], episode["talk"]
        if "texts" not in record:
            assert talk is None
            continue
        assert talk["prompt"] == f"prompt of {record['instance_id']}"
        assert talk["replies"] == replies_of(opened(record))
        if "agent" in record:
            told = [("system", f"You are an agent. {talk['prompt']}"), ("user", talk["prompt"])]
            first = ("planner", 0, told, "I think. words", None)  # what was written is what was sent
            assert talk["calls"] == [first, ("agent", 1, [], "", "words\nfinish({})")]


def test_conversations_go_first_and_older_and_fresh_trials_are_shown() -> None:
    records = [
        with_texts(record, content_hash(number) * 9, content_hash(-number))
        for number, record in enumerate(synthetic_run(("random",), ("baseline",), num_tasks=30, num_seeds=3))
    ]
    whole = packed(records)
    room = sum(map(len, (whole.index, *whole.steps, *whole.texts)))
    for share in (0, 3_000, 12_000):
        pack = packed(records, Budget(whole=room + share))
        assert pack.num_with_texts == pack.num_packed == len(records)
        assert sum(map(len, pack.talks)) <= share
        assert (pack.num_with_talks > 0) is (share > 0)
        assert pack.num_with_talks < pack.num_talks == len(records)
        talks = [episode["talk"] for episode in unpacked(pack)]
        assert talks == [episode["talk"] for episode in unpacked(whole)][: pack.num_with_talks] + [None] * (
            len(records) - pack.num_with_talks
        )
    old: Any = opened(records[0])
    del old["texts"]  # as older versions wrote it, and with a fresh episode after its first call
    old["agent"]["events"] = [{"kind": "restart", "component": "agent", "text": "", "turn": 3, "call": 1}]
    (episode,) = unpacked(packed([old]))
    assert episode["talk"]["prompt"] is None
    assert [call[1] for call in episode["talk"]["calls"]] == [-1, 1]


@pytest.mark.parametrize(("numbers", "texts"), [(6_000, 2_000), (9_000, 900), (40_000, 0), (1_500, 10**6)])
def test_what_does_not_fit_is_missing_at_the_end(numbers: int, texts: int) -> None:
    records = list(synthetic_run(num_tasks=20, num_seeds=3))
    pack = packed(records, Budget(numbers=numbers, texts=texts))
    whole = unpacked(packed(records))
    assert pack.num_episodes == len(records)
    # With hardly any room there is the index of no episode, whose tables take some bytes of their own.
    assert pack.num_packed == 0 or len(pack.index) + sum(map(len, pack.steps)) <= numbers
    assert sum(map(len, pack.texts)) <= texts
    assert pack.num_with_texts <= pack.num_packed < len(records)
    for found, expected in zip(unpacked(pack), whole, strict=False):
        assert found["steps"] == expected["steps"]
        assert found["messages"] in (None, expected["messages"])


def test_memory_stays_bounded_and_the_best_ranks_stay() -> None:
    records = list(synthetic_run(("random",), ("baseline",), num_tasks=5, num_seeds=2))
    many = 4_000
    packer = Packer(Budget(memory=200_000))
    tracemalloc.start()
    try:
        for number in range(many):
            packer.add({**records[number % len(records)], "index": number})
            if number == many // 2:
                halfway = tracemalloc.get_traced_memory()[0]
        growth = tracemalloc.get_traced_memory()[0] - halfway
    finally:
        tracemalloc.stop()
    assert growth < 100_000
    pack = packer.pack("show", {})
    episodes = unpacked(pack)
    assert pack.num_episodes == many
    assert 0 < pack.num_packed < many
    costliest = max(rank_of({**records[n % len(records)], "index": n}) for n in range(many))
    assert episodes[0]["index"] == -costliest.earliness


ITEMS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 40)), max_size=30)


@given(ITEMS, st.integers(0, 200))
def test_a_shortlist_is_the_longest_beginning_of_the_ranking_that_fits(
    items: list[tuple[bool, int, int]], most: int
) -> None:
    ranked = [(Rank(failed, float(regret), -number), size) for number, (failed, regret, size) in enumerate(items)]
    shortlist: Shortlist[Rank] = Shortlist(most)
    for rank, size in ranked:
        shortlist.add(rank, size, rank)
    expected: list[Rank] = []
    left = most
    for rank, size in sorted(ranked, reverse=True):
        if size > left:
            break
        expected.append(rank)
        left -= size
    assert shortlist.in_order() == expected


@given(st.lists(st.binary(min_size=0, max_size=60), max_size=40), st.integers(0, 3_000))
def test_chunks_hold_the_beginning_of_the_rows_within_the_budget(rows: list[bytes], most: int) -> None:
    values = [row.hex() for row in rows]
    blocks, starts = pack_chunks((encode(value) for value in values), most)
    found = [value for block in blocks for value in unpack_block(block)]
    assert found == values[: len(found)]
    assert sum(map(len, blocks)) <= most
    assert starts[0] == 0
    assert starts[-1] == len(found)
    assert [end - start for start, end in itertools.pairwise(starts)] == [len(unpack_block(block)) for block in blocks]


def test_chunks_are_small_enough_to_be_unpacked_at_once() -> None:
    blocks, starts = pack_chunks((encode("x" * 10_000) for _ in range(100)), 10**9)
    assert starts[-1] == 100
    assert all(sum(map(len, unpack_block(block))) <= CHUNK_BYTES for block in blocks)
    assert pack_chunks(map(encode, range(2 * CHUNK_ROWS)), 10**9)[1] == [0, CHUNK_ROWS, 2 * CHUNK_ROWS]


def test_messages_are_read_as_people_read_them_and_cut_where_they_are_long() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "tool_call", "arguments": '{"name": "reader"}'}}
    message = json.dumps({"role": "assistant", "content": "I read.", "tool_calls": [call]})
    assert readable_message(message) == 'I read.\ntool_call({"name": "reader"})'
    for odd in ('{"role": "assist', '{"role": 1, "tool_calls": [3]}', '{"role": 1, "tool_calls": {"a": 1}}', "plain"):
        assert readable_message(odd) == odd
    record = next(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=1))
    long = {**record, "steps": [{**record["steps"][0], "message": "x" * 100_000} for _ in range(12)]}
    messages = episode_texts(long)["messages"]
    assert messages[0] == ["x" * MESSAGE_LENGTH, 100_000]
    assert sum(len(text) for text, _ in messages) == EPISODE_LENGTH
    assert messages[-1] == ["", 100_000]
    columns = unpack_block(packed([{**record, "optimum": float("nan"), "luck": float("inf")}]).index)["columns"]
    assert columns["optimum"] == columns["luck"] == [None]  # numbers that are none do not stop the report


def test_what_an_agent_says_of_itself_is_there_and_cut() -> None:
    record = next(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=1))
    usage = {"calls": 2, "prompt_tokens": 10, "completion_tokens": 5}
    event = {"kind": "failure", "component": "planner", "text": "y" * 1_000, "call": 1, "turn": 0}
    agent = {
        "architecture": "plan_execute",
        "models": {"planner": "big", "executor": "small"},
        "components": {"planner": usage, "executor": usage},
        "first_failure": event,
        "events": [event] * (MOST_EVENTS + 5),
        "ended_by": "gave_up",
        "answer": None,
        "restarts": 1,
    }
    found = episode_texts({**record, "agent": agent, "flaw": FLAW})
    assert found["agent"]["models"] == {"planner": "big", "executor": "small"}
    assert (found["agent"]["calls"], found["agent"]["tokens"]) == (4, 30)
    assert found["agent"]["failure"][0] == "planner"
    assert len(found["agent"]["failure"][1]) == 300
    assert (len(found["agent"]["events"]), found["agent"]["num_events"]) == (MOST_EVENTS, MOST_EVENTS + 5)
    assert found["edits"] == [["removed", 2, "data_processing_parser", ""]]


def test_made_up_names_cannot_fill_the_page() -> None:
    table = Numbering()
    for number in range(MOST_NAMES + 50):
        table.made_up(f"made up {number}")
    assert len(table.entries) == MOST_NAMES + 1
    assert table.entries[-1] == OTHER
    assert table.name("a real tool") == MOST_NAMES + 1
    assert table.made_up("a real tool") == MOST_NAMES + 1
    assert len(short("n" * 10_000)) == LONGEST_NAME


def test_no_text_of_a_record_leaves_its_block(tmp_path: Path) -> None:
    packer = Packer()
    folder = tmp_path / "run <b>"
    for record in synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=3):
        steps = [{**step, "message": EVIL, "error": EVIL, "tool": EVIL, "kind": EVIL} for step in record["steps"]]
        flaw = {"type": EVIL, "severity": EVIL, "method": EVIL, "edits": [{"what": EVIL, "before": EVIL}]}
        names = dict.fromkeys(("policy", "task_type", "ended_by"), EVIL) | {"instance_id": EVIL + record["instance_id"]}
        own = {"required_tools": [EVIL], "steps": steps, "flaw": flaw, "losses": {EVIL: record["regret"]}}
        packer.add(with_texts({**record, **names, **own}, EVIL, EVIL))
    section = viewer_section(folder, packer)
    blocks = re.findall(r'<script type="application/x-resilisim-pack" id="(pack-[a-z0-9-]+)">([^<]*)</script>', section)
    assert [name for name, _ in blocks] == ["pack-index", "pack-steps-0", "pack-texts-0", "pack-talks-0"]
    assert section.count("<script") == section.count("</script") == len(blocks)
    for _, block in blocks:
        assert re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", block)
        text = json.dumps(unpack_block(block), ensure_ascii=False)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)
    assert all("alert" in json.dumps(unpack_block(block)) for _, block in blocks[2:])
    assert "alert" not in section
    assert "episode show &#39;run &lt;b&gt;&#39; NUMBER" in section  # the command, quoted for a shell


def test_the_page_says_how_much_of_the_run_is_in_it(tmp_path: Path) -> None:
    records = [
        {
            **record,
            "steps": [{**step, "message": content_hash([record["index"], step["turn"]])} for step in record["steps"]],
        }
        for record in synthetic_run(num_tasks=10, num_seeds=2)
    ]
    small = Packer(Budget(numbers=6_500, texts=4_000))
    large = Packer()
    for record in records:
        small.add(record)
        large.add(record)
    section = viewer_section(tmp_path, large)
    assert f"In this file: {len(records)} episodes with all that was sent. The records kept no prompts" in section
    section = viewer_section(tmp_path, small)
    found = re.search(r"Of ([\d,]+) episodes ([\d,]+) are listed here, failures first", section)
    assert found is not None
    assert found[1] == str(len(records))
    pack = small.pack("show", {})
    assert found[2] == str(pack.num_packed)
    assert 0 < pack.num_with_texts < pack.num_packed
    assert f"What was sent is in this file for {pack.num_with_texts:,} of them" in section
    for number, record in enumerate(records):
        large.add(with_texts({**record, "index": len(records) + number}, content_hash(number)))
    half = f"Prompts, thoughts and replies are here for the {len(records):,} whose records kept them."
    assert half in viewer_section(tmp_path, large)
    least = Packer(Budget(whole=0))
    for number, record in enumerate(records):
        least.add(with_texts(record, content_hash(number)))
    gone = (
        f"the first to go where room is short: of the {len(records):,} episodes that have them, they are here for 0, "
    )
    assert gone in viewer_section(tmp_path, least)


def test_the_script_makes_no_markup_of_data_and_asks_no_network() -> None:
    style, script = viewer_assets()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch("):
        assert forbidden not in script
    for forbidden in ("XMLHttpRequest", "import(", "http://", "https://", "localStorage", "cookie"):
        assert forbidden not in script.replace("http://www.w3.org/2000/svg", "")
    for forbidden in ("</script", "<!--", "</style", "url(", "@import"):
        assert forbidden not in script + style
    assert set(LOSS_LABELS) <= set(re.findall(r'"([a-z_]+)": \{"style"', script))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = page_policy(script)  # allows this script and no other
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
