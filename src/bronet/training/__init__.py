"""Training: one visible loop, its optimisers and schedules, and checkpoints."""

from bronet.training.forecast import Forecast, forecast
from bronet.training.loop import Interrupted
from bronet.training.run import RunOptions, train_recipe

__all__ = ["Forecast", "Interrupted", "RunOptions", "forecast", "train_recipe"]
