"""One block: parts in a row, each behind a norm and added to the stream.

    [norm, recurrence, +; norm, attention, +; norm, MLP, +]

Shapes: B sequences, T tokens, D width.
"""

from torch import Tensor, nn

from latebloom.models.attention import SoftmaxAttention
from latebloom.models.layers import MLP, Norm
from latebloom.models.recurrent import RECURRENCES, Recurrence
from latebloom.models.settings import PARTS, Model


class Residual(nn.Module):
    """x + gate * body(norm(x)).

    The gate is 1 unless something holds the part back: 0.0 leaves the part out, and its cost with it, and a
    tensor scales it. `role` says what the body is, so that a part can be found without knowing its class. `noise`
    (B, T, D) disturbs what a recurrence remembers.
    """

    def __init__(self, role: str, width: int, body: nn.Module) -> None:
        super().__init__()
        self.role = role
        self.norm = Norm(width)
        self.body = body
        self.gate: float | Tensor = 1.0
        self.noise: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)"""
        if isinstance(self.gate, float) and self.gate == 0.0:
            return x
        x, normed = self.norm.fork(x)
        if self.noise is not None and isinstance(self.body, Recurrence):
            y = self.body(normed, noise=self.noise)
        else:
            y = self.body(normed)
        if isinstance(y, tuple):  # a recurrence also returns its state
            y = y[0]
        return x + y if isinstance(self.gate, float) else x + self.gate * y


def build_part(letter: str, settings: Model) -> Residual:
    """The part that a letter of the layout stands for."""
    width, attention = settings.width, settings.attention
    if letter == "r":
        body = RECURRENCES[settings.recurrence](width)
    elif letter == "a":
        body = SoftmaxAttention(
            width,
            attention.heads,
            positions=attention.positions,
            context=attention.context,
            look_back=attention.look_back,
            sharpen=attention.sharpen,
            zero_output=attention.zero_output,
        )
    else:
        body = MLP(width, 4 * width)
    return Residual(PARTS[letter], width, body)


def build_block(settings: Model) -> nn.Sequential:
    """A block as its parts in a row."""
    return nn.Sequential(*(build_part(letter, settings) for letter in settings.layout))
