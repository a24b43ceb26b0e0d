"""Configurations of earlier versions, as plain data: read in today's form, and written in theirs for their hashes.

Up to version 0.1 the recurrence and the positions were names, `sharpen` stood for the scores, the context of learned
positions was a field of attention, and a hash covered every field.
"""

from collections.abc import Iterator
from typing import Any

Data = dict[str, Any]

CONTEXT = 1024
"""The default of `model.attention.context`, which every configuration had."""
FIELDS = {
    "": "task model delay training evaluation seed",
    "model": "layout width blocks recurrence attention",
    "attention": "heads positions context look_back sharpen zero_output",
    "delay": "until hold ramp_steps withhold",
    "training": "length steps delayed full betas weight_decay clip weigh precision restart recurrence_factor "
    "attention_factor state_noise log_every check_every checkpoint_every",
    "phase": "learning_rate warmup schedule cycles batch_size",
    "evaluation": "multiples sequences",
    "composite": "name modulus keys values order supervision",
    "modular_sum": "name modulus supervision",
    "recall": "name keys values",
    "at_step": "name step",
    "at_fraction": "name fraction",
    "when_beyond": "name latest threshold multiple checks every",
}
"""The fields of version 0.1, by section."""
LATER = {"training": ("restart", "state_noise"), "phase": ("cycles",)}
"""The fields of these that the first results do not have."""


def migrate_run(data: Any) -> Any:
    """Return the plain data of a run's configuration in today's form."""
    return {**data, "model": migrate_model(data["model"])} if isinstance(data, dict) and "model" in data else data


def migrate_model(model: Any) -> Any:
    """Return the plain data of a model's settings in today's form."""
    attention = model.get("attention") if isinstance(model, dict) else None
    if not isinstance(attention, dict) or "scores" in attention or isinstance(attention.get("positions"), dict):
        return model
    attention = dict(attention)
    if isinstance(sharpen := attention.get("sharpen"), bool):
        del attention["sharpen"]
        attention["scores"] = {"name": "log_n" if sharpen else "softmax"}
    if "context" in attention and attention.get("positions") == "learned":
        attention["positions"] = {"name": "learned", "context": attention.pop("context")}
    elif isinstance(attention.get("positions", ""), str):
        attention.pop("context", None)  # it had no effect
    return {**model, "attention": attention}


class _Inexpressible(Exception):  # noqa: N818 (it ends a search)
    """A setting that an earlier version did not have."""


def older_forms(data: Data, changed: Data) -> Iterator[Data]:
    """Yield the configuration as earlier versions wrote it, those that could; `changed` is what differs from defaults.

    A field that was added since is left out where it has its default.
    """
    try:
        form = _form(data, changed)
    except _Inexpressible:
        return
    yield form
    training, changed_training = form["training"], changed.get("training", {})
    phases = {name: changed_training.get(name, {}) for name in ("delayed", "full")}
    is_first = not any(name in changed_training for name in LATER["training"])
    if is_first and not any(name in phase for phase in phases.values() for name in LATER["phase"]):
        first = {name: value for name, value in training.items() if name not in LATER["training"]}
        for name in phases:
            first[name] = {key: value for key, value in training[name].items() if key not in LATER["phase"]}
        yield {**form, "training": first}


def _form(data: Data, changed: Data) -> Data:
    form = _pick("", data, changed)
    form["task"] = _pick_member(data["task"], changed.get("task", {}))
    form["model"] = _model(data["model"], changed.get("model", {}))
    form["training"] = _pick("training", data["training"], changed.get("training", {}))
    for phase in ("delayed", "full"):
        form["training"][phase] = _pick("phase", data["training"][phase], changed.get("training", {}).get(phase, {}))
    form["evaluation"] = _pick("evaluation", data["evaluation"], changed.get("evaluation", {}))
    if data["delay"] is not None:
        form["delay"] = _pick("delay", data["delay"], changed["delay"])
        form["delay"]["until"] = _pick_member(data["delay"]["until"], changed["delay"]["until"])
    return form


def _model(data: Data, changed: Data) -> Data:
    attention, changed_attention = data["attention"], changed.get("attention", {})
    positions, scores = attention["positions"], attention["scores"]
    changed_positions = changed_attention.get("positions", {})
    unknown = [
        changed.get("recurrence", {}).keys() - {"name"},
        changed_attention.get("scores", {}).keys() - {"name"},
        changed_positions.keys() - {"name"} - ({"context"} if positions["name"] == "learned" else set()),
        {scores["name"]} - {"softmax", "log_n"},
        changed_attention.keys() - {"scores"} - set(FIELDS["attention"].split()),
    ]
    if any(unknown):
        raise _Inexpressible
    older = {
        **attention,
        "positions": positions["name"],
        "context": positions.get("context", CONTEXT),
        "sharpen": scores["name"] == "log_n",
    }
    form = _pick("model", data, changed)
    form["recurrence"] = data["recurrence"]["name"]
    form["attention"] = _pick("attention", older, {})
    return form


def _pick_member(data: Data, changed: Data) -> Data:
    if data["name"] not in FIELDS:  # a component of a user's own: all its fields
        return data
    return _pick(data["name"], data, changed)


def _pick(section: str, data: Data, changed: Data) -> Data:
    names = FIELDS[section].split()
    if changed.keys() - set(names):
        raise _Inexpressible
    return {name: data[name] for name in names}
