"""An estimator of the Adversarial Robustness Toolbox (ART): its attacks and defences meet proved radii; bronet[art].

`fit` and `predict` are ART's own, in float32. Only `certify` proves something.
"""

import numpy as np
import torch
from torch import Tensor, nn

from bronet.certificates.images import certify
from bronet.errors import BronetError
from bronet.graph.trace import unwrapped
from bronet.losses import logit_annealing

try:
    from art.estimators.classification import PyTorchClassifier
except ImportError:
    raise BronetError("ART's estimator needs adversarial-robustness-toolbox; pip install 'bronet[art]'") from None

LEARNING_RATE = 5e-3


class LogitAnnealing(nn.Module):
    """Logit Annealing as ART wants a loss, with the paper's constants for BRONet."""

    reduction = "mean"

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        labels = labels.argmax(dim=1) if labels.ndim > 1 else labels  # ART gives them one-hot
        return logit_annealing(logits, labels, temperature=0.75, offset=2.0, beta=5.0)


class CertifiedClassifier(PyTorchClassifier):  # type: ignore[misc]
    """A network for ART's attacks, with `certify`; pixels lie in [0, 1] and reach the network as they are.

    Args:
        model: any module whose forward `bronet.check` can follow.
        input_shape: of one image.
        nb_classes: how many logits.
        loss: what `fit` minimises, by default Logit Annealing.
        optimizer: of `fit`, by default NAdam.
    """

    def __init__(
        self,
        model: nn.Module,
        input_shape: tuple[int, ...],
        nb_classes: int,
        *,
        loss: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.network = unwrapped(model)
        super().__init__(
            model=model,
            loss=loss or LogitAnnealing(),
            input_shape=input_shape,
            nb_classes=nb_classes,
            optimizer=optimizer or torch.optim.NAdam(model.parameters(), lr=LEARNING_RATE),
            clip_values=(0.0, 1.0),
            device_type="gpu" if next(model.parameters()).is_cuda else "cpu",
        )

    def certify(self, x: np.ndarray, n: int = 0, batch_size: int = 32) -> tuple[np.ndarray, np.ndarray]:
        """Return the class of every image, and the l2 radius within which it is proved not to change.

        The order of the two is that of ART's randomised smoothing, whose number of samples `n` is not needed here.
        """
        found = certify(self.network, x, batch_size=batch_size)
        return found.prediction.numpy(), found.radius.numpy()


__all__ = ["CertifiedClassifier"]
