"""Losses of section 5 and App. C: each maps (logits, labels, ...) to a scalar and never sees the model.

`emma` adjusts logits, and any of the losses can follow it. `drawn_labels` prepares a loss for uncertain labels.
"""

from bronet.losses.baselines import (
    certificate_regularization,
    certificate_regularization_radius,
    cross_entropy,
    logit_margin,
    ramp,
)
from bronet.losses.emma import emma
from bronet.losses.labels import DrawnLabels, drawn_labels
from bronet.losses.logit_annealing import logit_annealing

__all__ = [
    "DrawnLabels",
    "certificate_regularization",
    "certificate_regularization_radius",
    "cross_entropy",
    "drawn_labels",
    "emma",
    "logit_annealing",
    "logit_margin",
    "ramp",
]
