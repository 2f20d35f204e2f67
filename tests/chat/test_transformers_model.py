"""A transformers folder, with a tiny model of random weights that is made here."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import sys

import pytest
import safetensors.torch
import tokenizers
import torch

from resilisim.chat import ChatMessage, ChatRequest, ContextOverflowError, RequestRefusedError, make_chat_model
from resilisim.chat.middleware import ChatModelSettings
from resilisim.chat.models import model_identity
from resilisim.errors import InvalidInputError, MissingExtraError

WORDS = ["<unk>", "</s>", "user", "assistant", *(f"w{number}" for number in range(40))]
QUESTION = ChatRequest((ChatMessage("user", "w1 w2"),), temperature=0.0, max_tokens=12)
TEMPLATE = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}assistant"


def save(folder, template=TEMPLATE):
    import transformers  # takes seconds, which only a process that runs these tests spends

    plain = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="<unk>", eos_token="</s>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(folder))
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        transformers.LlamaForCausalLM(config).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return make_chat_model(f"local:{folder}", ChatModelSettings(local_threads=1))


def ask(model, **changes):
    return asyncio.run(model.complete(dataclasses.replace(QUESTION, **changes)))


def test_greedy_decoding_is_the_librarys_own(folder, model):
    import transformers

    reply = ask(model)
    reference = transformers.LlamaForCausalLM.from_pretrained(str(folder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    prompt = tokenizer("user w1 w2 assistant", return_tensors="pt")
    whole = reference.generate(
        prompt["input_ids"], attention_mask=prompt["attention_mask"], do_sample=False, max_new_tokens=12, pad_token_id=0
    )
    assert reply.text == tokenizer.decode(whole[0, 4:], skip_special_tokens=True)
    assert reply.usage.prompt_tokens == 4
    assert (reply.usage.is_estimate, reply.model) == (False, folder.name)
    assert ask(model).text == reply.text
    assert model.name == f"local:{folder}"
    asyncio.run(model.aclose())


def test_seeds_decide_draws_and_the_global_state_is_left_alone(model):
    before = torch.random.get_rng_state()
    drawn = [ask(model, temperature=1.0, seed=seed).text for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert ask(model, temperature=None, seed=1).text == drawn[0]
    assert torch.equal(before, torch.random.get_rng_state())
    assert ask(model, temperature=5.0, top_p=1e-9, seed=4).text == ask(model).text  # only the likeliest is left


def test_models_of_one_folder_share_their_weights(folder, model):
    from resilisim.chat.local import transformers_model

    text = ask(model).text
    before = len(transformers_model._models)
    assert ask(make_chat_model(f"local:{folder}/")).text == text
    assert len(transformers_model._models) == before


def test_limits_stops_and_contexts(model):
    reply = ask(model, max_tokens=3)
    assert (reply.usage.completion_tokens, reply.finish_reason) == (3, "length")
    second = reply.text.split()[1]
    stopped = ask(model, stop=("nothing like it", second))
    assert stopped.finish_reason == "stop"
    assert stopped.text == reply.text[: reply.text.find(second)]
    assert ask(model, max_tokens=None, temperature=2.0, seed=2).usage.completion_tokens <= 28
    with pytest.raises(ContextOverflowError, match="its 42 tokens exceed the context of 32"):
        ask(model, messages=(ChatMessage("user", "w1 " * 40),))


def test_folders_that_cannot_be_used_are_refused(folder, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInputError, match="cannot be loaded"):
        ask(make_chat_model(f"local:{tmp_path}"))
    base = tmp_path / "base"
    with pytest.raises(InvalidInputError, match="has no chat template"):
        ask(make_chat_model(f"local:{save(base, template=None)}"))
    assert model_identity(f"local:{folder}") != model_identity(f"local:{tmp_path}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match="pip install torch transformers"):
        make_chat_model(f"local:{folder}")


def edited(file, **changes):
    def damage(place):
        value = json.loads((place / file).read_text())
        (place / file).write_text(json.dumps({**value, **changes}))

    return damage


def written(file, content):
    return lambda place: (place / file).write_text(content)


def halved(file):
    return lambda place: (place / file).write_bytes((place / file).read_bytes()[:99])


REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no\nsystem') }}{% endif %}w1{% endfor %}"
)
DAMAGES = {
    "no weights": (lambda place: (place / "model.safetensors").unlink(), "cannot be loaded"),
    "half of the weights": (halved("model.safetensors"), "cannot be loaded"),
    "a config that is a list": (written("config.json", "[]"), "cannot be loaded"),
    "a config that is null": (written("config.json", "null"), "cannot be loaded"),
    "no attention heads": (edited("config.json", num_attention_heads=0), "cannot be loaded"),
    "another vocabulary": (edited("config.json", vocab_size=7), "cannot be loaded"),
    "a layer that the weights lack": (edited("config.json", num_hidden_layers=2), "lacks 9 of its weights"),
    "an unknown activation": (edited("config.json", hidden_act="zz"), "KeyError: 'zz'"),
    "a context below 0": (edited("config.json", max_position_embeddings=-1), "its context is -1"),
    "half of a tokenizer": (halved("tokenizer.json"), "cannot be loaded"),
    "a tokenizer that is an object": (written("tokenizer.json", "{}"), "cannot be loaded"),
    "a tokenizer's config that is null": (written("tokenizer_config.json", "null"), "cannot be loaded"),
    "a template that is cut": (written("chat_template.jinja", "{% for"), "its chat template says"),
    "a template that divides": (
        written("chat_template.jinja", "{{ 1 / 0 }}"),
        "its chat template says: division by zero",
    ),
    "a template that looks outside": (written("chat_template.jinja", "{{ ''.__class__.__mro__ }}"), "is unsafe"),
    "a template that refuses": (written("chat_template.jinja", "{{ raise_exception('go\naway') }}"), "says: go away"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_told_in_one_line(folder, tmp_path, name):
    damage, words = DAMAGES[name]
    place = tmp_path / "damaged"
    shutil.copytree(folder, place)
    damage(place)
    with pytest.raises(InvalidInputError) as caught:
        ask(make_chat_model(f"local:{place}", ChatModelSettings(local_threads=1)))
    assert words in str(caught.value)
    assert str(place) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_template_that_refuses_a_conversation_says_so(tmp_path):
    model = make_chat_model(f"local:{save(tmp_path, REFUSING)}", ChatModelSettings(local_threads=1))
    assert ask(model).text
    with pytest.raises(
        RequestRefusedError, match="refuses the conversation: its chat template says: no system"
    ) as caught:
        ask(model, messages=(ChatMessage("system", "w3"), *QUESTION.messages))
    assert not caught.value.concerns_all_requests


def test_weights_that_give_no_chances_are_told(folder, tmp_path):
    place = tmp_path / "broken"
    shutil.copytree(folder, place)
    weights = safetensors.torch.load_file(place / "model.safetensors")
    broken = {name: torch.full_like(value, float("nan")) for name, value in weights.items()}
    safetensors.torch.save_file(broken, place / "model.safetensors", {"format": "pt"})
    model = make_chat_model(f"local:{place}", ChatModelSettings(local_threads=1))
    with pytest.raises(InvalidInputError, match="cannot answer: probability tensor contains"):
        ask(model, temperature=1.0, seed=1)
