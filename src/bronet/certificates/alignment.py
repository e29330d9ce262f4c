"""Alignment: how much of its proved constants a network's margins use, at the images and layer by layer.

A diagnosis, no part of a proof. At an image the margin that ends the radius has a gradient; its norm over the proved
constant of that margin says which share of the constant is steep there. What is missing is certified radius that the
network gives away: with a share of 0.6 the true distance to the boundary of the linearised network is 1 / 0.6 of it.
"""

import math
from collections import Counter

import torch
from jaxtyping import Float
from torch import Tensor

from bronet.data import ImageSet
from bronet.graph.network import ProvedNetwork
from bronet.run.certificate import Alignment

IMAGES = 50
"""As many images tell medians to a few percent, and cost little beside a certificate."""
DIGITS = 6
_AT_ONCE = 10  # all activations are kept


def alignment(network: ProvedNetwork, images: ImageSet) -> Alignment:
    """Return the shares at the first `IMAGES` images.

    A layer's share compares the gradient in front of it with its constant times the gradient behind it. Those of a
    chain multiply to the whole, up to the head's own, which is one where the head is linear.
    """
    index = torch.arange(min(len(images), IMAGES), device=images.labels.device).split(_AT_ONCE)
    pixels = [images.pixels(part, dtype=torch.float64) for part in index]
    whole, layers = zip(*(_shares(network, part) for part in pixels), strict=True)
    medians = torch.cat(layers).median(dim=0).values.tolist()
    shares = tuple(None if math.isnan(share) else round(share, DIGITS) for share in medians)
    median = round(float(torch.cat(whole).median()), DIGITS)
    return Alignment(images=sum(map(len, pixels)), median=median, layers=shares)


@torch.enable_grad()
def _shares(network: ProvedNetwork, images: Tensor) -> tuple[Float[Tensor, " b"], Float[Tensor, "b layers"]]:
    """Return the share of every image, in all and of each layer; of a layer that has none NaN."""
    values = [images.requires_grad_()]
    for node in network.nodes:
        values.append(node.proved.apply(*(values[i] for i in node.inputs)))
    logits = values[-1]
    t = logits.argmax(dim=1, keepdim=True)
    margins, gaps = logits.gather(1, t) - logits, network.gap_lipschitz[t[:, 0]]
    j = (margins / gaps).scatter(1, t, torch.inf).argmin(dim=1, keepdim=True)
    gradients = torch.autograd.grad(margins.gather(1, j).sum(), values[:-1])
    norms = [torch.linalg.vector_norm(gradient.flatten(1), dim=1) for gradient in gradients]
    uses = Counter(i for node in network.nodes for i in node.inputs)
    layers = [torch.full_like(norms[0], math.nan) for _ in network.layers]
    for value, node in enumerate(network.nodes[:-1], start=1):
        if len(node.inputs) == uses[node.inputs[0]] == 1:
            layers[value - 1] = (norms[node.inputs[0]] / (node.proved.lipschitz * norms[value])).nan_to_num(1.0)
    return (norms[0] / gaps.gather(1, j)[:, 0]).nan_to_num(0.0), torch.stack(layers, dim=1)
