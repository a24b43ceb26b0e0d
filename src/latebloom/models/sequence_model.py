"""The whole model, from tokens to logits.

Shapes: B sequences, T tokens, D width, A answers, V vocabulary.
"""

from torch import Tensor, nn

from latebloom.layers.embedding import Embedding
from latebloom.layers.norm import Norm
from latebloom.models.block import build_block
from latebloom.models.settings import Model
from latebloom.models.sharing import Shared


class SequenceModel(Shared, nn.Module):
    """embedding -> blocks -> norm -> logits. Causal."""

    def __init__(self, settings: Model, vocabulary_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.vocabulary_size = vocabulary_size
        self.embedding = Embedding(vocabulary_size, settings.width)
        self.blocks = nn.Sequential(*(build_block(settings) for _ in range(settings.blocks)))
        self.norm = Norm(settings.width)
        self.logits = nn.Linear(settings.width, vocabulary_size, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Return the logits (B, A, V) at the positions (B, A), or at every token (B, T, V) if there are none."""
        x = self.blocks(self.embedding(tokens))
        if positions is not None:
            x = x.gather(1, positions[:, :, None].expand(-1, -1, x.shape[2]))
        return self.logits(self.norm(x))
