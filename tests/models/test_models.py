"""Named networks: parameter counts, meta device, shapes, and the Lipschitz inequality of whole models."""

import subprocess
import sys

import pytest
import torch

from bronet import BROConv2d, BROLinear, BronetError, build_model, create_model, prove
from bronet.graph.model import layers_of
from bronet.recipe.architecture import NAMED, BRONetArchitecture, LipConvNetArchitecture
from bronet.recipe.schema import DATASETS, DatasetSpec

COUNTS = [
    ("bronet-m", "cifar10", 36.5),
    ("bronet-l", "cifar10", 68.8),
    ("bronet-tiny", "tiny-imagenet", 75),
    ("bronet-imagenet", "imagenet", 86),
    ("lipconvnet-10-32", "cifar100", 8.86),
    ("lipconvnet-10-64", "cifar100", 35.24),
    ("liresnet", "cifar10", 82.9),
    ("liresnet", "tiny-imagenet", 133),
]
SMALL_BRONET = BRONetArchitecture(width=8, depth=2, dense_depth=1, dense_width=16, stem_kernel=3, stem_padding=1)


def millions(model: torch.nn.Module) -> float:
    return sum(p.numel() for p in model.parameters()) / 1e6


@pytest.mark.parametrize(("name", "dataset", "expected"), COUNTS)
def test_named_model_has_the_papers_parameter_count(name: str, dataset: str, expected: float) -> None:
    model = create_model(name, dataset=dataset, device="meta")
    assert millions(model) == pytest.approx(expected, rel=0.01)


def test_a_bronet_and_a_report_are_loaded_without_a_compiler_and_without_drawing() -> None:
    code = (
        "import sys, bronet, bronet.report\n"
        "bronet.create_model('bronet-digits', dataset='digits')\n"
        "print([name for name in ('torch._dynamo.convert_frame', 'matplotlib') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(NAMED))
def test_every_named_model_builds_on_the_meta_device(name: str) -> None:
    dataset = {"bronet-digits": "digits", "bronet-tiny": "tiny-imagenet", "bronet-imagenet": "imagenet"}.get(
        name, "cifar10"
    )
    model = create_model(name, dataset=dataset, device="meta")
    assert all(p.device.type == "meta" for p in model.parameters())
    assert sum(1 for _ in layers_of(model)) > 10


SMALL = [
    (SMALL_BRONET, DatasetSpec("small", 3, 16, 16, 5, 255)),
    (
        BRONetArchitecture(
            width=8,
            depth=2,
            dense_depth=1,
            dense_width=16,
            regularized_depth=2,
            keep_padding=True,
            neck="l2pool",
            neck_patch=4,
            dense="cholesky",
            stem_kernel=4,
            stem_stride=4,
            stem_padding=0,
        ),
        DatasetSpec("imagenet-like", 3, 16, 16, 5, 255),
    ),
    (
        BRONetArchitecture(width=8, depth=2, dense_depth=1, dense_width=16, neck="bro", stem_kernel=3, stem_padding=1),
        DatasetSpec("wide", 1, 16, 32, 4, 255),
    ),
    (
        BRONetArchitecture(width=8, depth=2, dense_depth=1, dense_width=16, padding_mode="circular"),
        DatasetSpec("circular", 3, 16, 16, 5, 255),
    ),
    (
        BRONetArchitecture(width=8, depth=2, dense_depth=1, dense_width=16, backbone="lipreg", centring=False),
        DatasetSpec("liresnet-like", 3, 16, 16, 5, 255),
    ),
    (LipConvNetArchitecture(depth=5, width=4), DatasetSpec("lipconvnet", 3, 32, 32, 7, 255)),
    (LipConvNetArchitecture(depth=10, width=4, head="bro"), DatasetSpec("orthogonal-head", 3, 32, 32, 7, 255)),
    (
        LipConvNetArchitecture(depth=10, width=4, strided_last=False, activation="householder2"),
        DatasetSpec("text-order", 3, 32, 32, 7, 255),
    ),
]


def test_every_reflector_of_lipconvnet_starts_as_the_identity_kernel() -> None:
    """The head, too: from small normals its gradient, which grows as 1/|V|, ended training in NaN."""
    model = build_model(LipConvNetArchitecture(depth=10, width=4, head="bro"), SMALL[-2][1])
    reflectors = [m for m in model.modules() if isinstance(m, BROConv2d | BROLinear)]
    assert len(reflectors) == 11
    for layer in reflectors:
        weight = layer.weight.detach()
        centre = weight if weight.ndim == 2 else weight[..., weight.shape[-2] // 2, weight.shape[-1] // 2]
        assert torch.equal(centre, torch.eye(*centre.shape))
        assert weight.count_nonzero() == centre.shape[1]


@pytest.mark.parametrize(("architecture", "spec"), SMALL, ids=lambda value: getattr(value, "name", None))
def test_whole_model_is_lipschitz_with_its_proved_constant(
    architecture: BRONetArchitecture | LipConvNetArchitecture, spec: DatasetSpec
) -> None:
    """|f(x) - f(y)| <= L |x - y| for the features, and each logit difference is bounded by its gap."""
    model = build_model(architecture, spec, seed=1, dtype=torch.float64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    network = prove(model)
    generator = torch.Generator().manual_seed(0)
    shape = (spec.channels, spec.height, spec.width)
    x = torch.rand(30, *shape, dtype=torch.float64, generator=generator)
    direction = torch.randn(30, *shape, dtype=torch.float64, generator=generator)
    for size in (1e-3, 1.0):
        y = x + size * direction / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        difference = network.logits(x) - network.logits(y)
        gaps = (difference[:, :, None] - difference[:, None]).abs()
        allowed = network.lipschitz * network.gaps * size
        assert (gaps <= allowed * (1 + 1e-9) + 1e-12).all()
    with torch.no_grad():
        torch.testing.assert_close(network.logits(x), model(x), atol=1e-6, rtol=0)


def test_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, second, other = (build_model(SMALL_BRONET, DATASETS["cifar10"], seed=s) for s in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)  # type: ignore[arg-type]


def test_model_takes_images_larger_than_it_was_built_for_up_to_the_neck() -> None:
    model = build_model(LipConvNetArchitecture(depth=5, width=4), DATASETS["cifar10"])
    assert model(torch.rand(1, 3, 32, 32)).shape == (1, 10)
    with pytest.raises(BronetError, match="expects"):
        model(torch.rand(1, 3, 64, 64))


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(BronetError, match=r"unknown model 'bronet-n'; the nearest known one is 'bronet-."):
        create_model("bronet-n", dataset="cifar10")


def test_lipconvnet_refuses_images_it_cannot_halve_five_times() -> None:
    with pytest.raises(BronetError, match="multiples of 32, got 8 x 8"):
        create_model("lipconvnet-5-32", dataset="digits")


def test_estimate_follows_the_stem_and_reaches_the_gap_matrix() -> None:
    model = build_model(SMALL_BRONET, DATASETS["cifar10"])
    model.update_estimates(50)
    gap = model.gap_lipschitz()
    assert torch.allclose(gap, model.lipschitz_estimate() * model.head.gaps())
    gap.sum().backward()
    stem = dict(model.named_parameters())["stem.linear.weight"]
    assert stem.grad is not None
    assert stem.grad.abs().sum() > 0


def test_a_network_beyond_this_machines_memory_is_refused_before_it_is_built() -> None:
    huge = LipConvNetArchitecture(depth=5, width=65_536)
    with pytest.raises(BronetError, match="GiB"):
        build_model(huge, DATASETS["cifar10"])
