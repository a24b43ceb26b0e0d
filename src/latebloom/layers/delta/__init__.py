"""Recurrences with the delta rule: DeltaNet, Gated DeltaNet, DeltaProduct and KDA."""

from latebloom.layers.delta.delta_net import DeltaNet
from latebloom.layers.delta.delta_product import DeltaProduct
from latebloom.layers.delta.gated_delta_net import GatedDeltaNet
from latebloom.layers.delta.kda import KDA

__all__ = ["KDA", "DeltaNet", "DeltaProduct", "GatedDeltaNet"]
