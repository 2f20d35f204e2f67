"""What a submission proves: each field follows from messages, draws or the model's words, or is said to be claimed."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilisim.errors import StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.texts import opened, stored
from resilisim.evaluation.run.merge import merge_runs
from resilisim.evaluation.run.plan import PlannedEpisodes
from resilisim.evaluation.run.store import RunStore, begun, read_manifest, read_records
from resilisim.evaluation.submission import check_submission, define_set
from resilisim.evaluation.submitted_episode import CLAIMS, CheckSetup, EpisodeChecker
from resilisim.provenance import encode_json_line
from tests.chat.loopback import LoopbackServer
from tests.evaluation.agent_models import endpoint, following_answer
from tests.evaluation.test_submission import rechained
from tests.evaluation.toy_policies import toy_tasks

SALT = "autumn"
TASKS = toy_tasks(2)


def played(out: Path, *policies: str, **options: Any) -> Path:
    given = {"tasks": TASKS, "prompts": "optimal", "seeds": 2, "salt": SALT, "record_texts": "all", "progress": False}
    evaluate(policies, out=out, **{**given, **options})
    return out


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with LoopbackServer(following_answer) as server:
        yield played(tmp_path_factory.mktemp("agents") / "run", "react", "direct", model=endpoint(server))


def checker_of(run: Path) -> EpisodeChecker:
    manifest = read_manifest(run)
    arguments = manifest["arguments"]
    plan = PlannedEpisodes(TASKS, len(arguments["policy_names"]), arguments["prompts"], arguments["seeds"])
    return EpisodeChecker(CheckSetup(run / "episodes.jsonl", plan, arguments, manifest["hash"], None))


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all values within a JSON value."""
    if place:
        yield place
    within = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in within:
        yield from leaves(each, (*place, name))


def edits_of(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield from (value + 0.25, 0.0 if value else 1.0)
    elif isinstance(value, str):
        yield value + "x"
    elif value is None:
        yield from ("x", 1)
    elif isinstance(value, list):
        yield value[:-1] if value else [1]
    else:
        yield {**value, "invented": 1.0}


def kind_of(place: tuple[Any, ...]) -> str:
    names = [str(name) for name in place if not isinstance(name, int)]
    if names[:2] == ["agent", "components"]:
        del names[2:3]  # the name of a component
    return ".".join(names)


@pytest.mark.parametrize("number", [0, 2])
def test_every_field_is_checked_or_claimed_even_with_a_new_chain(agents: Path, number: int) -> None:
    checker = checker_of(agents)
    record = opened(sorted(read_records(agents), key=lambda each: each["index"])[number])
    assert not checker.check(1, encode_json_line(stored(record, "all"))).refusals
    tried: set[str] = set()
    taken = []
    for place in leaves(record):
        kind = kind_of(place)
        if kind in tried or place[0] == "schema":
            continue
        tried.add(kind)
        *path, last = place
        for number_of_edit in range(2):
            edited: Any = copy.deepcopy(record)
            part = edited
            for name in path:
                part = part[name]
            values = list(edits_of(part[last]))
            if number_of_edit >= len(values):
                continue
            part[last] = values[number_of_edit]
            try:
                refused = bool(checker.check(1, encode_json_line(stored(edited, "all"))).refusals)
            except StoreError:
                refused = True
            claimed = any(kind == claim or kind.startswith(f"{claim}.") for claim in CLAIMS)
            if not refused and not claimed:
                taken.append((kind, part[last]))
    assert not taken
    assert len(tried) > 60


def test_an_agents_run_is_taken_and_says_what_is_claimed(agents: Path) -> None:
    found = check_submission(agents, define_set(agents, "autumn-v1"), tasks=TASKS)
    assert found.is_accepted, found.refusals
    assert found.claims == tuple(dict.fromkeys(CLAIMS.values()))


def test_the_optimums_messages_under_a_weak_models_words_are_refused(agents: Path, tmp_path: Path) -> None:
    best = {each["index"]: opened(each) for each in read_records(played(tmp_path / "best", "exact-optimum"))}
    mixed = []
    for record in map(opened, read_records(agents)):
        policy, place = divmod(record["index"] % 4, 2)
        better = best[record["index"] // 4 * 2 + place] if policy == 1 else None
        if better is not None:
            kept = {name: record[name] for name in ("index", "policy", "agent", "manifest", "privileged")}
            record = {**better, **kept}
            record["agent"] = {**record["agent"], "ended_by": "answer"}
        mixed.append(encode_json_line(stored(record, "all")))
    folder = tmp_path / "mixed"
    folder.mkdir()
    shutil.copy(agents / "manifest.json", folder)
    (folder / "episodes.jsonl").write_bytes(b"".join(mixed))
    found = check_submission(rechained(folder, mixed), define_set(agents, "autumn-v1"), tasks=TASKS)
    assert found.num_refusals.keys() & {"agent", "replay", "record"}
    assert "chain" not in found.num_refusals


def spliced(runs: list[Path], out: Path, by_hand: bool) -> Path:
    """Take of each episode the better of two runs, with an editor or with `merge`."""
    out.mkdir()
    taken: dict[int, tuple[float, bytes]] = {}
    lines = [(run / "episodes.jsonl").read_bytes().splitlines(keepends=True) for run in runs]
    for number, text in enumerate(line for run in lines for line in run):
        record = json.loads(text)
        score = record["outcome"] + 1e-6 * ((number + record["index"]) % 2)
        taken[record["index"]] = max(taken.get(record["index"], (-1.0, b"")), (score, text))
    chosen = {text for _, text in taken.values()}
    for run, own in zip(runs, lines, strict=True):
        part = out / run.name
        shutil.copytree(run, part)
        (part / "episodes.jsonl").write_bytes(b"".join(line for line in own if line in chosen))
    if not by_hand:
        merge_runs([out / run.name for run in runs], out / "merged")
        return out / "merged"
    shutil.copytree(runs[0], out / "hand")
    (out / "hand" / "episodes.jsonl").write_bytes(b"".join(sorted(chosen)))
    return out / "hand"


@pytest.mark.parametrize("by_hand", [True, False])
def test_the_best_of_several_runs_is_refused(by_hand: bool, tmp_path: Path) -> None:
    class Wavering:
        """Plays otherwise each time."""

        name = "wavering"
        tries = 0

        def reset(self, observation: str, info: Any) -> None:
            self._left = 3

        def act(self, observation: str, info: Any) -> str:
            type(self).tries += 1
            self._left -= 1
            name = "file_operations_reader" if type(self).tries % 5 else "network_fetcher"
            return f"<tool_call>{name}</tool_call>" if self._left else "<finish/>"

    runs = []
    for number in range(2):
        evaluate(Wavering, TASKS, "optimal", 3, salt=SALT, out=tmp_path / str(number), record_texts="all")
        runs.append(tmp_path / str(number))
    published = define_set(runs[0], "autumn-v1")
    assert all(check_submission(run, published, tasks=TASKS).is_accepted for run in runs)
    found = check_submission(spliced(runs, tmp_path / "best", by_hand), published, tasks=TASKS)
    assert set(found.num_refusals) == {"chain"}
    words = r"changed or left out|changed, or from elsewhere"
    assert re.search(words, str(found.refusals[0]))


def test_shards_and_resumed_runs_have_whole_chains(tmp_path: Path) -> None:
    parts = [played(tmp_path / str(number), "random", shard=f"{number}/2") for number in (1, 2)]
    merge_runs(parts, tmp_path / "whole")
    merge_runs(parts, tmp_path / "whole")  # a second time adds nothing
    published = define_set(tmp_path / "whole", "autumn-v1")
    found = check_submission(tmp_path / "whole", published, tasks=TASKS)
    assert (found.is_accepted, found.notes) == (True, ("it was played in 2 sittings",)), found.refusals


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "chain.jsonl").unlink(), "there is no chain.jsonl"),
        (
            lambda folder: (folder / "chain.jsonl").write_bytes(
                b"".join((folder / "chain.jsonl").read_bytes().splitlines(keepends=True)[1:])
            ),
            "what comes before line 2 of sitting .* is missing",
        ),
        (
            lambda folder: (folder / "chain.jsonl").write_bytes(
                (folder / "chain.jsonl").read_bytes().replace(b'"number":2,', b'"number":1,')
            ),
            "line 1 of sitting .* stands twice",
        ),
    ],
)
def test_a_chain_that_was_tampered_with_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    run = played(tmp_path / "run", "random")
    published = define_set(run, "autumn-v1")
    change(run)
    found = check_submission(run, published, tasks=TASKS)
    assert re.search(words, str(found.refusals[0]))
    assert set(found.num_refusals) == {"chain"}


def test_a_line_of_failures_that_stands_twice_is_in_no_sitting(tmp_path: Path) -> None:
    run = played(tmp_path / "run", "random")
    published = define_set(run, "autumn-v1")
    with RunStore(run, read_manifest(run)["arguments"], 4) as store:
        store.begin(begun(0, "random", "optimal", TASKS[0].instance_id, 0))
    assert check_submission(run, published, tasks=TASKS).is_accepted
    (run / "failures.jsonl").write_bytes((run / "failures.jsonl").read_bytes() * 2)
    found = check_submission(run, published, tasks=TASKS)
    assert "1 lines of failures.jsonl are in no sitting" in [str(each) for each in found.refusals][-1]
