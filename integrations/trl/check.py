"""TRL, really run: the gate on its environment, and GRPO of a tiny random model, by functions and in tags."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from gate import CALLERS, PROMPT, SEEDS, compare, next_tool, tasks
from pages import run_blocks
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_chat_template

from resilisim import open_session
from resilisim.integrations.trl import (
    environment_factory,
    episode_reward,
    rollout_func,
    rollout_rows,
    training_rows,
)

FIRST = tasks()[0]
TOOLS = (*FIRST.required_tools, "finish")
NO_TOOLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SMALL: dict[str, Any] = {"prompt_style": "compact", "max_turns": 7}


def gate() -> None:
    """Play every script through the methods that TRL calls."""
    rows = training_rows(tasks(), SEEDS, PROMPT)
    played: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    env = environment_factory(reward="advantage")()
    for row in rows:
        for player in CALLERS:
            prompt, said = env.reset(**row), ""
            while not env.session.ended:
                said += getattr(env, next_tool(player, prompt, said))() + "\n"
            record = env.session.record()
            assert math.isclose(env.get_reward(), -record["regret"], abs_tol=1e-9)
            played[player, row["task"], row["seed"]] = record
    compare("TRL environment", played)
    env.reset(**rows[0])
    env.session._session.send = None  # what breaks has no reward, and never 0
    try:
        env.file_operations_reader()
    except TypeError:
        assert env.get_reward() is None
    else:
        raise AssertionError("a broken environment was not told")


def tiny_tokenizer(calls: tuple[str, ...], template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which each call is one token, so that a random model makes calls."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    session = open_session(FIRST, prompt="optimal", prompt_style="compact")
    texts = [session.prompt, json.dumps(session.openai_tools())] * 2  # pairs that come once are no tokens
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=6000, initial_alphabet=alphabet))
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|pad|>"])
    tokenizer.add_tokens(list(calls))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|pad|>", chat_template=template
    )


class Watch(TrainerCallback):
    """Keeps what the trainer logs."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
        """Keep a line."""
        self.logs.append(dict(logs or {}))


def tiny_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """Return a random model."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=32_768,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def page() -> None:
    """Run the blocks of the page, one step of each training, with tiny models of these names."""
    with tempfile.TemporaryDirectory() as folder:
        models = {"Qwen/Qwen3-0.6B": qwen3_chat_template, "HuggingFaceTB/SmolLM2-135M-Instruct": NO_TOOLS}
        instead = {name: str(Path(folder) / str(number)) for number, name in enumerate(models)}
        for name, template in models.items():
            tokenizer = tiny_tokenizer((), template)
            tokenizer.save_pretrained(instead[name])
            tiny_model(tokenizer).save_pretrained(instead[name])
        small = f"max_steps=1, use_cpu=True, bf16=False, report_to=[], output_dir={folder!r}, save_strategy='no'"
        sizes = {
            "num_generations=8, max_completion_length=4096": f"num_generations=4, max_completion_length=200, {small}"
        }
        trained = run_blocks("trl", {**instead, **sizes})["trainer"]
    assert trained.state.global_step == 1


def train(calls: tuple[str, ...], template: str, rows: list[dict[str, Any]], **how: Any) -> list[dict[str, float]]:
    """Run two steps of GRPO on a random model whose every token is a call or the end of its message."""
    tokenizer = tiny_tokenizer(calls, template)
    model = tiny_model(tokenizer)
    spoken = {tokenizer.convert_tokens_to_ids(call) for call in calls} | {tokenizer.eos_token_id}
    before = model.lm_head.weight.detach().clone()
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=4,
            num_generations=4,
            max_steps=2,
            max_completion_length=1500,
            learning_rate=1e-3,
            beta=0.0,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            generation_kwargs={"suppress_tokens": [each for each in range(len(tokenizer)) if each not in spoken]},
        )
        trainer = GRPOTrainer(
            model=model,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[watch],
            **how,
        )
        trainer.train()
    steps = [logs for logs in watch.logs if "reward" in logs]
    assert len(steps) == 2, watch.logs
    assert all(math.isfinite(logs["reward"]) for logs in steps), steps
    assert not torch.equal(before, model.lm_head.weight.detach()), "nothing was learnt"
    return steps


def main() -> None:
    """Run the gate, the page, then both ways of training with calls that are really made."""
    gate()
    page()
    calls = tuple(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in TOOLS)
    rows = training_rows(1, 4, "optimal")
    steps = train(
        calls, qwen3_chat_template, rows, environment_factory=environment_factory(reward="advantage", **SMALL)
    )
    assert all(logs["tools/call_frequency"] > 0 for logs in steps), steps
    print("GRPO with environment_factory:", [(logs["reward"], logs["tools/call_frequency"]) for logs in steps])
    tags = tuple("<finish/>" if name == "finish" else f"<tool_call>{name}</tool_call>" for name in TOOLS)
    play = rollout_func(reward="advantage", tools="listed", **SMALL)
    steps = train(tags, NO_TOOLS, rollout_rows(1, 4, "optimal"), rollout_func=play, reward_funcs=episode_reward)
    assert any(logs["reward"] < 0 for logs in steps), steps
    print("GRPO with rollout_func:", [logs["reward"] for logs in steps])


if __name__ == "__main__":
    main()
