"""Fine-tuning on a Llama of random weights: what is learned, resuming to the bit, and the adapter in llama.cpp."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from resilisim import default_library
from resilisim.chat.local import ADAPTER_FILE, SHIPPED_ADAPTER, adapter_path, local_identity, shipped_model_path
from resilisim.chat.local.gguf import base_of_adapter, fingerprint, model_fingerprint
from resilisim.chat.middleware import ChatModelSettings
from resilisim.errors import InvalidInputError, StoreError
from resilisim.finetuning.adapted_model import (
    ADAPTER_WEIGHTS_FILE,
    adapter_arrays,
    add_adapter,
    check_size,
    load_base,
    read_gguf_adapter,
    set_adapter,
    start_from,
    write_adapter,
    write_gguf_adapter,
)
from resilisim.finetuning.config import FinetuningConfig, Kind, load_config
from resilisim.finetuning.decoder import Decoder
from resilisim.finetuning.examples import Encoder, Example, packed
from resilisim.finetuning.lessons import drawn_tasks, lessons
from resilisim.finetuning.training import Standing, _Run, batch_places, train
from tests.finetuning.logits import of_llama_cpp, of_transformers

NUM_TOKENS, LETTER_A = 259, 64
SMALL = FinetuningConfig(
    tasks="benchmark-v1",
    precision="float32",
    rank=2,
    alpha=4,
    learning_rate=0.02,
    train_tasks=2,
    train_episodes=2,
    batch_size=2,
    epochs=2,
    explore=0.3,
    evaluate_every=2,
    checkpoint_every=2,
)


@functools.cache
def records():
    return records_of(SMALL)


def records_of(config):
    source = config.dataset(Kind(config.laws[0])).make(default_library())
    return [record for task in drawn_tasks(config, "train", config.train_tasks) for record in source.records(task)]


def test_best_messages_are_learned_with_their_end_and_nothing_else(tiny_base):
    encoder = Encoder(tiny_base, SMALL.plan_margin)
    mistakes = 0
    for record in records():
        ((example,),) = encoder.samples([record])
        together = packed([example])
        tokens, learned = together.tokens, together.labels.tolist()
        good = [turn for turn in record["turns"] if turn["action_value"] > 0 and turn["regret"] <= SMALL.plan_margin]
        mistakes += len(record["turns"]) - len(good)
        said = "".join(record["messages"][turn["message_index"]]["content"] + "<|im_end|>" for turn in good)
        assert encoder._tokenizer.encode(said, add_special_tokens=False).ids == learned
        assert encoder.text(record["messages"]) == _by_hand(record["messages"])
        read = _by_hand(record["messages"][: good[-1]["message_index"] + 1])  # what comes after it teaches nothing
        assert encoder._tokenizer.encode(read, add_special_tokens=False).ids == tokens.tolist()
        assert tokens[together.places + 1].tolist() == learned
    assert mistakes > 2


@pytest.mark.parametrize("prompt", ["baseline", "flawed:missing_step", "flawed:tool_misuse"])
def test_searches_are_learned_although_they_cost_a_turn(tiny_base, prompt):
    encoder, searches = Encoder(tiny_base, SMALL.plan_margin), 0
    for record in records_of(SMALL.model_copy(update={"prompts": (prompt,), "train_tasks": 6})):
        turns = [turn for turn in record["turns"] if turn["action_value"] > 0]  # no hope is left by what is no lesson
        asked = [turn for turn in turns if turn["kind"] in ("search", "info") and turn["regret"] > SMALL.plan_margin]
        assert {turn["label"] for turn in asked} <= {"information"}
        good = [turn for turn in turns if turn["regret"] <= SMALL.plan_margin or turn in asked]
        samples = encoder.samples([record])
        said = "".join(record["messages"][turn["message_index"]]["content"] + "<|im_end|>" for turn in good)
        learned = [token for (example,) in samples for token in example.tokens[example.is_learned]]
        assert encoder._tokenizer.encode(said, add_special_tokens=False).ids == learned
        searches += len(asked)
    assert searches > 2


def _by_hand(messages):
    return "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)


def test_a_batch_has_the_same_gradient_however_it_is_cut_and_packed(tiny_base):
    made = Encoder(tiny_base).samples(records())
    run = _Run.__new__(_Run)
    run._config, run._device = SMALL, "cpu"
    run._samples = [(_cut(example, size),) for (example,), size in zip(made, (200, 60, 100), strict=False)]
    assert packed([example for (example,) in run._samples]).spans[1].shared  # two episodes of one task
    run._model = add_adapter(load_base(tiny_base), SMALL)
    run._decoder = Decoder(run._model)
    gradients = []
    for size in (1, 3):
        run._model.zero_grad()
        for first in range(0, 3, size):
            run._loss_sum(run._samples[first : first + size], np.zeros(0)).backward()
        gradients.append(torch.cat([w.grad.flatten() for w in run._model.parameters() if w.requires_grad]))
    assert gradients[0].abs().max() > 1e-3
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


def _cut(example, size):
    """Return an example as far as some tokens behind the first that is learned."""
    end = int(example.is_learned.argmax()) + size
    return Example(example.tokens[:end], example.is_learned[:end])


@pytest.fixture(scope="module")
def whole(tiny_base, tmp_path_factory):
    """The folder of a run that was never stopped, and what was told on the way."""
    folder, told = tmp_path_factory.mktemp("whole") / "run", []
    train(SMALL, folder, told.append, tiny_base)
    return folder, told


def test_a_run_learns_and_leaves_everything_that_others_read(whole, tiny_base):
    folder, told = whole
    assert [standing.step for standing in told] == [1, 2, 3, 4]
    assert told[-1].loss < told[0].loss
    assert told[-1].num_tokens == 2 * sum(len(example.tokens) for (example,) in Encoder(tiny_base).samples(records()))
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert next((folder / "tensorboard").iterdir()).name.startswith("events.out.tfevents")
    assert json.loads((folder / "manifest.json").read_text())["arguments"]["finetuning"]["rank"] == 2
    assert base_of_adapter(folder / ADAPTER_FILE) == model_fingerprint(tiny_base)
    from peft import PeftModel  # reads what was written

    loaded = PeftModel.from_pretrained(load_base(tiny_base), str(folder))
    for name, array in adapter_arrays(loaded).items():
        np.testing.assert_allclose(array, load_file(folder / ADAPTER_WEIGHTS_FILE)[name], rtol=1e-3)
    before = (folder / ADAPTER_WEIGHTS_FILE).stat().st_mtime_ns
    assert train(SMALL, folder, None, tiny_base).step == 4
    assert (folder / ADAPTER_WEIGHTS_FILE).stat().st_mtime_ns == before


def test_a_killed_run_ends_where_it_would_have_ended(whole, tiny_base, tmp_path):
    killed_after = 3  # one step behind the last point

    def kill(standing):
        if standing.step == killed_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SMALL, tmp_path / "run", kill, tiny_base)
    resumed = []
    train(SMALL, tmp_path / "run", resumed.append, tiny_base)
    assert resumed[0].step == killed_after
    for name in (ADAPTER_WEIGHTS_FILE, ADAPTER_FILE):
        assert (tmp_path / "run" / name).read_bytes() == (whole[0] / name).read_bytes()
    steps, losses = ([(s.step, s.loss) for s in told][-2:] for told in (resumed, whole[1]))
    assert steps == losses
    with pytest.raises(StoreError, match=r"finetuning\.seed is 0 there and 1 here"):
        train(SMALL.model_copy(update={"seed": 1}), tmp_path / "run", None, tiny_base)


def test_of_a_follower_is_learned_what_is_about_best(tiny_base):
    follower = SMALL.model_copy(update={"policy": "plan-follower", "prompts": ("flawed:sequential_order",)})
    encoder, made = Encoder(tiny_base, follower.plan_margin), records_of(follower)
    learned = {encoder.words(each.tokens[each.is_learned]) for (each,) in encoder.samples(made)}
    sent = [[(turn, record["messages"][turn["message_index"]]) for turn in record["turns"]] for record in made]
    good = [
        [said["content"] for turn, said in each if turn["action_value"] > 0 and turn["regret"] <= follower.plan_margin]
        for each in sent
    ]
    assert learned == set(map("".join, good)) - {""}
    faults = {turn["label"] for each in sent for turn, _ in each if turn["regret"] > follower.plan_margin}
    assert "obeyed_flaw" in faults  # nothing of which is learned


@pytest.mark.parametrize("prompt", ["flawed:missing_step", "baseline"])
def test_what_no_plan_names_is_searched_for_by_the_work_order(prompt):
    made = records_of(SMALL.model_copy(update={"prompts": (prompt,), "train_episodes": 1, "explore": 0.0}))
    for record in made:
        assert any(turn["kind"] == "search" for turn in record["turns"])
        assert "## Work order" in record["messages"][0]["content"]
    assert made


PAIRED = SMALL.model_copy(
    update={"stage": "dpo", "train_tasks": 1, "train_episodes": 1, "epochs": 2, "batch_size": 16, "min_margin": 0.4}
)


def test_pairs_are_a_better_and_a_worse_message_of_one_state(tiny_base):
    encoder, pairs = Encoder(tiny_base), records_of(PAIRED)

    def ids(text):
        return encoder._tokenizer.encode(text, add_special_tokens=False).ids

    assert 2 < len(pairs) <= PAIRED.batch_size
    for record, sample in zip(pairs, encoder.samples(pairs), strict=True):
        assert record["margin"] >= PAIRED.min_margin
        for side, example in zip(("chosen", "rejected"), sample, strict=True):
            said, asked = (
                record[side][0]["content"] + "<|im_end|>",
                _by_hand(record["prompt"]) + "<|im_start|>assistant\n",
            )
            assert example.tokens[example.is_learned].tolist() == ids(said)
            assert example.tokens[~example.is_learned].tolist() == ids(asked) + ids("\n")


def test_a_search_that_a_flawed_plan_calls_for_is_no_worse_message():
    flawed = {"prompts": ("flawed:missing_step",), "train_tasks": 6, "min_margin": 0.001}
    rejected = [record["rejected"][0]["content"] for record in records_of(PAIRED.model_copy(update=flawed))]
    assert len(rejected) > 20
    assert not any("<tool_search>" in text for text in rejected)


@pytest.mark.long
def test_preferences_are_learned_from_a_start_and_a_killed_run_ends_where_it_would_have_ended(
    whole, tiny_base, tmp_path
):
    config = PAIRED.model_copy(update={"start": str(whole[0]), "learning_rate": 0.0005})
    told = []
    train(config, tmp_path / "run", told.append, tiny_base)
    assert told[0].loss == pytest.approx(np.log(2.0), abs=1e-5)  # nothing has moved away from the start yet
    assert told[1].loss < told[0].loss
    for name, array in load_file(tmp_path / "run" / ADAPTER_WEIGHTS_FILE).items():
        moved = array.astype(np.float32) - load_file(whole[0] / ADAPTER_WEIGHTS_FILE)[name]
        assert 0.0 < np.abs(moved).max() < 0.01

    def kill(standing):
        if standing.step == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed", kill, tiny_base)
    train(config, tmp_path / "killed", None, tiny_base)
    assert (tmp_path / "killed" / ADAPTER_WEIGHTS_FILE).read_bytes() == (
        tmp_path / "run" / ADAPTER_WEIGHTS_FILE
    ).read_bytes()
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["arguments"]["start"] == fingerprint([whole[0] / ADAPTER_FILE])


def test_where_nothing_can_be_learned_one_line_says_so(tiny_base, tmp_path):
    with pytest.raises(InvalidInputError, match="stage 'dpo' found nothing to learn in 1 tasks"):
        train(PAIRED.model_copy(update={"min_margin": 0.99}), tmp_path, None, tiny_base)


def test_a_start_is_taken_over_as_it_is_or_refused(whole, tiny_base, tmp_path):
    model = add_adapter(load_base(tiny_base), SMALL)
    start_from(model, whole[0] / ADAPTER_FILE)
    for name, array in adapter_arrays(model).items():
        assert (array == load_file(whole[0] / ADAPTER_WEIGHTS_FILE)[name]).all()
    for changed, words in (
        ({"rank": 3}, "has rank 2 and alpha 4: expected 3 and 4"),
        ({"alpha": 5}, "expected 2 and 5"),
    ):
        other = SMALL.model_copy(update={**changed, "start": str(whole[0])})
        with pytest.raises(InvalidInputError, match=words):
            train(other, tmp_path / "run", base=tiny_base)
    assert not (tmp_path / "run").exists()  # what is refused leaves no folder that is taken for a run
    with pytest.raises(InvalidInputError, match=r"was trained on tiny\.gguf .*expected SmolLM2"):
        train(SMALL.model_copy(update={"start": str(whole[0])}), tmp_path / "run")
    with pytest.raises(InvalidInputError, match="does not exist"):
        train(SMALL.model_copy(update={"start": "nowhere"}), tmp_path / "run", base=tiny_base)
    with pytest.raises(InvalidInputError, match="expected a folder with adapter"):
        adapter_path(str(tiny_base), tiny_base)


def test_llama_cpp_and_transformers_think_alike_of_an_adapter(tiny_base, tmp_path):
    draws = np.random.default_rng(0)
    prompts = [draws.integers(0, 256, length).tolist() for length in (1, 7, 60)]
    model = add_adapter(load_base(tiny_base), SMALL).eval()
    bare = of_transformers(model, prompts)
    shapes = {name: array.shape for name, array in adapter_arrays(model).items()}
    set_adapter(model, {name: draws.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()})
    write_adapter(tmp_path, model, tiny_base)
    expected = of_transformers(model, prompts)
    found = of_llama_cpp(tiny_base, tmp_path / ADAPTER_FILE, prompts, NUM_TOKENS, LETTER_A)
    assert np.abs(expected - bare).max() > 3.0
    assert np.nanmax(np.abs(found - expected)) < 0.2
    assert np.isnan(found).mean() < 0.05


def test_an_adapter_lies_on_the_model_that_it_was_trained_on(tmp_path, tiny_base):
    settings = ChatModelSettings()
    arrays = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.zeros((2, 8), np.float32)}
    write_gguf_adapter(tmp_path / ADAPTER_FILE, arrays, 4, (2, 1), model_fingerprint(tiny_base))
    with pytest.raises(InvalidInputError, match=r"was trained on tiny\.gguf .*expected SmolLM2"):
        local_identity(str(tmp_path), settings)
    write_gguf_adapter(tmp_path / ADAPTER_FILE, arrays, 4, (2, 1), model_fingerprint(shipped_model_path()))
    assert local_identity(str(tmp_path), settings).startswith("adapter.gguf ")
    (tmp_path / ADAPTER_FILE).write_bytes(b"GGUF")
    with pytest.raises(InvalidInputError, match="no GGUF file"):
        local_identity(str(tmp_path), settings)
    (tmp_path / ADAPTER_FILE).write_bytes(shipped_model_path().read_bytes()[: 1 << 22])
    with pytest.raises(InvalidInputError, match="no adapter of 'resilisim train lm'"):
        local_identity(str(tmp_path), settings)
    with pytest.raises(InvalidInputError, match="belongs to no linear layer"):
        write_gguf_adapter(tmp_path / "other", {"lm_head.lora_A.weight": np.zeros((2, 2))}, 4, (2, 1), "")


def test_every_conversation_is_seen_once_in_each_pass_in_another_order():
    batches = batch_places([1] * 7, SMALL)
    assert [len(places) for places in batches] == [2, 2, 2, 1] * 2
    first, second = np.concatenate(batches[:4]), np.concatenate(batches[4:])
    assert sorted(first) == sorted(second) == list(range(7))
    assert list(first) != list(second)


def test_what_begins_alike_stands_in_one_batch():
    batches = [places.tolist() for places in batch_places([3, 1, 2, 1], SMALL.model_copy(update={"epochs": 1}))]
    assert sorted(place for places in batches for place in places) == list(range(7))
    assert {place for places in batches for place in places if 0 in places} >= {0, 1, 2}
    assert all((4 in places) == (5 in places) for places in batches)
    assert all(len(places) >= 2 for places in batches[:-1])


def test_the_learning_rate_rises_and_falls_to_nothing():
    rates = [SMALL.learning_rate_at(step, 40) for step in range(40)]
    assert max(rates) == rates[3] == SMALL.learning_rate
    assert rates[:4] == sorted(rates[:4])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0.0 < rates[-1] < 0.05 * SMALL.learning_rate


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"preset": "tpu"}, "unknown preset 'tpu'"),
        ({"settings": ["rnak=3"]}, "did you mean 'rank'"),
        ({"settings": ["stage=ppo"]}, "stage"),
        ({"settings": ["prompts=optimum"]}, "unknown prompt type 'optimum'"),
        ({"settings": ["rank=0"]}, "rank"),
        ({"settings": ["laws=benchmark,rate-limit"]}, "did you mean 'rate-limits'"),
        ({"settings": ["rename_tools=2"]}, "rename_tools"),
        ({"settings": ["react=0.5", "stage=dagger"]}, "react is 0.5 in stage 'dagger': expected 0"),
        ({"settings": ["rank"]}, "has no value"),
        ({"settings": ["policy=agent:json:dumps"]}, "expected one that answers message by message"),
        ({"settings": ["policy=plan-folower"]}, "did you mean 'plan-follower'"),
        ({"settings": ["policy=plan-follower", "stage=dagger"]}, "policy is 'plan-follower' in stage 'dagger'"),
    ],
)
def test_what_no_setting_takes_is_refused_in_one_line(given, words):
    with pytest.raises(InvalidInputError, match=words) as refusal:
        load_config(**given)
    assert "\n" not in str(refusal.value)


def test_tasks_are_dealt_out_to_laws_names_and_forms_as_exactly_as_their_number_allows():
    config = load_config(settings=["laws=benchmark,meaningful-errors", "rename_tools=1"])
    dealt = [(Kind("benchmark", True), list("ace")), (Kind("meaningful-errors", True), list("bd"))]
    assert config.dealt("abcde") == dealt
    benchmark, meaning = (config.dataset(kind) for kind, _ in dealt)
    assert (benchmark.rename_tools, benchmark.environment.errors) == (1.0, "transient")
    assert meaning.environment.failure_model().error_kinds is not None
    mixed = load_config(settings=["rename_tools=0.5", "react=0.2"]).dealt(range(100))
    assert sorted(task for _, tasks in mixed for task in tasks) == list(range(100))
    assert sum(len(tasks) for kind, tasks in mixed if kind.is_renamed) == 50
    assert sum(len(tasks) for kind, tasks in mixed if kind.form == "react") == 20
    assert len(mixed) == 4  # neither share takes the other's tasks


@pytest.mark.long
def test_a_share_of_the_tasks_is_drawn_in_random_libraries_once(tmp_path):
    settings = ["train_tasks=4", "random_libraries=0.5", "library_tools=31", "explore=0"]
    config, told = load_config(settings=settings), []
    made = list(lessons(config, tmp_path, told.append))
    assert told[-1] == len(made) == 4
    assert len({record["instance_id"] for records in made for record in records}) == 4
    before = (tmp_path / "random-tasks-1.jsonl").stat().st_mtime_ns
    assert list(lessons(config, tmp_path, told.append)) == made
    assert (tmp_path / "random-tasks-1.jsonl").stat().st_mtime_ns == before


def test_presets_are_what_the_fields_say_and_lists_come_as_text():
    assert load_config("cpu", settings=["prompts=optimal,baseline"]).prompts == ("optimal", "baseline")
    assert load_config("ship").rename_tools == 0.5
    assert Standing().tokens_per_second == 0.0


def test_the_presets_for_two_cores_and_for_a_gpu_have_the_same_lessons():
    shipped, on_gpu = load_config("ship"), load_config("gpu")
    tasks = [f"task {number}" for number in range(40)]
    assert shipped.dealt(tasks) == on_gpu.dealt(tasks)
    assert all(shipped.dataset(kind) == on_gpu.dataset(kind) for kind, _ in shipped.dealt(tasks))
    names = ("tasks", "train_tasks", "random_libraries", "library_tools", "seed")
    assert [getattr(shipped, name) for name in names] == [getattr(on_gpu, name) for name in names]


def test_the_adapter_that_ships_is_the_one_of_its_card_and_lies_on_the_model_that_ships():
    base = shipped_model_path()
    adapter = adapter_path(SHIPPED_ADAPTER, base)
    card = (adapter.parent / "README.md").read_text()
    assert f"`{fingerprint([adapter])}`" in card
    assert f"`{model_fingerprint(base)}`" in card
    assert local_identity(SHIPPED_ADAPTER, ChatModelSettings()).startswith(f"{ADAPTER_FILE} {fingerprint([adapter])}")
    arrays = read_gguf_adapter(adapter, (9, 3))
    assert len(arrays) == 2 * 7 * 30
    check_size(adapter, FinetuningConfig().rank, FinetuningConfig().alpha)
    assert all(np.isfinite(array).all() and array.any() for array in arrays.values())


@pytest.mark.long
def test_the_real_model_learns_and_plays(tmp_path):
    """Two tasks; then the adapter plays an episode by its own validation, and thinks as transformers does."""
    settings = ["prompts=optimal,flawed:tool_misuse", "train_tasks=2", "batch_size=1", "validation_tasks=1", "warmup=0"]
    told = []
    reached = train(load_config(settings=settings), tmp_path / "run", told.append)
    assert (reached.step, reached.evaluated_at) == (2, 2)
    assert reached.success in (0.0, 0.5, 1.0)
    assert list(reached.shares) == ["optimal", "flawed"]
    assert all(0.0 < standing.loss < 2.0 for standing in told)
    base = shipped_model_path()
    model = add_adapter(load_base(base), load_config())
    set_adapter(model, load_file(tmp_path / "run" / ADAPTER_WEIGHTS_FILE))
    encoder = Encoder(base)
    seen = [example.tokens.tolist() for (example,) in encoder.samples(records())]
    prompts = [tokens[:length] for tokens, length in zip(seen, (90, 150, 210), strict=False)]
    letter = encoder._tokenizer.encode("a").ids[0]
    found = of_llama_cpp(
        base, tmp_path / "run" / ADAPTER_FILE, prompts, 100, letter, vocabulary=model.config.vocab_size
    )
    expected = of_transformers(model.eval(), prompts)
    assert np.nanmax(np.abs(found - expected)) < 1.0
