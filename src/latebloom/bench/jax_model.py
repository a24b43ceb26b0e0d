"""The hybrid of the benchmark and its training step in JAX: `vmap` over runs, one jitted step.

It is the program that a JAX user would write for the same study. It takes our parameters by name, and a test compares
logits, loss and training with ours. Import it where JAX is installed.

Shapes: S runs, B sequences, T tokens, D width, A supervised positions, V vocabulary.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes most of the memory that torch needs

import jax
from jax import numpy as jnp

from latebloom.config import RunConfig
from latebloom.errors import ConfigError
from latebloom.layers.precision import Precision
from latebloom.models.sequence_model import SequenceModel
from latebloom.tasks import Composite

PRECISIONS: dict[Precision, str] = {"tf32": "default", "float32": "highest", "bf16": "BF16_BF16_F32"}
"""JAX's names for the precision of matrix products; its default on a GPU is tf32."""
EPSILON = 1e-8
"""AdamW's."""
UNROLL = jax.default_backend() == "gpu"
"""Whether the scan over tokens is unrolled: it is faster on a GPU, but slower on a CPU."""

Parameters = dict[str, jax.Array]


class Batch(NamedTuple):
    tokens: Any
    """(B, T)"""
    positions: Any
    """(B, A) the positions at which an answer is predicted."""
    targets: Any
    """(B, A); the last column is recall, the others are sums."""


class State(NamedTuple):
    """Everything that a step changes."""

    parameters: Parameters
    first: Parameters
    second: Parameters
    step: jax.Array
    key: jax.Array


def lstm(x: Any, of_input: Any, of_hidden: Any, input_bias: Any, hidden_bias: Any) -> Any:
    """Apply an LSTM layer, (B, T, D) -> (B, T, D): a scan over tokens."""
    inputs = jnp.swapaxes(x @ of_input.T, 0, 1) + input_bias + hidden_bias  # all tokens at once

    def token(state: Any, inputs: Any) -> Any:
        hidden, cell = state
        input_gate, forget_gate, new, output_gate = jnp.split(inputs + hidden @ of_hidden.T, 4, axis=-1)
        cell = jax.nn.sigmoid(forget_gate) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros_like(inputs[0, :, : x.shape[2]])
    _, outputs = jax.lax.scan(token, (zeros, zeros), inputs, unroll=UNROLL)
    return jnp.swapaxes(outputs, 0, 1)


def attention(x: Any, weight: Any, bias: Any, output: Any, output_bias: Any, heads: int) -> Any:
    """Apply causal multi-head softmax attention, (B, T, D) -> (B, T, D)."""
    tokens, width = x.shape[1:]
    q, k, v = jnp.split((x @ weight.T + bias).reshape(*x.shape[:2], 3 * heads, -1), 3, axis=2)
    scores = jnp.einsum("bqhe,bkhe->bhqk", q, k) / (width // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((tokens, tokens), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhe->bqhe", jax.nn.softmax(scores), v)
    return mixed.reshape(x.shape) @ output.T + output_bias


def mlp(x: Any, up: Any, up_bias: Any, down: Any, down_bias: Any) -> Any:
    return jax.nn.gelu(x @ up.T + up_bias, approximate=False) @ down.T + down_bias


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def logits(config: RunConfig, parameters: Parameters, tokens: Any, positions: Any) -> Any:
    """Return the logits (B, A, V) of one model at the positions (B, A)."""
    parts = {
        "r": (lstm, "cell.weight_ih_l0 cell.weight_hh_l0 cell.bias_ih_l0 cell.bias_hh_l0"),
        "a": (
            partial(attention, heads=config.model.attention.heads),
            "queries_keys_values.weight queries_keys_values.bias output.weight output.bias",
        ),
        "m": (mlp, "0.weight 0.bias 2.weight 2.bias"),
    }
    x = parameters["embedding.weight"][tokens]
    for block in range(config.model.blocks):
        for index, letter in enumerate(config.model.layout):
            apply, names = parts[letter]
            place = f"blocks.{block}.{index}"
            normed = layer_norm(x, parameters[f"{place}.norm.weight"], parameters[f"{place}.norm.bias"])
            x = x + apply(normed, *(parameters[f"{place}.body.{name}"] for name in names.split()))
    x = jnp.take_along_axis(x, positions[:, :, None], axis=1)
    return layer_norm(x, parameters["norm.weight"], parameters["norm.bias"]) @ parameters["logits.weight"].T


def loss(config: RunConfig, parameters: Parameters, batch: Batch) -> Any:
    """Return the cross-entropy, averaged per answer: the mean over all sums plus the mean over all recalls."""
    scores = jax.nn.log_softmax(logits(config, parameters, batch.tokens, batch.positions))
    losses = -jnp.take_along_axis(scores, batch.targets[:, :, None], axis=2)
    return losses[:, :-1].mean() + losses[:, -1].mean()


def draw(task: Composite, key: Any, length: int, size: int) -> Batch:
    """Draw a batch of the composite task with JAX's own random numbers."""
    digit_count, pair_count = (length + 1) // 2, length // 2
    of_digits, of_keys, of_values, of_query = jax.random.split(key, 4)
    vocabulary = task.vocabulary
    digits = jax.random.randint(of_digits, (size, digit_count), 0, task.modulus)
    sums = jnp.cumsum(digits, axis=1) % task.modulus
    # The places of the largest of many random numbers are distinct keys in a random order.
    _, keys = jax.lax.top_k(jax.random.uniform(of_keys, (size, task.keys)), pair_count)
    keys = keys + vocabulary.first_key
    values = jax.random.randint(of_values, (size, pair_count), 0, task.values) + vocabulary.first_value
    query = jax.random.randint(of_query, (size, 1), 0, pair_count)
    pairs = jnp.stack([keys, values], axis=2).reshape(size, 2 * pair_count)
    markers = [jnp.full((size, 1), vocabulary.marker(name)) for name in ("SUM", "ASK")]
    tokens = jnp.concatenate([digits, pairs, *markers, jnp.take_along_axis(keys, query, axis=1)], axis=1)
    items = digit_count + 2 * pair_count
    positions = jnp.broadcast_to(jnp.array([*range(digit_count), items, items + 2]), (size, digit_count + 2))
    targets = jnp.concatenate([sums, sums[:, -1:], jnp.take_along_axis(values, query, axis=1)], axis=1)
    return Batch(tokens, positions, targets)


def update(config: RunConfig, state: State, batch: Batch) -> tuple[State, Any]:
    """Do one step of one run with AdamW, a clipped gradient, a warm-up and a cosine; also return the loss."""
    training, phase = config.training, config.training.full
    value, gradients = jax.value_and_grad(partial(loss, config))(state.parameters, batch)
    norm = jnp.sqrt(sum(jnp.sum(gradient**2) for gradient in gradients.values()))
    scale = jnp.minimum(1.0, training.clip / (norm + 1e-6))
    done = jnp.maximum(0, state.step - phase.warmup) / (training.steps - phase.warmup)
    cosine = 0.5 * (1 + jnp.cos(jnp.pi * done))
    rate = phase.learning_rate * jnp.where(state.step < phase.warmup, (state.step + 1) / phase.warmup, cosine)
    beta_first, beta_second = training.betas
    count = state.step + 1
    parameters, first, second = {}, {}, {}
    for name, gradient in gradients.items():
        gradient = gradient * scale
        first[name] = beta_first * state.first[name] + (1 - beta_first) * gradient
        second[name] = beta_second * state.second[name] + (1 - beta_second) * gradient**2
        direction = first[name] / (1 - beta_first**count)
        direction = direction / (jnp.sqrt(second[name] / (1 - beta_second**count)) + EPSILON)
        parameters[name] = state.parameters[name] * (1 - rate * training.weight_decay) - rate * direction
    return State(parameters, first, second, count, state.key), value


def first_state(seed: int, models: list[SequenceModel]) -> State:
    """Return the state (S, ...) of runs that begin with the weights of these models."""
    weights = [{name: value.detach().numpy() for name, value in model.named_parameters()} for model in models]
    parameters = {name: jnp.stack([one[name] for one in weights]) for name in weights[0]}
    first, second = (jax.tree.map(jnp.zeros_like, parameters) for _ in range(2))
    keys = jax.random.split(jax.random.key(seed), len(models))
    return State(parameters, first, second, jnp.zeros(len(models), jnp.int32), keys)


class Stacked:
    """Runs that are trained at once, each with weights and data of its own."""

    def __init__(self, config: RunConfig, length: int, runs: int, device: Any) -> None:
        model, attention = config.model, config.model.attention
        parts = model.recurrence.name, attention.positions.name, attention.scores.name
        if not isinstance(config.task, Composite) or attention.look_back or parts != ("lstm", "none", "softmax"):
            raise ConfigError("peers: the program in JAX covers the settings of the benchmark only")
        task, size = config.task, config.training.full.batch_size
        models = [SequenceModel(config.model, task.vocabulary_size) for _ in range(runs)]
        self.state = jax.device_put(first_state(config.seed, models), device)

        def step(state: State) -> tuple[State, Any]:
            key, drawn = jax.random.split(state.key)
            return update(config, state._replace(key=key), draw(task, drawn, length, size))

        started = time.perf_counter()
        with jax.default_matmul_precision(PRECISIONS[config.training.precision]):
            self._step: Callable[[State], Any] = jax.jit(jax.vmap(step), donate_argnums=0).lower(self.state).compile()
        self.compile_seconds = time.perf_counter() - started

    def advance(self) -> jax.Array:
        """Do one step of every run; return their losses (S,) without waiting for them."""
        self.state, losses = self._step(self.state)
        return losses


def gpu(index: int) -> Any:
    """Return a GPU as JAX knows it."""
    try:
        return jax.devices("gpu")[index]
    except (RuntimeError, IndexError):
        raise ConfigError("peers: JAX is installed without support for this GPU (pip install 'jax[cuda13]')") from None
