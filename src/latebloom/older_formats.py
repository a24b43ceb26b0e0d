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
PHASES = {"delayed": "phase", "full": "phase"}
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
        form = _pick("", data, changed)
    except _Inexpressible:
        return
    yield form
    changed_training = changed.get("training", {})
    changed_phases = {key for phase in PHASES for key in changed_training.get(phase, {})}
    if changed_training.keys().isdisjoint(LATER["training"]) and changed_phases.isdisjoint(LATER["phase"]):
        first = {name: value for name, value in form["training"].items() if name not in LATER["training"]}
        for name in PHASES:
            first[name] = {key: value for key, value in first[name].items() if key not in LATER["phase"]}
        yield {**form, "training": first}


def _pick(section: str, data: Data, changed: Data) -> Data:
    """Return the fields of a section that version 0.1 had; raise if another one is changed."""
    names = FIELDS[section].split()
    if changed.keys() - set(names):
        raise _Inexpressible
    return {name: _older(name, data[name], changed.get(name, {})) for name in names}


def _older(name: str, data: Any, changed: Data) -> Any:
    if not isinstance(data, dict):
        return data
    if name == "model":
        return _model(data, changed)
    section = data.get("name") or PHASES.get(name, name)
    return _pick(section, data, changed) if section in FIELDS else data  # a component of a user's own: all its fields


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
    data = {**data, "recurrence": data["recurrence"]["name"], "attention": None}
    return {**_pick("model", data, changed), "attention": _pick("attention", older, {})}
