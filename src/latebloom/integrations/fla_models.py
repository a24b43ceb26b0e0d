"""What `latebloom.delay` needs to know of flash-linear-attention's models; see `delay.libraries`.

Nothing is imported from fla: a model says everything itself.
"""

from torch import nn

ATTENTION = (
    "Attention",
    "BitAttention",
    "DeltaFormerAttention",
    "ForgettingAttention",
    "MoBA",
    "MultiheadLatentAttention",
    "NativeSparseAttention",
    "PaTHAttention",
    "Parallax",
    "SlidingWindowSharedKeyAttention",
    "WallAttention",
    "YOCOCrossAttention",
)
"""Layers with softmax attention; those of fla's other classes called ...Attention are linear."""
KERNELS = (
    "ParallaxFunction",
    "ParallelAttentionFunction",
    "ParallelMoBAFunction",
    "ParallelNSAFunction",
    "ParallelPATHAttentionFunction",
    "WallParallelAttentionFunction",
)
MIXERS = ("Attention", "DeltaNet", "DeltaNet2", "DeltaProduct", "KDA", "Retention", "Mamba", "Mamba2", "Mamba3")


def classify(model: nn.Module, name: str, module: nn.Module) -> str | None:
    """Match the layers with softmax attention."""
    kind = type(module)
    if not kind.__module__.startswith("fla.layers."):
        return None
    if kind.__name__ in ATTENTION:
        return ""
    return f"{kind.__name__} is a recurrence or convolution" if kind.__name__.endswith(MIXERS) else None
