"""What is known of other libraries: the module `latebloom.integrations.NAME_models` is for the library NAME.

It may have three functions and a list of names:
- `example_of(model)` returns the arguments of a small forward pass by name, or None for what is no whole model;
- `classify(model, name, module)`, for models without weights, returns an empty string for softmax attention, the reason
  for another mixer, and None for any other module;
- `mark_files(model)` marks the files that a model writes by itself, see `delay.marks`, and returns what undoes it;
- `KERNELS` has the names of subclasses of `torch.autograd.Function` that compute softmax attention.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import nn


@cache
def library_of(package: str) -> Any:
    """Return what is known of a package; None if nothing is."""
    name = f"latebloom.integrations.{package}_models"
    return import_module(name) if package.isidentifier() and find_spec(name) is not None else None


def libraries_of(model: nn.Module) -> list[Any]:
    """Return what is known of the libraries that a model's classes come from; first those that build on others."""
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    found = (library_of(package) for package in sorted({kind.__module__.partition(".")[0] for kind in kinds}))
    return [library for library in found if library is not None]


def example_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of a small forward pass if a library knows them; None otherwise."""
    examples = (library.example_of(model) for library in libraries_of(model) if hasattr(library, "example_of"))
    return next((example for example in examples if example is not None), None)
