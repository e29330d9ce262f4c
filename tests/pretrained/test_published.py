"""Checkpoints in the layout of the published code become runs that compute what the published code computed."""

import pickle
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import bronet
from bronet.attack import l2_pgd
from bronet.cli import app
from bronet.errors import BronetError
from bronet.pretrained.published import import_published, read_published
from bronet.run.folder import open_run
from bronet.run.weights import load_model
from published_cases import built, images

STORED = Path(__file__).parents[1] / "published" / "outputs.npz"
NAMES = ("bronet-m", "bronet-l", "bronet-tiny", "liresnet", "lipconvnet")
pytestmark = pytest.mark.usefixtures("one_thread")


def layout(name: str) -> dict[str, object]:
    """Return the numbers of a case as the published code saves them after training."""
    ours = built(name).state_dict()
    if name == "lipconvnet":
        state = {"last_layer.weight": ours["head.weight"], "last_layer.bias": ours["head.bias"]}
        for stage in range(5):
            for block in range(2):
                is_last = (stage, block) == (4, 1)
                path = f"stages.{stage}.{block}.{'1.' if is_last else ''}"
                weight = ours[f"{path}linear.weight"]
                state[f"layer{stage + 1}.{block}.conv.weight"] = weight[..., None, None] if is_last else weight
                state[f"layer{stage + 1}.{block}.conv.bias"] = ours[f"{path}shift.bias"]
        return OrderedDict(state)

    def stacked(layers: str, of: str) -> Tensor:
        return torch.stack([ours[f"{layers}.{i}.{of}"] for i in range(2)])

    patches, features = ours["neck.conv.weight"], ours["neck.dense.linear.weight"]
    state = {
        "stem.0.weight": ours["stem.linear.weight"],
        "stem.0.bias": ours["stem.shift.bias"],
        "stem.0.init_x": torch.ones(1, 3, 32, 32),
        "conv.weights": stacked("backbone", "linear.weight"),
        "conv.gamma": stacked("backbone", "linear.residual.alpha")[..., None, None, None],
        "conv.bias": stacked("backbone", "shift.bias"),
        "conv.running_mean": stacked("backbone", "shift.mean"),
        **({"conv.init_x": torch.ones(1, 8, 16, 16)} if name == "liresnet" else {}),
        "conv.I_low": torch.eye(2)[None, None, None],
        "neck.kernel": patches,
        "neck.weight": features,
        "neck.bias": ours["neck.dense.shift.bias"],
        "linear.weights": stacked("dense", "linear.weight"),
        "linear.gamma": stacked("dense", "linear.residual.alpha")[..., None],
        "linear.bias": stacked("dense", "shift.bias"),
        "head.weight": ours["head.weight"],
        "head.bias": ours["head.bias"],
    }
    log = ["epoch 0"]
    return {"backbone": OrderedDict(state), "optimizer": {"state": {}}, "training_logs": log, "start_epoch": 1}


def wanted(name: str) -> Tensor:
    """Return what the published code gave in evaluation."""
    stored = np.load(STORED)
    key = f"{name}/evaluation"
    return torch.from_numpy(stored[key if key in stored else f"{name}/training"])


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_computes_what_the_published_code_computes(name: str, tmp_path: Path) -> None:
    torch.save(layout(name), tmp_path / "published.pth")
    run = import_published(tmp_path / "published.pth", tmp_path / "run")
    model = load_model(run)
    pixels = images(name)
    expected = wanted(name)
    torch.testing.assert_close(model.double()(pixels), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_imported_weights_are_certified_and_no_attack_breaks_them(tmp_path: Path) -> None:
    torch.save(layout("lipconvnet"), tmp_path / "last.pth")
    out = tmp_path / "run"
    result = CliRunner().invoke(app, ["import-published", str(tmp_path / "last.pth"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    model, pixels = load_model(open_run(out)), images("lipconvnet").float()
    found = bronet.certify(model, pixels)
    assert (found.radius > 0).all()
    attacked = l2_pgd(model, pixels, found.prediction, eps=found.radius, steps=20)
    assert not attacked.success.any()
    assert "elsewhere" in CliRunner().invoke(app, ["info", str(out)]).stdout


class Hostile:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code was run')",))


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    for number, content in enumerate((Hostile(), {"backbone": {"conv.weights": Hostile()}})):
        torch.save(content, tmp_path / f"{number}.pth")
        (tmp_path / f"{number}.pkl").write_bytes(pickle.dumps(content))
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(BronetError, match="must be a checkpoint of tensors"):
            import_published(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def changed(name: str, key: str, value: Tensor | None) -> dict[str, object]:
    content = layout(name)
    state = content.get("backbone", content)
    assert isinstance(state, OrderedDict)
    if value is None:
        del state[key]
    else:
        state[key] = value
    return content


def of_lot(blocks: int) -> dict[str, object]:
    """Return a LipConvNet of LOT layers as the published code has it: (c_out, stride^2 c_in, k, k) everywhere."""
    state, c_in, c_out = {}, 3, 4
    for stage in range(5):
        for block in range(blocks):
            stride = 2 if block == blocks - 1 else 1
            taps = 1 if (stage, stride) == (4, 2) else 3
            state[f"layer{stage + 1}.{block}.conv.weight"] = torch.ones(stride * c_out, stride**2 * c_in, taps, taps)
            state[f"layer{stage + 1}.{block}.conv.bias"] = torch.ones(stride * c_out)
            c_in = stride * c_out
        c_out = c_in
    return dict(state | {"last_layer.weight": torch.ones(100, c_in), "last_layer.bias": torch.ones(100)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed("bronet-m", "neck.bias", None), "lacks neck.bias"),
        (
            changed("bronet-m", "conv_1.weights", torch.ones(2)),
            "tensors of another network, the first is conv_1.weights",
        ),
        (changed("bronet-m", "conv.weights", torch.ones(2, 8, 8, 3, 3)), "square matrices"),
        (changed("bronet-m", "conv.weights", torch.ones(2, 8, 2)), "must have 5 dimensions"),
        (changed("bronet-m", "conv.weights", torch.ones(2, 0, 2, 3, 3)), "must hold numbers"),
        (changed("bronet-m", "head.bias", torch.ones(11)), "CIFAR-10"),
        (changed("bronet-m", "head.weight", torch.ones(10, 3)), "must have shape"),
        (changed("bronet-m", "neck.bias", torch.full((16,), torch.nan)), "must be finite"),
        (changed("bronet-m", "conv.gamma", torch.ones(1, 8, 1, 1, 1)), "conv.gamma .* must be of 2 layers"),
        (changed("bronet-m", "conv.bias", torch.ones(3, 8)), "conv.bias .* must be of 2 layers"),
        (changed("bronet-m", "conv.bias", torch.ones(())), "conv.bias .* must be of 2 layers"),
        (changed("bronet-m", "neck.bias", torch.ones(16).to_sparse()), "neck.bias .* ordinary tensor"),
        (changed("bronet-m", "neck.bias", torch.ones(16, device="meta")), "neck.bias .* ordinary tensor"),
        (
            changed("bronet-m", "conv.weights", torch.ones(1).expand(10**9, 8, 2, 3, 3)),
            "conv.weights .* ordinary tensor",
        ),
        (changed("lipconvnet", "layer3.0.activation.theta", torch.ones(1)), "tensors of another network"),
        (layout("bronet-m") | {"configs": {"model": {"use_lln": False}}}, "use_lln"),
        (layout("bronet-m") | {"configs": {"model": {"act_name": "ReLU"}}}, "act_name .* must be minmax"),
        (of_lot(1), "layer2.0.conv.weight .* must have more rows than columns, .* got 16 x 32"),
        (of_lot(2), "layer2.0.conv.weight .* must have more rows than columns, .* got 8 x 8"),
        ({"backbone": 3}, "something else"),
        ([1, 2], "something else"),
    ],
)
def test_what_is_no_such_network_is_refused_in_one_line(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(BronetError, match=message) as error:
        read_published(tmp_path / "file.pth")
    assert "\n" not in str(error.value)
