"""Trackers show the metrics of a run while it trains: TensorBoard, W&B or trackio. Each is an extra."""

from latebloom.trackers.tensorboard import TensorBoard
from latebloom.trackers.tracking import Tracked, Tracker, TrackerSession
from latebloom.trackers.trackio import Trackio
from latebloom.trackers.wandb import WeightsAndBiases

__all__ = ["TensorBoard", "Tracked", "Tracker", "TrackerSession", "Trackio", "WeightsAndBiases"]
