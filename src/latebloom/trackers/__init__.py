"""Live curves: a run's numbers, shown by TensorBoard, W&B or trackio while it goes on. Each is an extra."""

from latebloom.trackers.tracking import TRACKERS, Tracked, Tracker, tracker

__all__ = ["TRACKERS", "Tracked", "Tracker", "tracker"]
