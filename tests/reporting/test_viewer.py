"""The pack of the viewer: what comes out is what went in, what does not fit is missing at the end, no text escapes."""

from __future__ import annotations

import base64
import copy
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

from resilisim.evaluation.episode.record import ALL_LOSS_LABELS, EpisodeRecord
from resilisim.evaluation.episode.texts import opened, replies_of, stored
from resilisim.provenance import content_hash
from resilisim.reporting.page import page_policy
from resilisim.reporting.viewer import packing, viewer_assets, viewer_section
from resilisim.reporting.viewer.packing import Budget, Pack, Packer, Rank, Shortlist, encode, episode_texts
from tests.evaluation.synthetic import synthetic_run
from tests.reporting.pages import EVIL

WORSE = f"</script><!--\x00\x1b[31m\ud800\u202e{EVIL}"
KINDS = ("steps", "texts", "talks")
FLAW = {
    "type": "missing_step",
    "severity": "severe",
    "method": "middle_step_removal",
    "edits": [{"what": "removed", "where": {"step": 2}, "before": "data_processing_parser", "after": None}],
}
NAMED = {
    "prompt": "prompts",
    "seed": "seeds",
    "level": "levels",
    "ending": "endings",
    "flaw": "flaws",
    "cause": "causes",
}
STEP = ("kind", "tool", "success", "error", "attempt", "success_probability", "value", "action_value", "luck", "label")


def one_record() -> EpisodeRecord:
    return next(synthetic_run(("random",), ("baseline",), num_tasks=1, num_seeds=1))


def unpack_block(block: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(block)))


def packer_of(records: list[EpisodeRecord], budget: Budget | None = None) -> Packer:
    packer = Packer(budget)
    for record in records:
        packer.add(record)
    return packer


def packed(records: list[EpisodeRecord], budget: Budget | None = None) -> Pack:
    return packer_of(records, budget).pack("resilisim runs episode run", {records[0]["instance_id"]: "Read the file."})


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

    def named(table: str, number: int) -> Any:
        return None if number < 0 else tables[table][number]

    def talk(prompt: int | None, replies: list[Any], calls: list[Any]) -> dict[str, Any]:
        told = [[(role, strings[number]) for role, number in call[2]] for call in calls]
        found = [(*call[:2], heard, *call[3:]) for call, heard in zip(calls, told, strict=True)]
        return {"prompt": None if prompt is None else strings[prompt], "replies": replies, "calls": found}

    def step(kind: int, tool: int, success: int, error: int, attempt: int, *shares: int | None) -> dict[str, Any]:
        chances = [None if share is None else share / 1e6 for share in shares[:-1]]
        names = (named("kinds", kind), named("tools", tool), None if success < 0 else bool(success))
        values = (*names, named("errors", error), attempt, *chances, named("causes", shares[-1] or 0))
        return dict(zip(STEP, values, strict=True))

    episodes = []
    for row in range(pack.num_packed):
        at = {name: columns[name][row] for name in (*packing.ROW_COLUMNS, "causes", "tools")}
        name, policy, model, privileged = tables["policies"][at["policy"]]
        task, type_, required = tables["tasks"][at["task"]]
        episodes.append(
            {
                **{column: named(table, at[column]) for column, table in NAMED.items()},
                **{column: at[column] / 1e6 for column in ("optimum", "regret", "luck")},
                "index": at["index"],
                "policy": name,
                "parts": (policy, model),
                "privileged": privileged,
                "instance_id": task,
                "task_type": tables["types"][type_],
                "required_tools": [tables["tools"][tool] for tool in required],
                "description": index["descriptions"][at["task"]],
                "turns": at["turns"],
                "causes": {tables["causes"][cause] for cause in tables["cause_sets"][at["causes"]]},
                "tools": {tables["tools"][tool] for tool in tables["tool_sets"][at["tools"]]},
                "steps": [step(*numbers) for numbers in rows["steps"][row]],
                "messages": rows["texts"][row]["messages"] if row < pack.num_with_texts else None,
                "talk": talk(*talks[row][1:]) if row in talks else None,
            }
        )
    return episodes


def test_what_would_have_been_best_goes_with_the_steps_that_say_it() -> None:
    record = copy.deepcopy(one_record())
    record["steps"][0]["best"] = "call data_processing_parser"
    pack = packed([record])
    first, *others = unpack_block(pack.steps[0])[0]
    assert unpack_block(pack.index)["tables"]["bests"][first[-1]] == "call data_processing_parser"
    assert {len(row) for row in others} == {len(first) - 1}


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
            assert found == pytest.approx({name: step[name] for name in STEP}, abs=1e-6)
    assert episodes[5]["flaw"] == ["missing_step", "severe", "middle_step_removal"]
    assert episodes[5]["parts"] == ("react", "openai:gpt")
    assert episodes[6]["parts"] == (records[6]["policy"], None)
    assert episodes[records[0]["index"]]["description"] == "Read the file."
    expected = sorted(records, key=lambda record: (record["outcome"], -round(record["regret"], 9), record["index"]))
    # Failures come first, then what cost most, whatever order they arrived in.
    for found in (pack, packed(records[::-1])):
        assert [episode["index"] for episode in unpacked(found)] == [record["index"] for record in expected]


def with_texts(record: EpisodeRecord, prompt: str, said: str = "") -> EpisodeRecord:
    """Return a record that holds what was said, packed; of an agent with two calls if it said something."""
    replies = [f"reply {number} of {record['index']} {prompt}" for number in range(len(record["steps"]))]
    spoken: Any = {**record, "texts": {"prompt": prompt, "replies": replies}}
    if said:
        words = {
            "system": f"You are an agent. {prompt}",
            "user": prompt,
            "assistant": said,
            "user ": f"Observation: {replies[0]}",
        }
        sent = {"text": record["steps"][0]["message"], "tool_calls": [], "thoughts": f"I think. {said}"}
        wrote = {"text": said, "tool_calls": [{"id": "1", "name": "finish", "arguments": "{}"}]}
        calls = [
            {"role": "planner", "turn": 0, "messages": [0, 1], "reply": sent},
            {"role": "agent", "turn": 1, "messages": [0, 1, 2, 3], "reply": wrote},
        ]
        messages = [{"role": role.strip(), "content": text} for role, text in words.items()]
        spoken["agent"] = {"messages": messages, "calls": calls, "structure": {}, "events": [], "components": {}}
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
        kept = [episode["talk"] for episode in unpacked(whole)][: pack.num_with_talks]
        assert [episode["talk"] for episode in unpacked(pack)] == kept + [None] * (len(records) - len(kept))
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
    assert pack.num_episodes == len(records)
    # With hardly any room there is the index of no episode, whose tables take some bytes of their own.
    assert pack.num_packed == 0 or len(pack.index) + sum(map(len, pack.steps)) <= numbers
    assert sum(map(len, pack.texts)) <= texts
    assert pack.num_with_texts <= pack.num_packed < len(records)
    for found, expected in zip(unpacked(pack), unpacked(packed(records)), strict=False):
        assert found["steps"] == expected["steps"]
        assert found["messages"] in (None, expected["messages"])


@pytest.mark.long
def test_memory_stays_bounded_and_the_best_ranks_stay() -> None:
    records = list(synthetic_run(("random",), ("baseline",), num_tasks=5, num_seeds=2))
    many = [{**records[number % len(records)], "index": number} for number in range(4_000)]
    packer = Packer(Budget(memory=200_000))
    tracemalloc.start()
    try:
        for number, record in enumerate(many):
            packer.add(record)
            if number == len(many) // 2:
                halfway = tracemalloc.get_traced_memory()[0]
        growth = tracemalloc.get_traced_memory()[0] - halfway
    finally:
        tracemalloc.stop()
    assert growth < 100_000
    pack = packer.pack("show", {})
    assert 0 < pack.num_packed < pack.num_episodes == len(many)
    assert unpacked(pack)[0]["index"] == -max(map(packing.rank_of, many))[2]


ITEMS = st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 40)), max_size=30)


@given(ITEMS, st.integers(0, 200))
def test_a_shortlist_is_the_longest_beginning_of_the_ranking_that_fits(
    items: list[tuple[bool, int, int]], most: int
) -> None:
    ranked = [((failed, float(regret), -number), size) for number, (failed, regret, size) in enumerate(items)]
    shortlist: Shortlist[Rank] = Shortlist(most)
    for rank, size in ranked:
        shortlist.add(rank, size, rank)
    ranked.sort(reverse=True)
    sums = itertools.accumulate(size for _, size in ranked)
    assert shortlist.in_order() == [rank for (rank, _), total in zip(ranked, sums, strict=True) if total <= most]


@given(st.lists(st.binary(min_size=0, max_size=60), max_size=40), st.integers(0, 3_000))
def test_chunks_hold_the_beginning_of_the_rows_within_the_budget(rows: list[bytes], most: int) -> None:
    values = [row.hex() for row in rows]
    blocks, starts = packing.pack_chunks(map(encode, values), most)
    found = [value for block in blocks for value in unpack_block(block)]
    assert found == values[: len(found)]
    assert sum(map(len, blocks)) <= most
    assert starts == [0, *itertools.accumulate(len(unpack_block(block)) for block in blocks)]


def test_chunks_are_small_enough_to_be_unpacked_at_once() -> None:
    blocks, starts = packing.pack_chunks((encode("x" * 10_000) for _ in range(100)), 10**9)
    assert starts[-1] == 100
    assert all(sum(map(len, unpack_block(block))) <= packing.CHUNK_BYTES for block in blocks)
    most = packing.CHUNK_ROWS
    assert packing.pack_chunks(map(encode, range(2 * most)), 10**9)[1] == [0, most, 2 * most]


def test_messages_are_read_as_people_read_them_and_cut_where_they_are_long() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "tool_call", "arguments": '{"name": "reader"}'}}
    message = json.dumps({"role": "assistant", "content": "I read.", "tool_calls": [call]})
    assert packing.readable_message(message) == 'I read.\ntool_call({"name": "reader"})'
    for odd in ('{"role": "assist', '{"role": 1, "tool_calls": [3]}', '{"role": 1, "tool_calls": {"a": 1}}', "plain"):
        assert packing.readable_message(odd) == odd
    record = one_record()
    long = {**record, "steps": [{**record["steps"][0], "message": "x" * 100_000} for _ in range(12)]}
    messages = episode_texts(long)["messages"]
    assert messages[0] == ["x" * packing.MESSAGE_LENGTH, 100_000]
    assert sum(len(text) for text, _ in messages) == packing.EPISODE_LENGTH
    assert messages[-1] == ["", 100_000]
    columns = unpack_block(packed([{**record, "optimum": float("nan"), "luck": float("inf")}]).index)["columns"]
    assert columns["optimum"] == columns["luck"] == [None]  # numbers that are none do not stop the report


def test_what_an_agent_says_of_itself_is_there_and_cut() -> None:
    usage = {"calls": 2, "prompt_tokens": 10, "completion_tokens": 5}
    event = {"kind": "failure", "component": "planner", "text": "y" * 1_000, "call": 1, "turn": 0}
    agent = {
        "architecture": "plan_execute",
        "models": {"planner": "big", "executor": "small"},
        "components": {"planner": usage, "executor": usage},
        "first_failure": event,
        "events": [event] * (packing.MOST_EVENTS + 5),
        "ended_by": "gave_up",
        "answer": None,
        "restarts": 1,
    }
    found = episode_texts({**one_record(), "agent": agent, "flaw": FLAW})
    shown = found["agent"]
    assert (shown["models"], shown["calls"], shown["tokens"]) == (agent["models"], 4, 30)
    assert [len(part) for part in shown["failure"][:2]] == [len("planner"), 300]
    assert (len(shown["events"]), shown["num_events"]) == (packing.MOST_EVENTS, packing.MOST_EVENTS + 5)
    assert found["edits"] == [["removed", 2, "data_processing_parser", ""]]


def test_made_up_names_cannot_fill_the_page() -> None:
    table, most = packing.Numbering(), packing.MOST_NAMES
    for number in range(most + 50):
        table.made_up(f"made up {number}")
    assert len(table.entries) == most + 1
    assert table.entries[-1] == packing.OTHER
    assert table.name("a real tool") == table.made_up("a real tool") == most + 1
    assert len(packing.short("n" * 10_000)) == packing.LONGEST_NAME


def test_no_text_of_a_record_leaves_its_block(tmp_path: Path) -> None:
    records = []
    for record in synthetic_run(("random",), ("baseline",), num_tasks=4, num_seeds=3):
        steps = [{**step, **dict.fromkeys(("message", "error", "tool", "kind"), WORSE)} for step in record["steps"]]
        flaw = {"type": WORSE, "severity": WORSE, "method": WORSE, "edits": [{"what": WORSE, "before": WORSE}]}
        names = dict.fromkeys(("policy", "task_type", "ended_by"), WORSE)
        own = {"required_tools": [WORSE], "steps": steps, "flaw": flaw, "losses": {WORSE: record["regret"]}}
        evil: Any = {**record, **names, **own, "instance_id": WORSE + record["instance_id"]}
        records.append(with_texts(evil, WORSE, WORSE))
    section = viewer_section(tmp_path / "run <b>", packer_of(records))
    blocks = re.findall(r'<script type="application/x-resilisim-pack" id="(pack-[a-z0-9-]+)">([^<]*)</script>', section)
    assert [name for name, _ in blocks] == ["pack-index", "pack-steps-0", "pack-texts-0", "pack-talks-0"]
    assert section.count("<script") == section.count("</script") == len(blocks)
    for _, block in blocks:
        assert re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", block)
        text = json.dumps(unpack_block(block), ensure_ascii=False)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", text)
    assert all("alert" in json.dumps(unpack_block(block)) for _, block in blocks[2:])
    assert "alert" not in section
    assert "runs episode &#39;run &lt;b&gt;&#39; NUMBER" in section  # the command, quoted for a shell


def test_the_page_says_how_much_of_the_run_is_in_it(tmp_path: Path) -> None:
    records: list[Any] = []
    for record in synthetic_run(num_tasks=10, num_seeds=2):
        steps = [{**step, "message": content_hash([record["index"], step["turn"]])} for step in record["steps"]]
        records.append({**record, "steps": steps})
    many = len(records)
    told = [with_texts(record, content_hash(number)) for number, record in enumerate(records)]
    later: list[Any] = [{**record, "index": many + number} for number, record in enumerate(told)]

    def section(shown: list[Any], budget: Budget | None = None) -> str:
        return viewer_section(tmp_path, packer_of(shown, budget))

    assert f"In this file: {many} episodes with all that was sent. The records kept no prompts" in section(records)
    small = Budget(numbers=6_500, texts=4_000)
    pack = packed(records, small)
    assert 0 < pack.num_with_texts < pack.num_packed < many
    listed = f"Of {many} episodes, {pack.num_packed} are listed here, failures first"
    assert listed in section(records, small)
    assert f"What was sent is in this file for {pack.num_with_texts:,} of them" in section(records, small)
    half = f"Prompts, thoughts and replies are here for the {many:,} whose records kept them."
    assert half in section(records + later)
    gone = f"left out where space is short: of the {many:,} episodes that have them, 0 have them here, "
    assert gone in section(told, Budget(whole=0))
    assert "So are prompts, thoughts and replies" in section(told)


def test_the_script_makes_no_markup_of_data_and_asks_no_network() -> None:
    style, script = viewer_assets()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch("):
        assert forbidden not in script
    for forbidden in ("XMLHttpRequest", "import(", "http://", "https://", "localStorage", "cookie"):
        assert forbidden not in script.replace("http://www.w3.org/2000/svg", "")
    for forbidden in ("</script", "<!--", "</style", "url(", "@import"):
        assert forbidden not in script + style
    assert set(ALL_LOSS_LABELS) <= set(re.findall(r'"([a-z_]+)": \{"style"', script))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = page_policy(script)  # allows this script and no other
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{digest}';" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
