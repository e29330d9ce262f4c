"""The estimator for the Adversarial Robustness Toolbox: its fit and its attacks, our radii."""

import importlib.util
import sys

import numpy as np
import pytest
import torch

import bronet
from bronet.data import load_dataset
from bronet.errors import BronetError
from own_networks import Branching

IS_THERE = importlib.util.find_spec("art") is not None


@pytest.mark.skipif(IS_THERE, reason="adversarial-robustness-toolbox is installed")
def test_without_the_toolbox_one_line_says_what_to_install() -> None:
    sys.modules.pop("bronet.certificates.art", None)
    with pytest.raises(BronetError, match="pip install 'bronet"):
        importlib.import_module("bronet.certificates.art")


@pytest.mark.skipif(not IS_THERE, reason="adversarial-robustness-toolbox is not installed")
@pytest.mark.filterwarnings("ignore")  # the toolbox's own
def test_art_fits_predicts_attacks_and_gets_radii() -> None:
    from art.attacks.evasion import ProjectedGradientDescent

    from bronet.certificates.art import CertifiedClassifier

    torch.manual_seed(0)
    train, test = (load_dataset("digits", split) for split in ("train", "test"))
    estimator = CertifiedClassifier(Branching(), (1, 8, 8), 10)
    images, labels = train.pixels(torch.arange(len(train))).numpy(), train.labels.numpy()
    estimator.fit(images, labels, batch_size=64, nb_epochs=8)
    pixels = test.pixels(torch.arange(40)).numpy()
    classes, radii = estimator.certify(pixels)
    assert np.array_equal(classes, estimator.predict(pixels).argmax(1))
    assert np.array_equal(radii, bronet.certify(estimator.network, pixels).radius.numpy())
    assert (classes == test.labels[:40].numpy()).mean() > 0.4
    assert (radii > 0.01).mean() > 0.5
    eps = float(np.median(radii))
    attack = ProjectedGradientDescent(estimator, norm=2, eps=eps, eps_step=eps / 4, max_iter=20, verbose=False)
    found = attack.generate(pixels)
    distance = np.linalg.norm((found.astype(np.float64) - pixels).reshape(40, -1), axis=1)
    inside = distance < radii
    assert inside.sum() > 10
    assert np.array_equal(estimator.predict(found).argmax(1)[inside], classes[inside])
