"""The floating-point operations of a training step, counted from its settings."""

from latebloom.config import RunConfig


def step_operations(config: RunConfig, length: int) -> float:
    """Return the operations of all matrix products of one step with attention enabled.

    The backward pass takes two products for each product of the forward pass.
    """
    model, task, training = config.model, config.task, config.training
    tokens, batch = task.token_count(length), training.full.batch_size
    width = model.width
    weights = {"r": 8 * width**2, "a": 4 * width**2 + tokens * width, "m": 8 * width**2}
    if model.attention.look_back:
        weights["a"] += width**2
    each_token = model.blocks * sum(weights[letter] for letter in model.layout)
    supervised = task.batch(0, "train", 0, length=length, size=1).targets.shape[1]
    return 3 * 2 * batch * (tokens * each_token + supervised * width * task.vocabulary_size)
