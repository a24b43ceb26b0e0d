"""Refuses changes to the parts of attention while it is held back, such as adapters that are added too late."""

from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakMethod

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.hooks import RemovableHandle

from latebloom.errors import ConfigError


def watch_parts(
    modules: Collection[nn.Module], held: Collection[nn.Parameter], is_enabled: Callable[[], bool]
) -> RemovableHandle:
    """Raise if one of these modules is replaced, or gets other parameters to train, before attention is enabled.

    torch has this hook for all modules together only. It must not keep a model alive, so `is_enabled` is a method of an
    object that may disappear.
    """
    parts = {id(part) for module in modules for part in module.modules()}
    known = {id(parameter) for parameter in held}
    method = WeakMethod(is_enabled)

    def see(parent: nn.Module, name: str, new: Any) -> None:
        old = parent._modules.get(name)
        if not isinstance(new, nn.Module) or not {id(parent), id(old)} & parts:
            return
        enabled = method()
        is_replaced = old is not None and old not in set(new.modules())
        adds = any(parameter.requires_grad and id(parameter) not in known for parameter in new.parameters())
        if (is_replaced or adds) and enabled is not None and not enabled():
            raise ConfigError(
                f"delay: {name} in {type(parent).__name__} would become a {type(new).__name__} while attention is held "
                "back; add adapters before the delay is created, and merge them after the switch"
            )

    return register_module_module_registration_hook(see)
