"""What a step of a run takes at the least, counted from its settings.

Shapes: B sequences, T tokens, D width, A asked positions, V vocabulary.
"""

from latebloom.config import RunConfig


def step_operations(config: RunConfig, length: int) -> float:
    """Floating-point operations of the matrix products of one training step, attention in: a product forward is done
    twice more on the way back."""
    model, task, training = config.model, config.task, config.training
    tokens, batch = task.token_count(length), training.full.batch_size
    width = model.width
    weights = {"r": 8 * width**2, "a": 4 * width**2 + tokens * width, "m": 8 * width**2}
    if model.attention.look_back:
        weights["a"] += width**2
    each_token = model.blocks * sum(weights[letter] for letter in model.layout)
    asked = task.batch(0, "train", 0, length=length, size=1).targets.shape[1]
    return 3 * 2 * batch * (tokens * each_token + asked * width * task.vocabulary_size)
