"""Ceilings by what the agent is told: exact, in records, and in everything that is said in their terms."""

import io
import itertools
import json
import re
from functools import cache

import pytest
from rich.console import Console

from resilisim.envs.conversation import ConversationEnv
from resilisim.errors import MissingExtraError, StoreError
from resilisim.evaluation import evaluate
from resilisim.evaluation.episode.play import play_episode
from resilisim.evaluation.episode.record import CEILING_FIELDS, ceiling_of, checked_record, fitting_ceiling
from resilisim.evaluation.episode.rejudging import compare_records, rejudged
from resilisim.evaluation.run.store import read_records
from resilisim.evaluation.table.episodes import sums_of
from resilisim.evaluation.table.summary import ceiling_note, summarise, summary_table
from resilisim.policies.scripted import ExactOptimumPolicy
from resilisim.simulator import EndRules, Message, build_problem, start_state
from resilisim.simulator.exact import solve
from resilisim.simulator.messages import FINISH, execution
from resilisim.simulator.problem import is_awaiting_closing, is_done, next_state, success_probability
from resilisim.tasks.benchmark import benchmark_tasks
from resilisim.tasks.searches import fewest_searches, searches_needed
from resilisim.tasks.wording import SEARCH_SIZE, clauses
from resilisim.tool_library import default_library
from resilisim.tool_library.retrieval import default_retriever
from tests.evaluation.synthetic import synthetic_run
from tests.evaluation.toy_policies import toy_tasks

LIBRARY = default_library()


def test_what_the_agent_is_told_decides():
    for prompt_type in ("baseline", "chain_of_thought"):
        assert fitting_ceiling(prompt_type) == "optimum_after_searches"
        assert fitting_ceiling(prompt_type, tools="listed") == "optimum"
        assert fitting_ceiling(prompt_type, privileged=True) == "optimum"
    for prompt_type in ("optimal", "flawed", "flawed:missing_step:light"):
        assert fitting_ceiling(prompt_type) == "optimum"


def value_of_searcher(problem, shown):
    """Return the best chance of somebody who can call a required tool only after a search has shown it.

    By brute force over all orders of searches and calls, searches repeated included; other tools are known.
    """
    required = [problem.library.names[tool] for tool in problem.required]
    helpers = [problem.library.names[tool] for tool in problem.closure if problem.library.names[tool] not in required]
    searches = [Message("search", query=f"clause {place}") for place in range(len(shown))]

    @cache
    def value(state, found):
        if state.ended_by is not None:
            return float(state.ended_by == "completion" and is_done(problem, state))
        options = [value(next_state(problem, state, FINISH), found)]
        if is_awaiting_closing(problem, state):
            return options[0]
        for message, names in zip(searches, shown, strict=True):
            options.append(value(next_state(problem, state, message), found | names))
        for name in (*helpers, *(name for name in required if name in found)):
            chance = success_probability(problem, state, problem.library.index(name))
            after = [value(next_state(problem, state, execution(name), success), found) for success in (True, False)]
            options.append(chance * after[0] + (1.0 - chance) * after[1])
        return max(options)

    return value(start_state(problem), frozenset())


@pytest.mark.parametrize("loop_length", [2, 4])
@pytest.mark.parametrize(
    ("required", "shown", "turns"),
    [
        (["file_operations_reader"], [[], ["file_operations_reader"]], 4),
        (["data_processing_aggregator"], [["data_processing_aggregator"]], 5),
        (
            ["file_operations_reader", "data_processing_parser"],
            [["file_operations_reader"], ["data_processing_parser"]],
            5,
        ),
        (
            ["file_operations_reader", "data_processing_transformer"],
            [["file_operations_reader", "data_processing_transformer"], ["file_operations_reader"]],
            6,
        ),
        (["network_fetcher", "utility_cache"], [["network_fetcher"], ["utility_cache"]], 3),  # too few turns
    ],
)
def test_no_order_of_searching_and_calling_beats_searching_first(required, shown, turns, loop_length):
    """V* with the turns that the fewest searches leave is what can be reached, and different searches are no loop."""
    fewest = fewest_searches(required, shown)
    assert fewest is not None
    rules = EndRules(turns, 5, loop_length)
    problem = build_problem(LIBRARY, required, rules=rules)
    ceiling = solve(problem).after_search(fewest)
    assert ceiling == pytest.approx(value_of_searcher(problem, [frozenset(names) for names in shown]), abs=1e-12)
    shorter = solve(build_problem(LIBRARY, required, rules=EndRules(turns - fewest, 5, loop_length)))
    assert ceiling == pytest.approx(shorter.after_search(0), abs=1e-12)
    assert solve(problem).after_search(turns) == solve(problem).after_search(turns + 3) == 0.0


class SearchesFirst:
    """Makes the fewest searches that show all tools, then plays the exact optimum."""

    def __init__(self, env, task):
        texts = clauses(task.description)
        shown = [{hit.name for hit in hits} for hits in default_retriever(LIBRARY).search_many(texts, SEARCH_SIZE)]
        fewest = searches_needed(task, LIBRARY).fewest or 0
        chosen = next(
            places
            for places in itertools.combinations(range(len(texts)), fewest)
            if set(task.required_tools) <= set().union(*(shown[place] for place in places))
        )
        self._queries = [texts[place] for place in chosen]
        self._env, self._optimum = env, ExactOptimumPolicy()

    def reset(self, observation, info):
        self._waiting = list(self._queries)
        self._optimum.reset(observation, self._info(info))

    def act(self, observation, info):
        if self._waiting:
            return f"<tool_search>{self._waiting.pop(0)}</tool_search>"
        return self._optimum.act(observation, self._info(info))

    def _info(self, info):
        return {**info, **self._env._info(None, {})}  # what only a privileged policy is told


def test_an_agent_that_searches_no_more_than_needed_is_at_the_ceiling():
    """Its regret is exactly the price of finding the tools, all of it information, and no loss that it could avoid."""
    env = ConversationEnv()
    records = []
    for task in benchmark_tasks()[:3]:
        policy = SearchesFirst(env, task)
        for seed in range(3):
            record = play_episode(env, policy, task, "baseline", seed, name="searches-first")
            assert record["searches_needed"] == sum(step["kind"] == "search" for step in record["steps"])
            assert record["optimum"] - ceiling_of(record) == pytest.approx(record["regret"], abs=1e-12)
            assert list(record["losses"]) == ["information"]
            records.append(record)
    row = summarise(sums_of(records))[0]
    assert row.price_of_search == pytest.approx(row.losses["information"].value)
    assert row.luck_adjusted_beta_1.value == pytest.approx(row.ceiling.value)
    assert row.biggest_loss is None
    assert row.ceiling.value < row.optimum.value


def saved(result):
    """Return the records as they stand on disk."""
    return list(read_records(result.directory))


def test_records_say_what_their_ceiling_is(monkeypatch):
    def records_of(policy, prompt, tasks=2, **options):
        return saved(evaluate(policy, tasks, prompt, **options))

    for prompt, protocol in (("baseline", "text"), ("chain_of_thought", "native")):
        for record in records_of("random", prompt, protocol=protocol):
            searches = record["searches_needed"]
            problem = build_problem(LIBRARY, record["required_tools"], rules=EndRules(10 - (searches or 0)))
            assert ceiling_of(record) == pytest.approx(solve(problem).after_search(0))
            assert checked_record(record, "the line") is record
    told = records_of("plan-follower", "optimal") + records_of("exact-optimum", "baseline")
    told += records_of("random", "baseline", tools="listed")
    assert {(r["optimum_after_searches"], r["searches_needed"], r["no_search_ceiling"]) for r in told} == {(None,) * 3}
    assert all(ceiling_of(record) == record["optimum"] for record in told)

    def not_installed(queries, k):
        raise MissingExtraError("tool search needs 'faiss'")

    monkeypatch.setattr(default_retriever(LIBRARY), "search_many", not_installed)
    record = records_of("random", "baseline", toy_tasks(1))[0]
    assert (record["optimum_after_searches"], record["no_search_ceiling"]) == (None, "tool search needs 'faiss'")
    row = summarise(sums_of([record]))[0]
    assert (row.ceiling.value, row.ceiling_name, row.num_without_ceiling) == (
        record["optimum"],
        "optimum",
        1,
    )
    assert "In 1 episode tools had to be found" in ceiling_note([row])


def test_saved_ceilings_are_computed_again_and_old_records_are_read():
    record = saved(evaluate("random", 1))[0]
    assert compare_records(record, rejudged(record, LIBRARY)) == ("agreeing", None)
    other = {**record, "optimum_after_searches": (record["optimum_after_searches"] or 0.0) + 0.01}
    assert "optimum_after_searches" in (compare_records(other, rejudged(other, LIBRARY))[1] or "")
    old = {name: value for name, value in record.items() if name not in CEILING_FIELDS}
    assert checked_record(old, "the line") is old
    assert rejudged(old, LIBRARY) == old
    assert compare_records(old, record, tolerance=0.0)[1] is None  # played again, it says more
    assert "optimum_after_searches" in (compare_records(other, record, tolerance=0.0)[1] or "")
    row = summarise(sums_of([old]))[0]
    assert (row.ceiling, row.num_without_ceiling) == (row.optimum, 1)
    for name, wrong in zip(CEILING_FIELDS, ("0.5", 1.5, 3), strict=True):
        with pytest.raises(StoreError, match=f"the line, field '{name}': got {re.escape(json.dumps(wrong))}; expected"):
            checked_record({**record, name: wrong}, "the line")


def shown_at(width, table):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    return " ".join(console.file.getvalue().split())


def test_tables_show_the_fitting_ceiling_with_v_star_beside_it():
    rows = summarise(sums_of(synthetic_run(("exact-optimum", "random"), num_tasks=6)))
    found = {(row.policy, row.prompt_type): row for row in rows}
    searching = found["random", "baseline"]
    assert searching.ceiling.value == pytest.approx(0.75 * searching.optimum.value)
    assert searching.share_of_ceiling.value == pytest.approx(searching.success.value / searching.ceiling.value)
    mapping = searching.to_mapping()
    assert (mapping["ceiling_name"], mapping["num_without_ceiling"]) == ("optimum_after_searches", 0)
    assert mapping["ceiling"]["value"] == searching.ceiling.value
    for row in rows:
        if row is not searching:
            assert (row.ceiling, row.ceiling_name) == (row.optimum, "optimum")
    assert "success reference V* of reference luck-adjusted" in shown_at(160, summary_table(rows))
    for width in (80, 60):
        heads = shown_at(width, summary_table(rows)).partition("──")[0]
        assert ("reference" in heads, "of" in heads.split()) == (True, True)
    assert "they must be found" in shown_at(60, summary_table(rows))
    told = shown_at(120, summary_table([row for row in rows if row is not searching]))
    assert "episodes success V* " in told
    assert "reference" not in told


def test_information_counts_as_a_loss_only_beyond_the_price_of_the_tools():
    record = next(iter(synthetic_run(("random",), ("baseline",), 1, 1)))
    for information, biggest in ((0.25, "wrong_order"), (0.4, "information")):
        losses = {"information": information * record["optimum"], "wrong_order": 0.1 * record["optimum"]}
        changed = {**record, "losses": losses}
        row = summarise(sums_of([changed]))[0]
        assert row.biggest_loss == biggest
        assert row.avoidable_loss("information") == pytest.approx((information - 0.25) * record["optimum"])
    assert "unneeded search" in shown_at(160, summary_table([row]))
