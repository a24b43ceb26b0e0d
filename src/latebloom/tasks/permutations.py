"""Permutations as tensors of images (..., n): p[i] is where i goes.

They are numbered in lexicographic order. Everything is computed on the device, because a table would have to be copied
there from the host.

Shapes: B sequences, L permutations, n points.
"""

from math import factorial

import torch
from torch import Tensor


def unrank(number: Tensor, n: int) -> Tensor:
    """Return the permutations (..., n) with these numbers (...)."""
    digits = [number // factorial(n - 1 - place) % (n - place) for place in range(n)]
    images = digits[-1:]
    for digit in reversed(digits[:-1]):  # an image is its rank among the points that are left
        images = [digit, *(image + (image >= digit) for image in images)]
    return torch.stack(images, dim=-1)


def inversions(images: Tensor) -> Tensor:
    """Return for each place of permutations (..., n) how many later images are smaller."""
    places = range(images.shape[-1])
    later = [(images[..., place + 1 :] < images[..., place, None]).sum(dim=-1) for place in places]
    return torch.stack(later, dim=-1)


def rank(images: Tensor) -> Tensor:
    """Return the numbers (...) of permutations (..., n)."""
    counts = inversions(images).unbind(dim=-1)
    return sum((count * factorial(left) for left, count in enumerate(reversed(counts))), torch.zeros_like(counts[0]))


def unrank_even(number: Tensor, n: int) -> Tensor:
    """Return the even permutations (..., n) with these numbers among the even ones.

    Of the permutations 2r and 2r + 1, which differ in the order of their last two images, exactly one is even.
    """
    images = unrank(2 * number, n)
    is_odd = inversions(images).sum(dim=-1, keepdim=True) % 2 == 1
    return torch.where(is_odd, torch.cat([images[..., :-2], images[..., -2:].flip(-1)], dim=-1), images)


def cycle(points: Tensor, n: int) -> Tensor:
    """Return the permutations (..., n) that move each of k points (..., k) to the next, the last to the first."""
    identity = torch.arange(n, device=points.device).expand(*points.shape[:-1], n)
    return identity.scatter(-1, points, points.roll(-1, dims=-1))


def running_product(steps: Tensor) -> Tensor:
    """Return the products p1, p1 p2, p1 p2 p3, ... (B, L, n) of permutations (B, L, n); p q takes i to p[q[i]].

    A scan by doubling: after round r an entry is the product of up to 2^r steps that end there.
    """
    products, reach = steps, 1
    while reach < steps.shape[1]:
        later = products[:, :-reach].gather(2, products[:, reach:])
        products = torch.cat([products[:, :reach], later], dim=1)
        reach *= 2
    return products


def with_start(products: Tensor) -> Tensor:
    """Return running products (B, L + 1, n) with the identity in front."""
    identity = torch.arange(products.shape[2], device=products.device).expand(products.shape[0], 1, -1)
    return torch.cat([identity, products], dim=1)
