"""Small models as other people write them: attention and recurrence in forms that no list of class names foresees.

`MODELS` names the whole models; each has a row in the table of docs/models.md.
"""

from collections.abc import Callable
from inspect import Parameter, signature

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, HEADS, VOCABULARY = 16, 4, 20


def heads_of(x: Tensor) -> list[Tensor]:
    """(B, T, 3 D) -> queries, keys and values (B, H, T, E)"""
    return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in x.chunk(3, -1)]


class CausalSelfAttention(nn.Module):
    """Attention as in nanoGPT, with its softmax written out."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(future, -torch.inf).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))


class Mixer(CausalSelfAttention):
    """The same through torch's function, under a name that says nothing."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class ConvolvedAttention(Mixer):
    """Attention with a short convolution before its projections, as in several recent hybrids."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.conv(x.mT)[..., : x.shape[1]].mT)


class TorchAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, need_weights=False)[0]


class HandWrittenRecurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        state, states = x.new_zeros(x.shape[0], WIDTH), []
        for token in x.unbind(1):
            state = self.cell(token, state)
            states.append(state)
        return torch.stack(states, 1)


class ShortConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.mT)[..., : x.shape[1]].mT


class ConvolvedRecurrence(HandWrittenRecurrence):
    """A recurrence behind a short convolution, as in Mamba."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = ShortConvolution()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.convolution(x))


class Streams(nn.Module):
    """Several residual streams that are mixed at each token, as hyper-connections do, around other blocks."""

    def __init__(self, streams: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.streams, self.blocks = streams, nn.ModuleList(blocks)
        self.connections = nn.ModuleList(Connection(streams) for _ in blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(-2).repeat(1, 1, self.streams, 1)  # (B, T, streams, D)
        for block, connection in zip(self.blocks, self.connections, strict=True):
            x = connection(x) + block(x.mean(-2)).unsqueeze(-2)
        return x.mean(-2)


class Connection(nn.Module):
    def __init__(self, streams: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(streams, streams))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight @ x


class Experts(nn.Module):
    """A mixture of experts: its router has a softmax that is not over tokens."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, experts), nn.Linear(WIDTH, experts * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return (self.router(x).softmax(-1)[..., None] * self.experts(x).unflatten(-1, (-1, WIDTH))).sum(-2)


class MaskedExperts(Experts):
    """Experts whose router masks all but the best before its softmax, as in Phi-MoE."""

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        shares = scores.masked_fill(scores < scores.amax(-1, keepdim=True), -torch.inf).softmax(-1)
        return (shares[..., None] * self.experts(x).unflatten(-1, (-1, WIDTH))).sum(-2)


class SlidingAttention(CausalSelfAttention):
    """Attention to the last two tokens, with its softmax written out."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        near = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril().triu(-1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~near, -torch.inf).softmax(-1)
        return self.c_proj((weights @ v).transpose(1, 2).flatten(2))


class AlibiAttention(CausalSelfAttention):
    """Attention with linear biases instead of positions."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(self.c_attn(x))
        place = torch.arange(x.shape[1], device=x.device)
        distance = place[:, None] - place
        slopes = 0.5 ** torch.arange(1, HEADS + 1, device=x.device)[:, None, None]
        bias = torch.where(distance < 0, -torch.inf, -slopes * distance)
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2))


class LatentAttention(nn.Module):
    """Multi-head latent attention, as in DeepSeek-V2: keys and values are made from one small vector a token."""

    def __init__(self, rank: int = 6) -> None:
        super().__init__()
        self.query, self.down, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, rank), nn.RMSNorm(rank)
        self.up, self.c_proj = nn.Linear(rank, 2 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads_of(torch.cat([self.query(x), self.up(self.norm(self.down(x)))], -1))
        return self.c_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Residual(nn.Module):
    """x + after(body(norm(x)))"""

    def __init__(self, body: nn.Module, after: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.body, self.after = nn.LayerNorm(WIDTH), body, after

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.norm(x))
        y = y[0] if isinstance(y, tuple) else y
        return x + (y if self.after is None else self.after(y))


class Inline(nn.Module):
    """A block that writes its attention into its own forward."""

    def __init__(self, projected: bool = True) -> None:
        super().__init__()
        self.recurrence = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.norm, self.qkv = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH) if projected else None
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.recurrence(x)[0]
        q, k, v = heads_of(self.qkv(self.norm(x)))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + (y if self.output is None else self.output(y))
        return x + self.mlp(x)


class BehindRecurrence(Inline):
    """A recurrence and attention written into one forward, so that every query depends on all tokens before it."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence = gru()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.recurrence(x)[0])


class Parallel(nn.Module):
    """Recurrence and attention side by side, with one output projection for both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.recurrence, self.attention = nn.LayerNorm(WIDTH), gru(), Mixer()
        self.scales = nn.ModuleList([nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.output(self.scales[0](self.recurrence(h)[0]) + self.scales[1](self.attention(h)))


class SharedProjections(nn.Module):
    """Heads of attention and of a recurrence side by side, as in Hymba: one projection before them, one behind."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.before = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.recurrence, self.recurrence_norm, self.attention_norm = gru(), nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h, qkv = self.before(self.norm(x)).tensor_split([WIDTH], -1)
        q, k, v = heads_of(qkv)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return x + self.output(self.attention_norm(attended) + self.recurrence_norm(self.recurrence(h)[0]))


class GatedByRecurrence(nn.Module):
    """The recurrence acts through attention's output alone."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.attention = gru(), TorchAttention()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.recurrence(x)[0]) * self.attention(x)


class WithoutResidual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrence, self.attention = gru(), CausalSelfAttention()

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.recurrence(x)[0])


class LanguageModel(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(blocks)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


class EncoderDecoder(nn.Module):
    """An LSTM that the decoder reads through cross-attention, and its last state too if `state` is set."""

    def __init__(self, state: bool = False) -> None:
        super().__init__()
        self.embedding, self.state = nn.Embedding(VOCABULARY, WIDTH), state
        self.encoder = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (last, _) = self.encoder(self.embedding(source))
        x = self.embedding(target) + (last[0][:, None] if self.state else 0)
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.logits(self.decoder(x, memory, tgt_mask=mask, tgt_is_causal=True))


class AdditiveAttention(nn.Module):
    """The attention of Bahdanau et al. over the states of an encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, state: Tensor, memory: Tensor) -> Tensor:
        scores = self.score(torch.tanh(self.query(state)[:, None] + self.key(memory))).squeeze(-1)
        return (torch.softmax(scores, -1)[:, None] @ memory).squeeze(1)


class SequenceToSequence(nn.Module):
    """An LSTM decoder that reads the encoder's states through additive attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention, self.cell = AdditiveAttention(), nn.LSTMCell(2 * WIDTH, WIDTH)
        self.logits = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, (hidden, cell) = self.encoder(self.embedding(source))
        state, states = (hidden[0], cell[0]), []
        for token in self.embedding(target).unbind(1):
            state = self.cell(torch.cat([token, self.attention(state[0], memory)], -1), state)
            states.append(state[0])
        return self.logits(torch.stack(states, 1))


def gru() -> nn.GRU:
    return nn.GRU(WIDTH, WIDTH, batch_first=True)


def inputs_of(model: nn.Module) -> tuple[Tensor, ...]:
    """Return token ids for each argument that a model must be called with; the last are the targets."""
    wanted = [one for one in signature(model.forward).parameters.values() if one.default is Parameter.empty]
    return (*(torch.arange(18).view(2, 9) for _ in wanted[1:]), torch.arange(14).view(2, 7))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "nanoGPT's attention beside torch's": lambda: LanguageModel(
        Residual(gru()), Residual(TorchAttention()), Residual(CausalSelfAttention())
    ),
    "SDPA in a class called Mixer, beside torch's": lambda: LanguageModel(
        Residual(gru()), Residual(TorchAttention()), Residual(Mixer())
    ),
    "torch's encoder layer": lambda: LanguageModel(
        Residual(gru()), nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.0, batch_first=True)
    ),
    "a norm behind attention": lambda: LanguageModel(Residual(gru()), Residual(TorchAttention(), nn.LayerNorm(WIDTH))),
    "a hand-written recurrence": lambda: LanguageModel(Residual(HandWrittenRecurrence()), Residual(Mixer())),
    "a convolution before the recurrence": lambda: LanguageModel(Residual(ConvolvedRecurrence()), Residual(Mixer())),
    "a convolution inside attention": lambda: LanguageModel(Residual(gru()), Residual(ConvolvedAttention())),
    "a short convolution as the only other mixer": lambda: LanguageModel(
        Residual(ShortConvolution()), Residual(CausalSelfAttention())
    ),
    "attention written inside a block": lambda: LanguageModel(Inline()),
    "a recurrence and attention written into one forward": lambda: LanguageModel(
        BehindRecurrence(), Residual(TorchAttention())
    ),
    "attention and recurrence with one output projection": lambda: LanguageModel(Parallel()),
    "heads with projections that a recurrence shares, as in Hymba": lambda: LanguageModel(SharedProjections()),
    "ALiBi": lambda: LanguageModel(Residual(gru()), Residual(AlibiAttention())),
    "multi-head latent attention": lambda: LanguageModel(Residual(gru()), Residual(LatentAttention())),
    "sliding-window attention": lambda: LanguageModel(
        Residual(gru()), Residual(SlidingAttention()), Residual(CausalSelfAttention())
    ),
    "experts whose router has a softmax": lambda: LanguageModel(
        Residual(gru()), Residual(Mixer()), Residual(Experts(3)), Residual(MaskedExperts(3))
    ),
    "several residual streams": lambda: LanguageModel(Streams(4, Residual(gru()), Residual(Mixer()))),
    "an encoder-decoder with cross-attention": lambda: EncoderDecoder(state=True),
    "additive attention in an LSTM decoder": SequenceToSequence,
    "an encoder that only cross-attention reads": EncoderDecoder,
    "a recurrence that only gates attention": lambda: LanguageModel(GatedByRecurrence()),
    "attention without a residual path": lambda: LanguageModel(Residual(gru()), WithoutResidual()),
    "attention inside a block, with no module behind it": lambda: LanguageModel(Inline(projected=False)),
    "no attention": lambda: LanguageModel(Residual(gru()), Residual(HandWrittenRecurrence())),
    "nothing but attention": lambda: LanguageModel(Residual(Mixer()), Residual(CausalSelfAttention())),
}
"""Whole models by what is special about them; the last ones are refused."""
