"""Checks of the programs in JAX, for a process of its own: JAX warns wherever a process forks after it was imported."""

import os
from dataclasses import replace
from functools import partial

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compile fast

import jax
import numpy as np
import torch

from latebloom import RunConfig, hybrid
from latebloom.bench import jax_model
from latebloom.bench.arms import OneLength, jax_lstm, latebloom_lstm, layer_inputs
from latebloom.bench.measure import LENGTH, bench_config
from latebloom.engine.loss import answer_losses, total_loss
from latebloom.engine.trainer import Trainer
from latebloom.tasks import Composite

CPU = torch.device("cpu")


def small(blocks: int) -> RunConfig:
    """Return the benchmark's run in small, with a warm-up so short that the cosine begins."""
    config = bench_config(batch=4)
    training = replace(config.training, steps=20, full=replace(config.training.full, warmup=3))
    return replace(config, model=hybrid(width=8, blocks=blocks, heads=2), training=training)


def lstm_layer() -> None:
    assert jax_model.UNROLL is False  # on a CPU
    arguments = layer_inputs(8, batch=3, tokens=5)
    ours = latebloom_lstm(*arguments)()
    assert len(ours) == 6
    for unroll in (True, False):
        jax_model.UNROLL = unroll
        for mine, other in zip(ours, jax_lstm(*arguments)(), strict=True):
            torch.testing.assert_close(mine, torch.tensor(other.tolist()), rtol=1e-4, atol=1e-5)


def same_model_and_training() -> None:
    """From the same weights and on the same batches, logits, gradients and the losses of all steps are equal to ours
    up to rounding."""
    config = small(2)
    trainer = Trainer([config], CPU)
    model = trainer.backend.model(0)
    trainer.stream = OneLength(config.task, config.seed, LENGTH)
    state = jax.tree.map(lambda stacked: stacked[0], jax_model.first_state(0, [model]))
    update = jax.jit(partial(jax_model.update, config))
    for index in range(8):
        ours = config.task.batch(config.seed, "train", index, length=LENGTH, size=4)
        batch = jax_model.Batch(ours.tokens.numpy(), ours.positions.numpy(), ours.targets.numpy())
        if index == 0:
            logits = jax.jit(partial(jax_model.logits, config))(state.parameters, batch.tokens, batch.positions)
            np.testing.assert_allclose(logits, model(ours.tokens, ours.positions).detach(), atol=2e-6)
            total_loss(answer_losses(model, ours), ours, per_token=False).backward()
            gradients = jax.jit(jax.grad(partial(jax_model.loss, config)))(state.parameters, batch)
            assert gradients.keys() == {name for name, _ in model.named_parameters()}
            for name, parameter in model.named_parameters():
                np.testing.assert_allclose(
                    gradients[name], np.asarray(parameter.grad), rtol=1e-4, atol=1e-6, err_msg=name
                )
        trainer.advance()
        state, loss = update(state, batch)
        np.testing.assert_allclose(loss, trainer.read_means()[0]["loss"], rtol=1e-5)


def batches() -> None:
    """A batch has what the task says: running sums, distinct keys, the asked key's value, at the right places."""
    task = Composite()
    ours = task.batch(0, "train", 0, length=LENGTH, size=64)
    drawn = jax_model.draw(task, jax.random.key(0), LENGTH, 64)
    tokens, positions, targets = (np.asarray(part) for part in drawn)
    np.testing.assert_array_equal(positions, ours.positions)
    spelt = [[task.spell(int(token)) for token in row] for row in tokens]
    for row, answers in zip(spelt, targets, strict=True):
        digits, pairs = [int(word) for word in row[:8]], dict(zip(row[8:22:2], row[9:22:2], strict=True))
        assert row[22:24] == ["SUM", "ASK"]
        assert len(pairs) == 7
        assert all(key[0] == "k" and value[0] == "v" for key, value in pairs.items())
        sums = [sum(digits[: i + 1]) % 10 for i in range(8)]
        assert list(answers[:-1]) == [*sums, sums[-1]]
        assert task.spell(int(answers[-1])) == pairs[row[24]]
    assert len({word for row in spelt for word in row if word[0] == "k"}) > 200  # of 256, in 64 x 7 draws
    assert len({row[24] == row[8] for row in spelt}) == 2  # the first key is asked sometimes


def stacked_runs() -> None:
    """Runs at once are the runs alone; weights and data of each are its own."""
    config, task = small(1), Composite()
    program = jax_model.Stacked(config, LENGTH, 3, jax.devices("cpu")[0])
    assert program.compile_seconds > 0
    states = [jax.tree.map(lambda part, run=run: part[run], program.state) for run in range(3)]
    losses = np.asarray(program.advance())
    assert len(set(losses.tolist())) == 3
    draw_and_lose = jax.jit(
        lambda parameters, key: jax_model.loss(config, parameters, jax_model.draw(task, key, LENGTH, 4))
    )
    for state, loss in zip(states, losses, strict=True):
        _, drawn = jax.random.split(state.key)
        np.testing.assert_allclose(loss, draw_and_lose(state.parameters, drawn), rtol=1e-5)
    assert int(program.state.step[0]) == 1


if __name__ == "__main__":
    for check in (lstm_layer, same_model_and_training, batches, stacked_runs):
        check()
        print(check.__name__)
