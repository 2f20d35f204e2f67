"""A Llama of random weights with a tokenizer of single bytes: everything that is real but the size."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

WIDTH, HEADS, KEY_HEADS, HIDDEN, LAYERS, CONTEXT = 32, 4, 2, 48, 2, 8192
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokens():
    """Return the characters that stand for the 256 bytes in byte-level vocabularies."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + place) for place in range(len(rest))]


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """The path of the GGUF file."""
    path = tmp_path_factory.mktemp("base") / "tiny.gguf"
    tokens = [*byte_tokens(), "ed", "<|im_start|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
    writer.add_token_merges(["e d"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template(TEMPLATE)
    draws = np.random.default_rng(0)

    def add(name, *shape):
        array = draws.normal(0.0, 0.4, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", array.astype(np.float32))

    add("token_embd", len(tokens), WIDTH)
    add("output_norm", WIDTH)
    key_width = WIDTH // HEADS * KEY_HEADS
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm", WIDTH)
        add(f"blk.{layer}.ffn_norm", WIDTH)
        add(f"blk.{layer}.attn_q", WIDTH, WIDTH)
        add(f"blk.{layer}.attn_k", key_width, WIDTH)
        add(f"blk.{layer}.attn_v", key_width, WIDTH)
        add(f"blk.{layer}.attn_output", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate", HIDDEN, WIDTH)
        add(f"blk.{layer}.ffn_up", HIDDEN, WIDTH)
        add(f"blk.{layer}.ffn_down", WIDTH, HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
