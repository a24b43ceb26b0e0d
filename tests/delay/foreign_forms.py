"""More models as other people write them: other ways to write a softmax, to return a result, and to share weights.

What attention adds passes through `added`. So a test can leave attention out as the author of a model would.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from foreign import (
    HEADS,
    VOCABULARY,
    WIDTH,
    CausalSelfAttention,
    HandWrittenRecurrence,
    LanguageModel,
    Mixer,
    Residual,
    TorchAttention,
    gru,
    heads_of,
)
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm


class Author:
    """Whether the models of this file add what attention computes."""

    attends: ClassVar[bool] = True


def added(y: Tensor) -> Tensor:
    return y if Author.attends else torch.zeros_like(y)


def future_of(x: Tensor) -> Tensor:
    """Return which keys come after each query (T, T)."""
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)


class Add(nn.Module):
    """x + body(norm(x)), where the body may return its result in another form"""

    def __init__(self, body: nn.Module, result: Callable[[Any], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.norm, self.body, self._result = nn.LayerNorm(WIDTH), body, result

    def forward(self, x: Tensor) -> Tensor:
        return x + added(self._result(self.body(self.norm(x))))


class WrittenOut(CausalSelfAttention):
    """Attention with the softmax written out: the exponentials of the scores, divided by their sum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        scores = (q @ k.mT).masked_fill(future_of(x), -torch.inf)
        weights = torch.exp(input=scores - scores.amax(-1, keepdim=True))
        weights = torch.div(input=weights, other=weights.sum(-1, keepdim=True))
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))


class FromLogarithms(CausalSelfAttention):
    """Attention with weights from a log-softmax, over an axis in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in heads_of(self.c_attn(x)))
        scores = torch.einsum("bqhe,bkhe->bqkh", q, k).masked_fill(future_of(x)[..., None], -torch.inf)
        return self.c_proj(torch.einsum("bqkh,bkhe->bqhe", F.log_softmax(scores, 2).exp(), v).flatten(2))


class NormalizedAgain(CausalSelfAttention):
    """Attention that drops small weights and divides the others by their sum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        weights = torch.softmax(input=(q @ k.mT).masked_fill(future_of(x), -torch.inf), dim=-1)
        weights = weights * (weights > 0.05)
        return self.c_proj((weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


class QueryByQuery(CausalSelfAttention):
    """Attention in a loop over the queries; the first has one key."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        rows = [(q[:, :, [i]] @ k[:, :, : i + 1].mT).softmax(-1) @ v[:, :, : i + 1] for i in range(x.shape[1])]
        return self.c_proj(torch.cat(rows, 2).transpose(1, 2).flatten(2))


class SigmoidAttention(CausalSelfAttention):
    """Attention without a softmax."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        return self.c_proj(((q @ k.mT - 2).sigmoid().tril() @ v).transpose(1, 2).flatten(2))


class LinearAttention(CausalSelfAttention):
    """Linear attention, with weights for all pairs of tokens that are divided by their sum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        weights = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()
        return self.c_proj((weights / weights.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2))


class DecayingMemory(CausalSelfAttention):
    """A recurrence in its parallel form, with the exponentials of its decays for all pairs of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Linear(WIDTH, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        total = -F.softplus(self.decay(x)).cumsum(1).mT
        kept = (total[..., None] - total[..., None, :]).masked_fill(future_of(x), -torch.inf).exp()
        return self.c_proj(((q @ k.mT * kept) @ v).transpose(1, 2).flatten(2))


class GroupedQueries(nn.Module):
    """Two heads of queries to each head of keys, norms of queries and keys, and a gate on the output."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.q_norm, self.k_norm, self.output = nn.RMSNorm(4), nn.RMSNorm(4), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q_norm(self.q(x).unflatten(-1, (4, 4))).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (4, 4)).transpose(1, 2).chunk(2, 1)
        y = F.scaled_dot_product_attention(q, self.k_norm(k), v, is_causal=True, enable_gqa=True)
        return self.output(y.transpose(1, 2).flatten(2) * torch.sigmoid(self.gate(x)))


class Sandwich(nn.Module):
    """Attention between two norms, scaled by a parameter of the block."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.attention, self.after = nn.RMSNorm(WIDTH), GroupedQueries(), nn.RMSNorm(WIDTH)
        self.scale = nn.Parameter(torch.full((WIDTH,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        return x + added(self.scale * self.after(self.attention(self.before(x))))


class Concatenated(nn.Module):
    """Recurrence and attention side by side, with one projection of both."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.attention, self.output = gru(), Mixer(), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.output(torch.cat([self.recurrence(x)[0], added(self.attention(x))], -1))


class WeightsFirst(TorchAttention):
    """Attention that returns its weights before its result."""

    def forward(self, x: Tensor) -> Any:
        y, weights = self.inner(x, x, x)
        return weights, y


class InDictionary(TorchAttention):
    def forward(self, x: Tensor) -> Any:
        return {"weights": None, "hidden": super().forward(x)}


class Pointer(nn.Module):
    """A model that may copy a token: the weights of attention are a part of its output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrence = nn.Embedding(VOCABULARY, WIDTH), gru()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.logits, self.gate = nn.Linear(WIDTH, VOCABULARY), nn.Linear(WIDTH, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.recurrence(self.embedding(tokens))[0]
        y, weights = self.attention(x, x, x, attn_mask=future_of(x))
        copied = added(weights) @ F.one_hot(tokens, VOCABULARY).to(x)
        share = torch.sigmoid(self.gate(x))
        return share * self.logits(x + added(y)).softmax(-1) + (1 - share) * copied


class Latents(nn.Module):
    """Learned vectors read the tokens, and the tokens read them."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, WIDTH))
        self.read, self.write = (nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(len(x), -1, -1)
        latents = latents + added(self.read(latents, x, x, need_weights=False)[0])
        return x + added(self.write(x, latents, latents, need_weights=False)[0])


class DecoderLoop(nn.Module):
    """An LSTM decoder with additive attention inside its loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.query, self.key, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.context, self.cell = nn.Linear(WIDTH, WIDTH), nn.LSTMCell(2 * WIDTH, WIDTH)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (hidden, cell) = self.encoder(self.embedding(source))
        keys, state, states = self.key(memory), (hidden[0], cell[0]), []
        for token in self.embedding(target).unbind(1):
            weights = torch.softmax(self.score(torch.tanh(self.query(state[0])[:, None] + keys)), 1)
            context = added(self.context((weights * memory).sum(1)))
            state = self.cell(torch.cat([token, context], -1), state)
            states.append(state[0])
        return self.logits(torch.stack(states, 1))


class GatedByWeights(nn.Module):
    """A recurrence of bare weights that acts through attention's output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.on = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 4) for _ in range(2))
        self.attention = Mixer()

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = torch.tanh(token @ self.into + state @ self.on)
            states.append(state)
        return x + torch.sigmoid(torch.stack(states, 1)) * self.attention(x)


class ReadsTables(CausalSelfAttention):
    """Attention that is given biases of the scores and further values, and returns its values too."""

    def forward(self, x: Tensor, biases: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        q, k, v = heads_of(self.c_attn(x))
        v = v + values
        weights = (q @ k.mT + biases).masked_fill(future_of(x), -torch.inf).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2)), v


class TablesOfTheModel(nn.Module):
    """Biases by distance and values by token for the attention of all blocks, as in T5 and in modded-nanogpt."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.values = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.biases = nn.Embedding(32, HEADS)
        self.recurrences = nn.ModuleList(gru() for _ in range(2))
        self.attentions = nn.ModuleList(ReadsTables() for _ in range(2))
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        biases = self.biases((place[:, None] - place).clamp(0)).permute(2, 0, 1)
        x, values = self.embedding(tokens), self.values(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for recurrence, attention in zip(self.recurrences, self.attentions, strict=True):
            x = x + recurrence(x)[0]
            y, values = attention(x, biases, values)
            x = x + added(y)
        return self.logits(x)


class ReadsAnEncoder(nn.Module):
    """An LSTM decoder that reads an encoder, and the embedding before it, through cross-attention alone."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.source, self.encoder = nn.Embedding(VOCABULARY, WIDTH), encoder
        self.target, self.decoder = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.cross = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, x = self.encoder(self.source(source)), self.decoder(self.target(target))[0]
        memory = memory[0] if isinstance(memory, tuple) else memory
        return self.logits(x + added(self.cross(x, memory, memory, need_weights=False)[0]))


def one_attention_in_two_blocks() -> nn.Module:
    attention = Mixer()
    return LanguageModel(Residual(gru()), Add(attention), Residual(gru()), Add(attention))


def parametrized() -> nn.Module:
    attention = Mixer()
    spectral_norm(attention.c_attn)
    weight_norm(attention.c_proj)
    return LanguageModel(Residual(gru()), Add(attention))


def weight_of_an_mlp() -> nn.Module:
    attention, mlp = Mixer(), nn.Linear(WIDTH, WIDTH)
    mlp.weight = attention.c_proj.weight
    return LanguageModel(Residual(gru()), Add(attention), Residual(mlp))


FORMS: dict[str, Callable[[], nn.Module]] = {
    "a softmax written out": lambda: LanguageModel(Residual(gru()), Add(WrittenOut())),
    "weights from a log-softmax over a middle axis": lambda: LanguageModel(Residual(gru()), Add(FromLogarithms())),
    "weights that are normalized again": lambda: LanguageModel(Residual(gru()), Add(NormalizedAgain())),
    "attention in a loop over queries": lambda: LanguageModel(Residual(gru()), Add(QueryByQuery())),
    "linear attention beside attention": lambda: LanguageModel(Residual(LinearAttention()), Add(Mixer())),
    "a recurrence in its parallel form": lambda: LanguageModel(Residual(DecayingMemory()), Add(Mixer())),
    "grouped queries between two norms, with a layer scale": lambda: LanguageModel(Residual(gru()), Sandwich()),
    "attention concatenated with a recurrence": lambda: LanguageModel(Concatenated()),
    "one attention module in two blocks": one_attention_in_two_blocks,
    "attention that returns its weights first": lambda: LanguageModel(
        Residual(gru()), Add(WeightsFirst(), lambda y: y[1])
    ),
    "attention that returns a dictionary": lambda: LanguageModel(
        Residual(gru()), Add(InDictionary(), lambda y: y["hidden"])
    ),
    "attention whose weights are a part of the output": Pointer,
    "learned latents that read the tokens": lambda: LanguageModel(Residual(gru()), Latents()),
    "attention inside the loop of an LSTM decoder": DecoderLoop,
    "tables of the model that only attention reads": TablesOfTheModel,
    "parametrized weights": parametrized,
    "a weight that attention shares with an MLP": weight_of_an_mlp,
    "sigmoid attention": lambda: LanguageModel(Residual(gru()), Residual(SigmoidAttention())),
    "a recurrence of bare weights that only gates attention": lambda: LanguageModel(
        Residual(HandWrittenRecurrence()), GatedByWeights()
    ),
    "an encoder of attention that only cross-attention reads": lambda: ReadsAnEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
    ),
}
"""Whole models by what is special about them; the last three are refused."""
