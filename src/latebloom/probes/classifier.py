"""Classes of states for many models at once: where they are, and a linear classifier that tells them apart.

The classifier is multinomial logistic regression with weight decay.

Shapes: S models, N samples, F features, C classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

DECAY, ITERATIONS, SEARCHES = 1e-3, 60, 3
"""The weight decay, the steps of the minimization, and the Newton steps with which each finds its length."""


@dataclass(frozen=True)
class Classes:
    """The states that each of S models has seen in training; the classes of a model are their numbers."""

    states: tuple[Tensor, ...]
    """For each model, in order."""
    exists: Tensor
    """(S, C) which classes a model has; models may have seen different numbers of them."""

    @classmethod
    def of(cls, labels: Tensor) -> "Classes":
        """Return the states in labels (S, N)."""
        states = tuple(row.unique() for row in labels)
        counts = torch.tensor([len(one) for one in states], device=labels.device)
        return cls(states, torch.arange(int(counts.max()), device=labels.device) < counts[:, None])

    def numbers(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class (S, N) of labels (S, N), and whether the model has such a class."""
        found = torch.stack(
            [torch.searchsorted(own, row).clamp(max=len(own) - 1) for own, row in zip(self.states, labels, strict=True)]
        )
        is_known = [own[places] == row for own, places, row in zip(self.states, found, labels, strict=True)]
        return found, torch.stack(is_known)


@dataclass(frozen=True)
class Clusters:
    """Where the samples of each class were in training."""

    means: Tensor
    """(S, C, F)"""
    distance: Tensor
    """(S,) the mean distance between two classes."""

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, exists: Tensor) -> "Clusters":
        """Return the clusters of samples (S, N, F) with classes (S, N)."""
        means, _ = _class_means(x, labels, torch.ones_like(labels, dtype=torch.bool), exists.shape[1])
        # Without products of matrices, which are inexact for near points.
        apart = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
        pairs = (exists[:, :, None] & exists[:, None]).triu(diagonal=1)
        mean = (apart * pairs).sum(dim=(1, 2)) / pairs.sum(dim=(1, 2)).clamp_min(1)
        return cls(means, torch.where(pairs.any(dim=2).any(dim=1), mean.clamp_min(1e-12), 1.0))

    def moved(self, x: Tensor, labels: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far the classes of known samples have moved (S,), and how wide they are (S,), in distances."""
        now, counts = _class_means(x, labels, known, self.means.shape[1])
        shift = ((now - self.means).norm(dim=2) * (counts > 0)).sum(dim=1) / (counts > 0).sum(dim=1)
        apart = x - now.gather(1, labels[:, :, None].expand(-1, -1, x.shape[2]))
        spread = ((apart.square().sum(dim=2) * known).sum(dim=1) / known.sum(dim=1)).sqrt()
        return shift / self.distance, spread / self.distance


def _class_means(x: Tensor, labels: Tensor, known: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean (S, C, F) of each class over known samples, and their number (S, C)."""
    members = F.one_hot(labels, classes).to(x.dtype) * known[:, :, None]
    counts = members.sum(dim=1)
    return members.mT @ x / counts.clamp_min(1)[:, :, None], counts


@dataclass(frozen=True)
class Classifier:
    """Linear classifiers of S models."""

    weight: Tensor
    """(S, F + 1, C); the last row is the bias."""
    exists: Tensor
    """(S, C) which classes a model has; models may have different numbers of them."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the class (S, N) of each sample (S, N, F)."""
        return _logits(_with_one(x), self.weight, self.exists).argmax(dim=2)


def fit(x: Tensor, labels: Tensor, exists: Tensor) -> Classifier:
    """Train a classifier for each model on samples (S, N, F) with labels (S, N), each to about its minimum.

    The loss is convex, and it is minimized by conjugate gradients (Polak-Ribiere) with an exact line search. All models
    take their steps together, but no number of one depends on another.
    """
    x = _with_one(x)
    samples, decay = x.shape[1], torch.full_like(x[:1, 0, :, None], DECAY)
    decay[:, -1] = 0.0  # the bias is free
    targets = F.one_hot(labels, exists.shape[1]).to(x.dtype)
    weight = x.new_zeros(len(x), x.shape[2], exists.shape[1])
    direction = before = torch.zeros_like(weight)
    logits = _logits(x, weight, exists)
    for _ in range(ITERATIONS):
        gradient = x.mT @ (logits.softmax(dim=2) - targets) / samples + 2 * decay * weight
        share = _dot(gradient, gradient - before) / _dot(before, before).clamp_min(1e-30)
        direction = share.clamp_min(0.0) * direction - gradient
        uphill = _dot(direction, gradient) >= 0
        direction = torch.where(uphill, -gradient, direction)
        change = x @ direction
        pull = 2 * decay * direction
        size = _line_search(logits, change, targets, _dot(pull, weight), _dot(pull, direction))
        weight = weight + size * direction
        logits, before = logits + size * change, gradient
    return Classifier(weight, exists)


def _line_search(logits: Tensor, change: Tensor, targets: Tensor, linear: Tensor, square: Tensor) -> Tensor:
    """Return the step (S, 1, 1) along a direction at which the loss is least, by Newton's method within a bracket.

    `change` (S, N, C) is that of the logits for a step of 1. The weight decay adds `linear` plus `square` times the
    step to the slope. The loss along a line is convex.
    """
    samples = logits.shape[1]
    linear = linear - (targets * change).sum(dim=(1, 2), keepdim=True) / samples
    size = torch.zeros_like(linear)
    low, high = size, torch.full_like(size, torch.inf)
    for _ in range(SEARCHES):
        shares = (logits + size * change).softmax(dim=2)
        mean = (shares * change).sum(dim=2, keepdim=True)
        slope = mean.sum(dim=1, keepdim=True) / samples + linear + size * square
        variance = (shares * (change - mean).square()).sum(dim=(1, 2), keepdim=True)
        falls = slope <= 0
        low, high = torch.where(falls, size, low), torch.where(falls, high, size)
        newton = size - slope / (variance / samples + square).clamp_min(1e-30)
        size = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return size


def _with_one(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1), value=1.0)


def _logits(x: Tensor, weight: Tensor, exists: Tensor) -> Tensor:
    return (x @ weight).masked_fill(~exists[:, None], -torch.inf)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(1, 2), keepdim=True)
