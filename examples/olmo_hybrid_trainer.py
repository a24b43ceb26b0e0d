"""A tiny OLMo-Hybrid on the composite task through Transformers' Trainer, with and without delayed attention.

    python examples/olmo_hybrid_trainer.py --out runs/olmo --results results/olmo-hybrid.json

The model comes from a random configuration: delta-rule layers (with negative eigenvalues, without which they cannot
count) and attention layers in turn. Two lines make the difference between the runs: the callback and its import.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn
from torch.utils.data import IterableDataset
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM, Trainer, TrainingArguments

from latebloom import Composite, evaluate, plot
from latebloom.delay import at_step
from latebloom.integrations.transformers import DelayedAttentionCallback
from latebloom.tasks import Batch, Stream

TASK = Composite(modulus=2, keys=128, values=16)
TRAINING_LENGTH = 16
LENGTHS = [8, 16, 24, 32, 48, 64, 128]


def build_model(seed: int) -> OlmoHybridForCausalLM:
    torch.manual_seed(seed)
    config = OlmoHybridConfig(
        vocab_size=TASK.vocabulary_size + 1,  # one more, to fill the place after the last answer
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        layer_types=["linear_attention", "full_attention"] * 2,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        linear_allow_neg_eigval=True,
        rope_parameters=None,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return OlmoHybridForCausalLM(config)


class Batches(IterableDataset):
    """The task as Trainer wants it: an item is a whole batch. Recall is not asked while attention is held back."""

    def __init__(self, seed: int, size: int, callback: DelayedAttentionCallback | None) -> None:
        self.stream, self.size, self.callback = Stream(TASK, seed, TRAINING_LENGTH), size, callback

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        index = 0
        while True:
            batch = self.stream.batch(index, self.size)
            delay = None if self.callback is None else self.callback.delay
            if delay is not None and delay.holding:
                batch = batch.without(["recall"])
            yield as_language_modelling(batch)
            index += 1


def as_language_modelling(batch: Batch) -> dict[str, Tensor]:
    """Transformers compares the logits at a place with the label of the next, so answers move on by one."""
    filler = torch.full_like(batch.tokens[:, :1], TASK.vocabulary_size)
    labels = torch.full((batch.tokens.shape[0], batch.tokens.shape[1] + 1), -100)
    labels = labels.scatter(1, batch.positions + 1, batch.targets)
    return {"input_ids": torch.cat([batch.tokens, filler], dim=1), "labels": labels}


class Answers(nn.Module):
    """The model as `latebloom.evaluate` asks it: logits at the asked places."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return logits.gather(1, positions[:, :, None].expand(-1, -1, logits.shape[2]))


def train(out: Path, *, delayed: bool, steps: int, switch: int, seed: int) -> Any:
    callback = DelayedAttentionCallback(until=at_step(switch)) if delayed else None
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=steps,
        per_device_train_batch_size=1,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        weight_decay=0.01,
        logging_steps=100,
        save_strategy="no",
        disable_tqdm=not sys.stderr.isatty(),
        report_to=[],
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
    )
    model = build_model(seed)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Batches(seed, 64, callback),
        data_collator=lambda items: items[0],
        callbacks=[callback] if callback is not None else [],
    )
    trainer.train()
    return evaluate(Answers(model.eval()), TASK, LENGTHS, training_length=TRAINING_LENGTH, sequences=512, seed=seed)


def main(
    out: Path = Path("runs/olmo"),
    results: Path = Path("results/olmo-hybrid.json"),
    steps: int = 1500,
    switch: int = 750,
    seed: int = 0,
) -> None:
    """Train both ways, and write accuracy by length as JSON and as a picture beside it."""
    found = {
        name: train(out / name, delayed=name == "dat", steps=steps, switch=switch, seed=seed)
        for name in ("joint", "dat")
    }
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps({name: one.to_json() for name, one in found.items()}, indent=2) + "\n")
    plot(found, results.with_suffix(".svg"))
    for name, one in found.items():
        print(name, {count.length: round(count.accuracy, 3) for count in one.counts})


if __name__ == "__main__":
    tyro.cli(main)
