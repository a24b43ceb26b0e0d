"""Whether, and how far, a recorded call of a module mixes tokens."""

from collections.abc import Callable, Iterator
from fractions import Fraction

import torch
from torch import Tensor, nn

from latebloom.delay.record import Call, gradients, random_sum, tokens_behind

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def keeps_tokens(call: Call) -> bool:
    """Return whether an output of a module has the tokens of an input; a decoder may have those of other inputs."""
    return any(output.shape[:-1] == tensor.shape[:-1] for output in call.outputs for tensor in call.inputs)


def mixes(call: Call, sources: list[Tensor]) -> bool:
    """Return whether an output of a module at one token depends on an input at another."""
    return any(support.any() for support in _other_tokens(call, sources, lambda size: size // 2))


def reach_of(call: Call, sources: list[Tensor]) -> Fraction:
    """Return how far from a token at an end of the example those are on which its output depends, from 0 to 1."""
    reach = Fraction(0)
    for last in (False, True):
        for support in _other_tokens(call, sources, lambda size, last=last: last * (size - 1)):
            for axis, size in enumerate(support.shape):
                places = support.nonzero()[:, axis].tolist()
                distances = [size - 1 - place if last else place for place in places]
                reach = max(reach, Fraction(max(distances, default=0), max(size - 1, 1)))
    return reach


def convolution_mixes(module: Convolution) -> bool:
    """Return whether the windows of a convolution overlap; those of a projection of patches to tokens do not."""
    return any(reach >= step for reach, step in zip(_kernel_reach(module), module.stride, strict=True))


def convolution_reach(module: Convolution, call: Call) -> Fraction:
    """Return the same for a convolution, whose tokens are its last axes."""
    kernels = _kernel_reach(module)
    shapes = [tensor.shape[-len(kernels) :] for tensor in call.inputs]
    pairs = [pair for shape in shapes for pair in zip(kernels, shape, strict=True)]
    return max(Fraction(reach, max(size - 1, 1)) for reach, size in pairs)


def _kernel_reach(module: Convolution) -> list[int]:
    """Return the distance between the first and the last input of a window, along each axis."""
    return [(size - 1) * step for size, step in zip(module.kernel_size, module.dilation, strict=True)]


def _other_tokens(call: Call, sources: list[Tensor], at: Callable[[int], int]) -> Iterator[Tensor]:
    """Yield on which other tokens of an input an output at one token depends; True over all axes but the last."""
    for output in call.outputs:
        leading = output.shape[:-1]
        inputs = [tensor for tensor in call.inputs if tensor.shape[:-1] == leading]
        if leading and inputs:
            index = tuple(at(size) for size in leading)
            weights = torch.randn(output.shape[-1], generator=torch.Generator().manual_seed(0)).to(output)
            supports = tokens_behind((output[index] * weights).sum(), inputs)
            for tensor, support in zip(inputs, supports, strict=True):
                if support is not None:
                    support[index] = False
                    for axis in range(len(index)):
                        line = (*index[:axis], slice(None), *index[axis + 1 :])
                        if support[line].any() and _is_one_token(sources, tensor[line]):
                            support[line] = False
                    yield support


def _is_one_token(sources: list[Tensor], line: Tensor) -> bool:
    """Return whether the rows of a line depend on the same inputs, as parallel residual streams do."""
    if not sources or any(len(line) in source.shape[:-1] for source in sources):
        return False  # it may be the tokens, which all depend on each other in a model that is not causal
    rows = (gradients(random_sum([line[row]]), sources) for row in (0, -1))
    pairs = zip(*rows, strict=True)
    return all(one is two or (one is not None and two is not None and _same_support(one, two)) for one, two in pairs)


def _same_support(one: Tensor, two: Tensor) -> bool:
    """Return whether two gradients are zero at the same tokens, which are the last axis or one of the others."""
    return all(
        torch.equal((one != 0).any(axis), (two != 0).any(axis)) for axis in (-1, tuple(range(max(1, one.ndim - 1))))
    )
