"""What the search for attention sees in any model, also in one that the delay refuses."""

from torch import nn

from latebloom.delay.find import Found, find_attention


def survey(model: nn.Module) -> Found:
    """`find_attention` without its complaint that there is no attention, or nothing else."""
    found = find_attention(_Company(model))
    names = {f"inspected.{name}" if name else "inspected": name for name, _ in model.named_modules()}
    return Found(
        {names[name]: module for name, module in found.matched.items() if name in names},
        {names[name]: reason for name, reason in found.passed_over.items() if name in names},
    )


class _Company(nn.Module):
    """A model beside one attention and one recurrence, so that neither is found missing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inspected = model
        self.config = getattr(model, "config", None)  # the search reads the layers' types there
        self.attention = _Role("attention")
        self.recurrence = _Role("recurrence")


class _Role(nn.Module):
    def __init__(self, role: str) -> None:
        super().__init__()
        self.role, self.gate = role, 1.0
