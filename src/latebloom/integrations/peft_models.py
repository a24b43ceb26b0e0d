"""What `latebloom.delay` needs to know of PEFT's models; see `delay.libraries`.

Nothing is imported from PEFT. What is attention, its models know from the library of the model inside.
"""

import json
from pathlib import Path
from typing import Any

from torch import nn

from latebloom.delay.marks import mark_of, warning_of


def classify(model: nn.Module, name: str, module: nn.Module) -> None:
    """Say nothing: an adapter is a part of the module that it is in."""


def example_of(model: nn.Module) -> None:
    """Say nothing: the model inside knows."""


class MarkedAdapters:
    """Replaces the `save_pretrained` of a model with adapters: their configuration has a field that says so.

    PEFT warns of a field that it does not know, with its name.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        model.save_pretrained = self.save  # type: ignore[assignment] (a method, as in the class)

    def remove(self) -> None:
        """Restore the method."""
        del self.model.save_pretrained

    def save(self, folder: str | Path, *positional: Any, **named: Any) -> None:
        kind: Any = type(self.model)
        kind.save_pretrained(self.model, folder, *positional, **named)
        mark = mark_of(self.model)
        text = None if mark is None else warning_of(mark)
        if text is None or not named.get("is_main_process", True):
            return
        adapters: Any = named.get("selected_adapters") or self.model.peft_config
        for name in adapters:
            file = Path(folder) / ("" if name == "default" else name) / "adapter_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {text: mark}, indent=2, sort_keys=True))


def mark_files(model: nn.Module) -> list[MarkedAdapters]:
    """Mark what `save_pretrained` writes."""
    kinds = [module for module in model.modules() if any(one.__name__ == "PeftModel" for one in type(module).__mro__)]
    return [MarkedAdapters(module) for module in kinds]
