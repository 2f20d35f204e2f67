"""The policy networks of Workflow-v0: a Transformer over the tools, its ablation, and how one is played.

Transformer: each tool of the library is a token made of its features and the task's, and one more token stands for the
episode; the action head scores every tool from the tool's own token. The weights do not depend on the number of tools,
so one set of weights serves libraries of other sizes.

Attention is spent on the tools that matter now. A library has 30 tools and a task needs a handful; the update of PPO on
few processor cores is bound by the number of tokens, so only the `attention_tokens` most relevant tools (`relevance`)
go through the layers together with the episode's token. The others keep their embedding, to which a projection of the
episode's token is added before the action head reads it.

All heads of a layer share one key and one value (multi-query attention, Shazeer 2019, arXiv:1911.02150). With a dozen
tokens of 32 numbers the work lies in the many small matrix products: sharing makes them few and larger.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from resilisim.envs.workflow import spaces
from resilisim.envs.workflow.spaces import NUM_ACTION_TYPES, NUM_META_ACTIONS, num_actions
from resilisim.errors import InvalidInputError
from resilisim.policies.ppo.features import (
    NUM_RELATIONS,
    NUM_TASK_INPUTS,
    NUM_TOOL_FEATURES,
    PART_RELATIONS,
    TOOL_RELATIONS,
    ColumnFeatures,
    PartFeatures,
)

# About sixteen features of a tool are not 0; with this spread an embedding starts with entries of variance about 1.
EMBEDDING_STD = 0.25
# Logits and value start near 0: every legal action equally likely.
HEAD_STD = 0.01
# How much more likely (as a logit) a fresh network takes tools that the list is waiting for. Exploration is where the
# time of training goes; what starts as a preference is learned like any other weight (docs/decisions).
INITIAL_PRIOR = 3.0
HIDDEN_FACTOR = 2  # width of the feed-forward layer, in widths of a token


def is_awaited(tools: Tensor) -> Tensor:
    """Return which tools the list waits for, bool (B, T): due or led to by what is due; none if the list is hidden."""
    due = (tools[..., spaces.TOOL_DUE] > 0) | (tools[..., spaces.TOOL_FIRST_DESCENDANT_DUE] > 0)
    return due & (tools[..., spaces.TOOL_STATUS] != spaces.STATUS_SUCCESS)


def relevance(tools: Tensor) -> Tensor:
    """Return how much each tool matters now, int64 (B, T), larger for more relevant ones; no two of a row are equal.

    First come required tools without success and tools that one of these depends on, those that are due earliest first;
    then tools that have been attempted; then the others. Among equals the semantic filter's confidence decides, then
    the similarity with the task's text, then the place in the library.
    """
    column = tools.to(torch.int32).unbind(dim=-1)
    due = torch.maximum(column[spaces.TOOL_DUE], column[spaces.TOOL_FIRST_DESCENDANT_DUE])
    # 255 - due for what is due, so that an earlier place counts more; 1 for what has been attempted.
    attempted = ((column[spaces.TOOL_STATUS] != spaces.STATUS_NOT_ATTEMPTED) | (column[spaces.TOOL_EXECUTIONS] > 0)).to(
        torch.int32
    )
    tier = torch.where(due > 0, 257 - due, attempted)
    score = (tier * 256 + column[spaces.TOOL_CONFIDENCE]) * 256 + column[spaces.TOOL_SIMILARITY]
    num_tools = tools.shape[1]
    return score.to(torch.int64) * num_tools + torch.arange(num_tools - 1, -1, -1, device=tools.device)


# Ranks of tools by `nearness`, smaller ones first: of those that are due by their place, and a little behind them what
# they depend on; then what helps everywhere; what has succeeded; everything else.
_INDIRECT, _HELPER, _DONE, _OUTSIDE = 8, 30, 700, 900


def nearness(tools: Tensor, tool_parts: Tensor | None = None, detailed: bool = False) -> Tensor:
    """Return how near each tool is to what is due, int64 (B, T), larger for nearer ones; no two of a row are equal.

    Unlike by `relevance` what is needed directly comes before what is needed for that, however many that are; and it
    is a function of the state. With `detailed` parts what would serve nothing any more is not needed. Among equals the
    more reliable tool comes first, then the place in the library.
    """
    column = tools.to(torch.int32).unbind(dim=-1)
    rank = torch.full_like(column[0], _OUTSIDE)
    indirect = column[spaces.TOOL_FIRST_DESCENDANT_DUE]
    if detailed and tool_parts is not None:
        indirect = tool_parts[..., spaces.PART_SERVES_DUE].to(torch.int32)
    for due, behind in (
        (indirect, _INDIRECT),
        (column[spaces.TOOL_FIRST_DEPENDENT_DUE], 1),
        (column[spaces.TOOL_DUE], 0),
    ):
        rank = torch.where(due > 0, torch.minimum(rank, 2 * due + behind), rank)
    if tool_parts is not None:
        helps = (tool_parts[..., spaces.PART_IS_VALIDATOR] > 0) | (tool_parts[..., spaces.PART_IS_OPENER] > 0)
        rank = torch.where(helps, rank.clamp(max=_HELPER), rank)
    is_done = (column[spaces.TOOL_STATUS] == spaces.STATUS_SUCCESS) & (column[spaces.TOOL_DUE] == 0)
    rank = torch.where(is_done, rank.clamp(min=_DONE), rank)
    score = (1023 - rank) * 256 + column[spaces.TOOL_CLEAN_PROBABILITY]
    num_tools = tools.shape[1]
    return score.to(torch.int64) * num_tools + torch.arange(num_tools - 1, -1, -1, device=tools.device)


def relations_of(tools: Tensor, tool_parts: Tensor | None = None) -> Tensor:
    """Return what tools are to each other: float32 (B, S, S, NUM_RELATIONS), of who is looked at and who looks."""
    tools = tools.to(torch.int32)
    pairs = [(tools[..., own], tools[..., other]) for own, other in TOOL_RELATIONS]
    if tool_parts is None:
        pairs += [(torch.zeros_like(pairs[0][0]),) * 2] * len(PART_RELATIONS)
    else:
        parts = tool_parts.to(torch.int32)
        pairs += [(parts[..., own], parts[..., other]) for own, other in PART_RELATIONS]
    same = [(own[:, :, None] == other[:, None, :]) & (own > 0)[:, :, None] for own, other in pairs]
    return torch.stack(same, dim=-1).to(torch.float32)


class Layer(nn.Module):
    """A Transformer layer with the norms in front (pre-norm) and one key and value for all heads.

    The products are written out. torch's `scaled_dot_product_attention` took twice as long on a CPU: its kernel handles
    one head of one observation at a time, and a dozen tokens are too few to pay for that. The softmax runs over the
    middle axis: along the last one, of only a dozen numbers, it took ten times as long, a third of an update.
    """

    def __init__(self, width: int, heads: int, relations: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.relation_bias = nn.Parameter(torch.zeros(NUM_RELATIONS, heads)) if relations else None
        self.head_width = width // heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, width + 2 * self.head_width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.hidden_norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, HIDDEN_FACTOR * width)
        self.hidden_out = nn.Linear(HIDDEN_FACTOR * width, width)

    def forward(self, tokens: Tensor, relations: Tensor | None = None) -> Tensor:
        """Return the tokens after the layer: (B, S, width) to (B, S, width); with `relations_of` all of them."""
        batch, length, width = tokens.shape
        mixed = self.query_key_value(self.attention_norm(tokens))
        query, key, value = torch.split(mixed, [width, self.head_width, self.head_width], dim=-1)
        # Row s * heads + h is head h of token s; of the scores, it is a column.
        query = query.reshape(batch, length * self.heads, self.head_width)
        scores = torch.bmm(key, query.transpose(1, 2)) * self.head_width**-0.5
        if self.relation_bias is not None and relations is not None:
            scores = scores + (relations @ self.relation_bias).view(scores.shape)
        attended = torch.bmm(scores.softmax(dim=1).to(value.dtype).transpose(1, 2), value)
        tokens = tokens + self.attention_out(attended.view(batch, length, width))
        hidden: Tensor = self.hidden_out(functional.relu(self.hidden(self.hidden_norm(tokens))))
        return tokens + hidden


class WorkflowTransformer(nn.Module):
    """Scores all actions and the state's value, for a library of `num_tools` tools (T).

    `width` is the size of a token, which `heads` must divide; `attention_tokens` tools take part in the attention, all
    for None. With `tool_embeddings` every tool of the library has a learned vector, and the weights fit this library
    only. With `autocast` it computes in bfloat16 up to the heads, which stay in float32: differences of logits and the
    errors of values are smaller than bfloat16 can tell apart. With `law_parts` it reads what observations hold beside
    under laws with parts; without, it plays under them as if there were nothing to see. With `detailed` it also reads
    what an environment shows that is so, under any law. With `by_state` it reads what
    decides what comes after alone (STATE_TOOL_COLUMNS), and attention is spent by `nearness`; with `relations`
    attention is biased by what tools are to each other (`relations_of`).
    """

    def __init__(
        self,
        num_tools: int,
        width: int = 32,
        layers: int = 2,
        heads: int = 4,
        attention_tokens: int | None = 12,
        tool_embeddings: bool = False,
        autocast: bool = False,
        law_parts: bool = False,
        by_state: bool = False,
        relations: bool = False,
        detailed: bool = False,
    ) -> None:
        super().__init__()
        if width % heads:
            raise InvalidInputError(f"heads {heads}: expected a divisor of width {width}")
        if detailed and not law_parts:
            raise InvalidInputError("detailed is True and law_parts False: expected law_parts=True with it")
        self.num_tools = num_tools
        self.num_actions = num_actions(num_tools)
        self.attention_tokens = attention_tokens
        self.autocast = autocast
        self.by_state, self.relations, self.detailed = by_state, relations, detailed
        self.features = ColumnFeatures(by_state)
        self.tool_input = nn.Linear(NUM_TOOL_FEATURES, width)
        self.task_input = nn.Linear(NUM_TASK_INPUTS, 2 * width)
        self.tool_vectors = nn.Parameter(torch.zeros(num_tools, width)) if tool_embeddings else None
        self.layers = nn.ModuleList(Layer(width, heads, relations) for _ in range(layers))
        self.context = nn.Linear(width, width, bias=False)
        self.tool_norm = nn.LayerNorm(width)
        self.tool_head = nn.Linear(width, NUM_ACTION_TYPES)
        self.prior = nn.Parameter(torch.tensor(INITIAL_PRIOR))
        self.episode_norm = nn.LayerNorm(width)
        self.episode_head = nn.Linear(width, NUM_ACTION_TYPES + NUM_META_ACTIONS)
        self.value_head = nn.Linear(2 * width, 1)
        for linear in (self.tool_input, self.task_input):
            nn.init.normal_(linear.weight, std=EMBEDDING_STD)
            nn.init.zeros_(linear.bias)
        for linear in (self.tool_head, self.episode_head, self.value_head):
            nn.init.normal_(linear.weight, std=HEAD_STD)
            nn.init.zeros_(linear.bias)
        if self.tool_vectors is not None:
            nn.init.normal_(self.tool_vectors, std=EMBEDDING_STD)
        self.part_features = PartFeatures(detailed) if law_parts else None
        if self.part_features is not None:  # last, so that the other weights are those of a network without
            self.part_input = nn.Linear(self.part_features.num_tool_features, width, bias=False)
            self.law_input = nn.Linear(self.part_features.num_law_features, 2 * width, bias=False)
            for linear in (self.part_input, self.law_input):
                nn.init.normal_(linear.weight, std=EMBEDDING_STD)

    def forward(
        self, tools: Tensor, task: Tensor, tool_parts: Tensor | None = None, law: Tensor | None = None
    ) -> Tensor:
        """Return the logits of all actions, in the layout of `actions`, then the value: float32 (B, num_actions + 1).

        The columns `tools` (B, T, NUM_TOOL_COLUMNS) and `task` (B, NUM_TASK_COLUMNS) are whole numbers from 0 to 255 of
        any type; so are `tool_parts` (B, T, NUM_PART_COLUMNS) and `law` (B, NUM_LAW_COLUMNS) under laws with parts.
        """
        with torch.autocast(tools.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            last, last_tokens, tokens = self._tokens(tools, task, tool_parts, law)
        last, last_tokens, tokens = last.float(), last_tokens.float(), tokens.float()
        tool_logits = self.tool_head(self.tool_norm(tokens + self.context(last)[:, None]))
        tool_logits = tool_logits + self.prior * is_awaited(tools).to(tool_logits.dtype)[..., None]
        last = self.episode_norm(last)
        none_logits, meta_logits = torch.split(self.episode_head(last), [NUM_ACTION_TYPES, NUM_META_ACTIONS], dim=-1)
        value = self.value_head(torch.cat([last, last_tokens.mean(dim=1)], dim=-1))
        by_type = torch.cat([tool_logits.transpose(1, 2), none_logits[..., None]], dim=-1)
        return torch.cat([by_type.view(len(by_type), -1), meta_logits, value], dim=-1)

    def _tokens(
        self, tools: Tensor, task: Tensor, tool_parts: Tensor | None, law: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the episode's token, (B, width), those of the tools with attention, (B, S, width), and all tools'."""
        tool_features, task_features = self.features(tools, task)
        batch, num_tools, _ = tool_features.shape
        of_task, of_tools = self.task_input(task_features), self.tool_input(tool_features)
        if self.part_features is not None and tool_parts is not None and law is not None:
            part_features, law_features = self.part_features(tool_parts, law)
            of_task, of_tools = of_task + self.law_input(law_features), of_tools + self.part_input(part_features)
        shared, episode = of_task.chunk(2, dim=-1)
        tokens = of_tools + shared[:, None]
        if self.tool_vectors is not None:
            tokens = tokens + self.tool_vectors
        width = tokens.shape[-1]
        count = self.attention_tokens
        if count is None or count >= num_tools:
            last, last_tokens = self._attend(episode, tokens, self._related(tools, tool_parts))
            return last, last_tokens, last_tokens
        if self.by_state:
            ranks = nearness(self.features.columns_of(tools), tool_parts, self.detailed)
        else:
            ranks = relevance(tools)
        top = ranks.topk(count, dim=1, sorted=False).indices
        rows = (top + torch.arange(0, batch * num_tools, num_tools, device=top.device)[:, None]).view(-1)
        flat = tokens.view(batch * num_tools, width)
        related = self._related(*(None if array is None else _picked(array, top) for array in (tools, tool_parts)))
        last, last_tokens = self._attend(episode, flat.index_select(0, rows).view(batch, count, width), related)
        flat = flat.index_copy(0, rows, last_tokens.reshape(batch * count, width).to(flat.dtype))
        return last, last_tokens, flat.view(batch, num_tools, width)

    def _related(self, tools: Tensor | None, tool_parts: Tensor | None) -> Tensor | None:
        """Return what the tokens are to each other, (B, 1 + S, 1 + S, NUM_RELATIONS): the episode's nothing."""
        if not self.relations or tools is None:
            return None
        return functional.pad(relations_of(tools, tool_parts), (0, 0, 1, 0, 1, 0))

    def _attend(self, episode: Tensor, tokens: Tensor, relations: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the episode's token, (B, width), and the tools', (B, S, width), after the layers."""
        tokens = torch.cat([episode[:, None], tokens], dim=1)
        for layer in self.layers:
            tokens = layer(tokens, relations)
        # One split instead of two slices: the gradient is then put together in one pass.
        last, tools = torch.split(tokens, [1, tokens.shape[1] - 1], dim=1)
        return last.squeeze(1), tools


def _picked(array: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of each of a batch: (B, T, C) and int64 (B, S) to (B, S, C)."""
    return array.gather(1, rows[..., None].expand(-1, -1, array.shape[-1]))


class WorkflowMLP(nn.Module):
    """Scores all actions and the state's value from the features of all tools, side by side.

    Nothing is shared between tools: the weights serve a library of this size and order only.
    """

    def __init__(self, num_tools: int, width: int = 256, autocast: bool = False) -> None:
        super().__init__()
        self.num_tools = num_tools
        self.num_actions = num_actions(num_tools)
        self.autocast = autocast
        self.features = ColumnFeatures()
        self.hidden = nn.Linear(num_tools * NUM_TOOL_FEATURES + NUM_TASK_INPUTS, width)
        self.hidden_2 = nn.Linear(width, width)
        self.output = nn.Linear(width, self.num_actions + 1)
        nn.init.normal_(self.output.weight, std=HEAD_STD)
        nn.init.zeros_(self.output.bias)

    def forward(
        self, tools: Tensor, task: Tensor, tool_parts: Tensor | None = None, law: Tensor | None = None
    ) -> Tensor:
        """Return what `WorkflowTransformer.forward` does; what is shown of a law's parts is not read."""
        with torch.autocast(tools.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            tool_features, task_features = self.features(tools, task)
            inputs = torch.cat([tool_features.flatten(1), task_features], dim=-1)
            hidden = nn.functional.relu(self.hidden_2(nn.functional.relu(self.hidden(inputs))))
        output: Tensor = self.output(hidden.float())
        return output


Network: TypeAlias = WorkflowTransformer | WorkflowMLP
NETWORKS: Mapping[str, type[Network]] = {"transformer": WorkflowTransformer, "mlp": WorkflowMLP}


def make_network(architecture: str, num_tools: int, options: Mapping[str, Any]) -> Network:
    """Return a fresh network: a name of NETWORKS, tools in the library, the network's other arguments."""
    return NETWORKS[architecture](num_tools, **options)


def draw(probabilities: Tensor, uniform: Tensor | None = None) -> Tensor:
    """Return an index drawn for each row with the row's probabilities; one of probability 0 is never drawn.

    `probabilities`, (N, K), have a positive sum in each row, which need not be exactly 1; the indices are int64 (N,).
    `uniform`, (N, 1), is drawn if it is not given; even a 1, to which a number below it may have been rounded, draws an
    index of positive probability. One uniform number and a running sum for each row take a fifth of the time of torch's
    `multinomial`, which draws a number for each of the 283 actions.
    """
    sums = probabilities.cumsum(dim=-1)
    total = sums[:, -1:]
    if uniform is None:
        uniform = torch.rand(total.shape, dtype=total.dtype, device=total.device)
    # The product may round up to the total, behind the last index.
    threshold = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, threshold, right=True).squeeze(-1)


@contextlib.contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch compute with so many threads, on which sums depend in the last bits.

    One is enough for a network of this size: where other programs wanted the second core, two threads waited for each
    other, and looking at 2,048 observations took six times the processor time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


READ = ("tools", "task", "tool_parts", "law")  # what networks read of an observation


class WorkflowActor:
    """Plays a network, which stays on its device, from observations of numpy arrays and without stable-baselines3.

    Observations hold `tools` (N, T, NUM_TOOL_COLUMNS) and `task` (N, NUM_TASK_COLUMNS), as Workflow-v0 gives them;
    masks are (N, num_actions), not 0 for legal actions, of which there is at least one in a row.
    """

    def __init__(self, network: Network) -> None:
        self.network = network

    @property
    def reads_state_alone(self) -> bool:
        """Whether it acts the same wherever the same can follow (`WorkflowTransformer.by_state`)."""
        return isinstance(self.network, WorkflowTransformer) and self.network.by_state

    def _output(self, observation: Mapping[str, np.ndarray], mask: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the logits of legal actions, those of others -inf, and the values."""
        device = next(self.network.parameters()).device
        with torch.inference_mode():
            # Copied, because an observation may be a view that its environment overwrites or that is read-only.
            shown = {name: torch.tensor(observation[name], device=device) for name in READ if name in observation}
            output: Tensor = self.network(**shown)
            return output[:, :-1].masked_fill(torch.tensor(mask == 0, device=device), -torch.inf), output[:, -1]

    def _masked_logits(self, observation: Mapping[str, np.ndarray], mask: np.ndarray) -> Tensor:
        return self._output(observation, mask)[0]

    def judgements(self, observation: Mapping[str, np.ndarray], mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability of every action, as `probabilities` does, and the values of the states, (N,)."""
        logits, values = self._output(observation, mask)
        return np.asarray(logits.softmax(dim=-1).cpu().numpy()), np.asarray(values.cpu().numpy())

    def probabilities(self, observation: Mapping[str, np.ndarray], mask: np.ndarray) -> np.ndarray:
        """Return the probability of every action: float32 (N, num_actions), exactly 0 where `mask` is 0."""
        return np.asarray(self._masked_logits(observation, mask).softmax(dim=-1).cpu().numpy())

    def act(self, observation: Mapping[str, np.ndarray], mask: np.ndarray) -> np.ndarray:
        """Return the most probable action for every observation, the first one among equals: int64 (N,)."""
        return np.asarray(self._masked_logits(observation, mask).argmax(dim=-1).cpu().numpy())
