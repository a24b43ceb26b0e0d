"""Models built by hand whose behaviour is known, for the probes to find.

The recurrence tracks the sum of digits modulo m exactly: a unit for each pair (state, digit) whose new state is not 0
is on when its state and its digit are there, and no unit means state 0. Attention looks a key up exactly: the keys of
attention are made from the token before, so the value after the asked key has the largest score by far. All other
queries attend to digits, which have no value.

Embedding: one feature for each token, and flags for digits and markers.
"""

from typing import Any

import torch
from torch import Tensor, nn

from latebloom import SequenceModel
from latebloom.models.settings import Attention, Model
from latebloom.tasks import Composite, ModularSum, Recall

SATURATED = 60.0
"""Makes a gate 0 or 1 in float32."""


def blank(task, layout: str, width: int, **attention) -> Any:
    """Return a model of one block in which every weight is zero, and the norms do nothing but normalize."""
    settings = Model(layout=layout, width=width, blocks=1, attention=Attention(heads=1, **attention))
    model: Any = SequenceModel(settings, task.vocabulary_size)
    for name, parameter in model.named_parameters():
        nn.init.constant_(parameter, 1.0 if name.endswith("norm.weight") else 0.0)
    return model


class Places:
    """Which features of the stream mean what."""

    def __init__(self, task) -> None:
        vocabulary = task.vocabulary
        self.modulus = vocabulary.digits
        pairs = [(state, digit) for state in range(self.modulus) for digit in range(self.modulus)]
        self.units = [pair for pair in pairs if sum(pair) % max(1, self.modulus)]
        self.first_token = len(self.units)
        self.digit_flag = self.first_token + vocabulary.size
        self.marker_flag, self.sink, self.one = (self.digit_flag + i for i in (1, 2, 3))
        self.keys = [self.first_token + vocabulary.first_key + i for i in range(vocabulary.keys)]
        self.values = [self.first_token + vocabulary.first_value + i for i in range(vocabulary.values)]
        self.width = max(64, self.one + 1)


def plant(task, layout: str, *, sharpness: float = 30.0, mod: bool = True, **attention) -> Any:
    """Return the model: `r` tracks the sum exactly, or without `mod` counts it up; `a` looks keys up."""
    at = Places(task)
    model = blank(task, layout, at.width, look_back="a" in layout, **attention)
    vocabulary = task.vocabulary
    with torch.no_grad():
        for token in range(vocabulary.size):
            model.embedding.weight[token, at.first_token + token] = 1.0
            is_digit, is_marker = token < at.modulus, token >= vocabulary.first_value + vocabulary.values
            model.embedding.weight[token, at.digit_flag] = float(is_digit)
            model.embedding.weight[token, at.marker_flag] = float(is_marker)
        parts = iter(model.blocks[0])
        if "r" in layout:
            _plant_sum(next(parts).body.cell, at, mod)
        if "a" in layout:
            _plant_lookup(next(parts).body, at, sharpness)
        # A feature that is always 1 is the logit of the sum 0, which no unit stands for.
        model.norm.weight[at.one], model.norm.bias[at.one] = 0.0, 1.0
        for state, digit in at.units:
            model.logits.weight[(state + digit) % at.modulus, at.units.index((state, digit))] = 10.0
        if at.modulus:
            model.logits.weight[0, at.one] = 4.0 * _normed_one(at.width, 3)[0]
        for number, place in enumerate(at.values):
            model.logits.weight[vocabulary.first_value + number, place] = 4.0
    return model.eval()


def _normed_one(width: int, ones: int) -> tuple[float, float]:
    """Return what a feature of 1 and one of 0 become in a layer norm, if so many of the features are 1."""
    mean = ones / width
    deviation = (mean - mean**2) ** 0.5
    return (1 - mean) / deviation, -mean / deviation


def _plant_sum(cell: Any, at: Places, mod: bool) -> None:
    width = at.width
    inputs, hidden, bias = cell.weight_ih_l0, cell.weight_hh_l0, cell.bias_ih_l0
    on, off = _normed_one(width, 2)  # a token has its own feature and, if it is a digit or a marker, a flag
    gates = {name: slice(i * width, (i + 1) * width) for i, name in enumerate(("input", "forget", "cell", "output"))}
    height = torch.tanh(torch.tensor(1.0)).item()
    for number, (state, digit) in enumerate(at.units):
        if not mod:  # the cell adds up every digit, and forgets nothing
            bias[gates["input"].start + number] = bias[gates["forget"].start + number] = SATURATED
            bias[gates["output"].start + number] = SATURATED
            for other in range(1, at.modulus):
                inputs[gates["cell"].start + number, at.first_token + other] = 0.01 * other * (number + 1)
            continue
        bias[gates["input"].start + number] = SATURATED
        bias[gates["forget"].start + number] = -SATURATED
        bias[gates["cell"].start + number] = SATURATED
        row = gates["output"].start + number
        # The output gate is the product of "the digit is there" and "the state is there".
        signs = {digit: 1.0} if digit else dict.fromkeys(range(1, at.modulus), -1.0)
        for other, sign in signs.items():
            inputs[row, at.first_token + other] = sign * SATURATED / (on - off)
            bias[row] -= sign * SATURATED * off / (on - off)
        bias[row] += SATURATED * (0.0 if digit else 1.0)
        for column, pair in enumerate(at.units):
            reached = sum(pair) % at.modulus
            if state == 0:
                hidden[row, column] = -SATURATED / height
            elif reached == state:
                hidden[row, column] = SATURATED / height
        bias[row] += SATURATED * ((1.0 if state == 0 else 0.0) - 1.5)


def _plant_lookup(body, at: Places, sharpness: float) -> None:
    width = at.width
    joint, look_back, output = body.queries_keys_values.weight, body.look_back.weight, body.output.weight
    for place in at.keys:
        joint[place, place] = sharpness
        look_back[place, place] = 1.0
    joint[at.sink, at.digit_flag] = joint[at.sink, at.marker_flag] = sharpness
    joint[width + at.sink, at.digit_flag] = 1.0
    for place in at.values:
        joint[2 * width + place, place] = 1.0
        output[place, place] = 1.0


def predict(model: SequenceModel, task, length: int, sequences: int = 64) -> dict[str, float]:
    """Return the accuracy of each answer, without any probe."""
    batch = task.batch(5, "test", 0, length=length, size=sequences).scored()
    with torch.inference_mode():
        right = model(batch.tokens, batch.positions).argmax(-1) == batch.targets
    return {name: right[:, columns].double().mean().item() for name, columns in batch.columns.items()}


SUM = ModularSum(modulus=3)
RECALL = Recall(keys=60, values=4)
BOTH = Composite(modulus=3, keys=60, values=4)


class Counter(nn.Module):
    """Attention with equal weights, whose mean of the digits times the number of tokens is their sum.

    It counts only up to `most` tokens.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.values = nn.Linear(2, 2, bias=False)
        nn.init.constant_(self.values.weight, 0.0)
        with torch.no_grad():
            self.values.weight[1, 0] = 1.0

    def forward(self, x: Tensor) -> Tensor:
        nothing, values = (0 * x)[:, None], self.values(x)[:, None]
        mean = nn.functional.scaled_dot_product_attention(nothing, nothing, values, is_causal=True)[:, 0]
        count = torch.arange(1, x.shape[1] + 1, dtype=x.dtype).clamp(max=self.most)
        return mean * count[:, None]


class CountingModel(nn.Module):
    """A model of another kind that tracks the sum modulo m with attention alone: a shortcut that ends at a length."""

    def __init__(self, task: ModularSum, most: int) -> None:
        super().__init__()
        self.modulus, self.size = task.modulus, task.vocabulary_size
        self.embedding = nn.Embedding(task.vocabulary_size, 2)
        nn.init.zeros_(self.embedding.weight)
        with torch.no_grad():
            self.embedding.weight[: self.modulus, 0] = torch.arange(self.modulus).float()
        self.attention = Counter(most)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        total = (x + self.attention(x))[..., 1:]
        near = torch.cos(2 * torch.pi * (total - torch.arange(self.modulus)) / self.modulus)
        return nn.functional.pad(near, (0, self.size - self.modulus), value=-2.0)


class Spoiled(torch.autograd.Function):
    """Zero in the forward pass, and minus twice the gradient in the backward pass."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> Tensor:
        return -2 * grads[0]
