"""The forward and backward pass of a Llama with a LoRA adapter, as lean as the arithmetic allows.

transformers and peft compute the same (a test compares the gradients), but under autocast most of their time on a CPU
goes into casts, scalings and sums of what LoRA adds, and into attention, which is slow there in bfloat16. Here

- what reads the same input is one matrix product (queries, keys and values; gate and up), and the rank's few columns
  stand beside the frozen weights: [x, xA'] [W, sB]' is xW' + s (xA')B' in one product, and its transpose gives both
  gW and s gB of the gradient;
- conversations stand one behind the other without padding, and attention is computed for each of them, on a CPU by
  products of blocks under the diagonal;
- frozen weights get no gradient, and numbers stay in the precision of the weights but for norms and losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch

# Rows of queries whose scores are computed at once: what lies above the diagonal within them is wasted.
_BLOCK: Final = 128
_ADAPTER: Final = "default"  # peft's name of the only one


class Span(NamedTuple):
    """Tokens that attend to each other causally, in places of the packed sequence, behind a beginning from elsewhere.

    Attributes:
        begin: The first.
        end: Behind the last.
        shared_begin: The first token of the beginning, within an earlier span that begins with itself.
        shared: How many tokens the beginning has; 0 if the span begins with itself.
    """

    begin: int
    end: int
    shared_begin: int = 0
    shared: int = 0

    @property
    def own(self) -> slice:
        """The places of its own tokens."""
        return slice(self.begin, self.end)

    @property
    def before(self) -> slice:
        """The places of the beginning."""
        return slice(self.shared_begin, self.shared_begin + self.shared)


Rotation: TypeAlias = tuple[torch.Tensor, torch.Tensor]  # cosines and signed sines, (num_tokens, 1, head width)


class Decoder:
    """Computes what stands behind each token of packed conversations; the weights are those of the model at the time.

    Args:
        model: A Llama of transformers with an adapter of peft. The frozen weights move into matrices that they share
            with the adapter's columns; the model sees them there.
    """

    def __init__(self, model: Any) -> None:
        base = model.get_base_model()
        self._decoder = base.get_decoder()
        self._head = base.get_output_embeddings()
        self._layers = [_Layer(layer, base.config) for layer in self._decoder.layers]

    def hidden(self, tokens: torch.Tensor, spans: Sequence[Span]) -> torch.Tensor:
        """Return the last hidden states, (num_tokens, width), of tokens, (num_tokens,), each seeing its own span."""
        places = [torch.arange(span.shared, span.shared + span.end - span.begin) for span in spans]
        positions = torch.cat(places).to(tokens.device)
        x = self._decoder.embed_tokens(tokens)
        cos, sin = self._decoder.rotary_emb(x, positions[None])
        rotation = cos[0, :, None].to(x), _signed(sin[0, :, None]).to(x)
        for layer in self._layers:
            x = layer.forward(x, rotation, spans)
        return _normed(x, self._decoder.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of hidden states, (num_places, vocabulary)."""
        logits: torch.Tensor = self._head(hidden)
        return logits


def _signed(sines: torch.Tensor) -> torch.Tensor:
    """Return sines for halves that are swapped and not negated."""
    half = sines.shape[-1] // 2
    return torch.cat([-sines[..., :half], sines[..., half:]], -1)


def _applied(function: Any, *arguments: object) -> torch.Tensor:
    """Return what a function with a gradient of its own makes of its arguments; torch says of `apply` no types."""
    result: torch.Tensor = function.apply(*arguments)
    return result


class _Layer:
    def __init__(self, layer: Any, config: Any) -> None:
        attention, perceptron = layer.self_attn, layer.mlp
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        self._qkv = _Projection(attention.q_proj, attention.k_proj, attention.v_proj)
        self._out = _Projection(attention.o_proj)
        self._gate_up = _Projection(perceptron.gate_proj, perceptron.up_proj)
        self._down = _Projection(perceptron.down_proj)
        self._heads = _Heads(config.num_attention_heads, config.num_key_value_heads, attention.head_dim)

    def forward(self, x: torch.Tensor, rotation: Rotation, spans: Sequence[Span]) -> torch.Tensor:
        mixed = self._qkv.of(_normed(x, self._before))
        if x.device.type == "cpu":
            attended = _applied(_BlockAttention, mixed, rotation, spans, self._heads)
        else:
            attended = _attended_side_by_side(mixed, rotation, spans, self._heads)
        x = x + self._out.of(attended)
        return x + self._down.of(_applied(_Gated, self._gate_up.of(_normed(x, self._between))))


class _Projection:
    """Linear layers of one input, each with its pair of LoRA: [x, xA'] [W, sB]'."""

    def __init__(self, *layers: Any) -> None:
        first = layers[0]
        weights = [layer.get_base_layer().weight for layer in layers]
        self._a = [layer.lora_A[_ADAPTER].weight for layer in layers]
        self._b = [layer.lora_B[_ADAPTER].weight for layer in layers]
        self._scale = float(first.scaling[_ADAPTER])
        rank, width = self._a[0].shape
        rows = [len(weight) for weight in weights]
        both = weights[0].new_zeros(sum(rows), width + rank * len(layers))
        both[:, :width] = torch.cat(list(weights))
        self._both, self._parts = both, _Parts(width, rank, tuple(rows))
        for layer, part in zip(layers, both[:, :width].split(rows), strict=True):
            layer.get_base_layer().weight.data = part

    def of(self, x: torch.Tensor) -> torch.Tensor:
        for place, (rows, columns) in enumerate(self._parts.blocks()):
            self._both[rows, columns] = self._b[place].detach() * self._scale
        a = torch.cat([part.detach().to(x.dtype) for part in self._a])
        return _applied(_Projected, x, self._both, a, self._scale, self._parts, *self._a, *self._b)


class _Parts(NamedTuple):
    """Where the linear layers of a projection stand in its matrix."""

    width: int  # of the input
    rank: int
    rows: tuple[int, ...]  # outputs of each layer

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield rows and columns of each layer's B."""
        row, column = 0, self.width
        for rows in self.rows:
            yield slice(row, row + rows), slice(column, column + self.rank)
            row, column = row + rows, column + self.rank


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        both: torch.Tensor,
        a: torch.Tensor,
        scale: float,
        parts: _Parts,
        *adapter: torch.Tensor,
    ) -> torch.Tensor:
        beside = x.new_empty(len(x), both.shape[1])
        beside[:, : parts.width] = x
        torch.mm(x, a.t(), out=beside[:, parts.width :])
        ctx.save_for_backward(beside, both, a)
        ctx.scale, ctx.parts = scale, parts
        return beside @ both.t()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        (g,) = gradients
        beside, both, a = ctx.saved_tensors
        width = ctx.parts.width
        x, low = beside[:, :width], beside[:, width:]
        if ctx.needs_input_grad[0]:
            back = g @ both
            back_low, dx = back[:, width:], back[:, :width]
            dx = torch.addmm(dx, back_low, a)
        else:
            back_low, dx = g @ both[:, width:], None
        da = (back_low.t() @ x).float().split(ctx.parts.rank)
        db = [
            (g[:, rows].t() @ low[:, columns.start - width : columns.stop - width]).float().mul_(ctx.scale)
            for rows, columns in ctx.parts.blocks()
        ]
        return dx, None, None, None, None, *da, *db


def _normed(x: torch.Tensor, norm: Any) -> torch.Tensor:
    return _applied(_Normed, x, norm.weight, norm.variance_epsilon)


class _Normed(torch.autograd.Function):
    """x / rms(x) * weight, of a frozen weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        exact = x.float()
        inverse = torch.rsqrt(torch.linalg.vector_norm(exact, dim=-1, keepdim=True).square_() / x.shape[-1] + epsilon)
        ctx.save_for_backward(x, weight, inverse)
        return (exact * inverse).to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        x, weight, inverse = ctx.saved_tensors
        g = (gradients[0] * weight).float()
        unit = x.float() * inverse
        mean = (g * unit).mean(-1, keepdim=True)
        return unit.mul_(-mean).add_(g).mul_(inverse).to(x.dtype), None, None


class _Gated(torch.autograd.Function):
    """silu(gate) * up of (num_tokens, 2 * width)."""

    @staticmethod
    def forward(ctx: Any, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, -1)
        opened = torch.nn.functional.silu(gate)
        ctx.save_for_backward(gate_up, opened)
        return opened * up

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (g,) = gradients
        gate_up, opened = ctx.saved_tensors
        gate, up = gate_up.chunk(2, -1)
        back = torch.empty_like(gate_up)
        to_gate, to_up = back.chunk(2, -1)
        torch.mul(g, opened, out=to_up)
        torch.ops.aten.silu_backward.grad_input(g * up, gate, grad_input=to_gate)
        return back


class _Heads(NamedTuple):
    """How many heads there are and how wide each is; queries share keys and values in groups."""

    queries: int
    keys: int
    width: int

    def split(self, mixed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return queries and keys, and values, of (num_tokens, all heads): (num_tokens, heads, width) each."""
        heads = mixed.view(len(mixed), -1, self.width)
        return heads[:, : self.queries + self.keys], heads[:, self.queries + self.keys :]


def _rotated(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Return heads, (num_tokens, heads, width), turned by their positions."""
    cos, sin = rotation
    half = heads.shape[-1] // 2
    turned = heads * cos
    turned[..., :half].addcmul_(heads[..., half:], sin[..., :half])
    turned[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return turned


def _attended_side_by_side(
    mixed: torch.Tensor, rotation: Rotation, spans: Sequence[Span], heads: _Heads
) -> torch.Tensor:
    """Attend by a row for each span, filled up behind, which nothing real looks at."""
    turned, values = heads.split(mixed)
    cos, sin = rotation
    swapped = torch.cat(turned.chunk(2, -1)[::-1], -1)
    whole = torch.cat([turned * cos + swapped * sin, values], 1)
    rows = torch.nn.utils.rnn.pad_sequence(
        [torch.cat([whole[span.before], whole[span.own]]) for span in spans], batch_first=True
    ).transpose(1, 2)
    q, k, v = torch.split(rows, [heads.queries, heads.keys, heads.keys], 1)
    attended = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    ends = [span.shared + span.end - span.begin for span in spans]
    joined = attended.transpose(1, 2).flatten(2)
    return torch.cat([row[span.shared : end] for row, span, end in zip(joined, spans, ends, strict=True)])


class _BlockAttention(torch.autograd.Function):
    """The same by products of blocks of queries with the keys that they can see, for a CPU."""

    @staticmethod
    def forward(
        ctx: Any, mixed: torch.Tensor, rotation: Rotation, spans: Sequence[Span], heads: _Heads
    ) -> torch.Tensor:
        turned, values = heads.split(mixed)
        turned = _rotated(turned, rotation)
        result = mixed.new_empty(len(mixed), heads.queries * heads.width)
        weights = []
        for span in spans:
            q, k, v = _of_span(turned, values, span, heads)
            attended = result[span.own].view(-1, heads.keys, heads.queries // heads.keys, heads.width)
            for block, seen, queries in _blocks(q, span):
                scores = torch.bmm(queries, k[:, :seen].transpose(1, 2))
                size = block.stop - block.start
                scores.view(heads.keys, -1, size, seen)[..., seen - size :].add_(_mask(size, scores))
                scores = torch.softmax(scores, -1)
                weights.append(scores)
                attended[block] = _by_place(torch.bmm(scores, v[:, :seen]), size)
        ctx.save_for_backward(turned, values, *rotation, *weights)
        ctx.spans, ctx.heads = spans, heads
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        turned, values, cos, sin, *saved = ctx.saved_tensors
        (g,) = gradients
        heads, weights = ctx.heads, iter(saved)
        back = g.new_zeros(len(g), (heads.queries + 2 * heads.keys) * heads.width)
        back_turned, back_values = heads.split(back)
        to_turned = torch.zeros_like(turned)
        to_keys = to_turned[:, heads.queries :]
        for span in ctx.spans:
            q, k, v = _of_span(turned, values, span, heads)
            incoming = _grouped(g[span.own].view(-1, heads.queries, heads.width), heads)
            dk, dv = torch.zeros_like(k), torch.zeros_like(v)
            dq = to_turned[span.own, : heads.queries].view(-1, heads.keys, heads.queries // heads.keys, heads.width)
            for (block, seen, queries), (_, _, outer) in zip(_blocks(q, span), _blocks(incoming, span), strict=True):
                chances = next(weights)
                dv[:, :seen].baddbmm_(chances.transpose(1, 2), outer)
                to_chances = torch.bmm(outer, v[:, :seen].transpose(1, 2))
                to_scores = torch.ops.aten._softmax_backward_data(to_chances, chances, -1, chances.dtype)
                dk[:, :seen].baddbmm_(to_scores.transpose(1, 2), queries)
                to_queries = torch.bmm(to_scores, k[:, :seen]).mul_(heads.width**-0.5)
                dq[block] = _by_place(to_queries, block.stop - block.start)
            for to, gradient in ((to_keys, dk.transpose(0, 1)), (back_values, dv.transpose(0, 1))):
                to[span.own] += gradient[span.shared :]
                if span.shared:
                    to[span.before] += gradient[: span.shared]
        back_turned.copy_(_rotated(to_turned, (cos, -sin)))
        return back, None, None, None


def _of_span(
    turned: torch.Tensor, values: torch.Tensor, span: Span, heads: _Heads
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return scaled queries, (keys, group, own tokens, width), and keys and values, (keys, all tokens, width)."""
    q = _grouped(turned[span.own, : heads.queries], heads) * heads.width**-0.5
    both = (turned[:, heads.queries :], values)
    k, v = (torch.cat([part[span.before], part[span.own]]).transpose(0, 1).contiguous() for part in both)
    return q, k, v


def _grouped(queries: torch.Tensor, heads: _Heads) -> torch.Tensor:
    """Return (num_tokens, heads, width) as (keys, group, num_tokens, width)."""
    return queries.view(len(queries), heads.keys, -1, heads.width).permute(1, 2, 0, 3)


def _blocks(queries: torch.Tensor, span: Span) -> Iterator[tuple[slice, int, torch.Tensor]]:
    """Yield blocks of a span: their places in it, how many keys the last sees, and (keys, group * places, width)."""
    groups, _, size, width = queries.shape
    for begin in range(0, size, _BLOCK):
        end = min(begin + _BLOCK, size)
        yield slice(begin, end), span.shared + end, queries[:, :, begin:end].reshape(groups, -1, width)


def _by_place(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Return (keys, group * places, width) as (places, keys, group, width)."""
    return blocks.view(len(blocks), -1, size, blocks.shape[-1]).permute(2, 0, 1, 3)


def _mask(size: int, like: torch.Tensor) -> torch.Tensor:
    """Return (size, size), minus infinity above the diagonal, where a query must not look."""
    return like.new_full((size, size), float("-inf")).triu_(1)
