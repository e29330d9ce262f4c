"""The second verifier confirms what bronet proves, refuses what it does not, and bounds what it says it bounds."""

import ast
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from bronet.data import ImageSet, load_dataset
from bronet.data.load import sample_rows
from bronet.graph.network import prove
from bronet.models import CertifiableModel, build_model
from bronet.pretrained import find_network
from bronet.recipe import Recipe, dataset_spec, named_recipe, override, to_text
from bronet.records import write_rows
from bronet.run.certificate import Row, read_certificate_rows
from bronet.run.weights import save_weights
from jacobian import jacobian
from lab.packed import unpacked
from tiny_run import tiny_recipe

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "verifier" / "verifier.py"
RESULTS = ROOT / "lab" / "results"
MOST_LINES = 500
CIFAR = {
    "bronet-s-fast/cifar10": "cifar10-bronet-s-fast/seed-0",
    "lipconvnet-10-32/cifar10": "cifar10-lipconvnet-10-32/la-seed-0",
}
"""Networks trained on CIFAR-10, and the published rows of their certificates."""
BRONETS = {
    "plain": (),
    "bro everywhere": ("model.neck=bro", "model.dense=bro"),
    "cholesky": ("model.dense=cholesky", "model.dense_depth=2"),
    "circular": ("model.padding_mode=circular", "model.centring=false"),
}
LIPCONVNETS = {
    "strided last": ("model.strided_last=true", "model.depth=5", "model.head=bro"),
    "strided first": ("model.strided_last=false", "model.head=lln"),
    "pointwise": ("model.kernel=1", "model.depth=5", "model.head=lln"),
}
CONFIRMED, NOT_CONFIRMED, REFUSED = 0, 1, 2


def load_verifier() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verifier", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verifier"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


verifier = load_verifier()
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """The four files that the verifier reads."""

    weights: Path
    recipe: Path
    certificate: Path
    images: Path

    def verify(self) -> int:
        """Return the status with which the verifier ends."""
        words = ["verifier.py", *map(str, (self.weights, self.recipe, self.certificate, "--images", self.images))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            return int(verifier.main())

    def with_rows(self, path: Path, change: Callable[[Row], Row]) -> "Case":
        """Return the case with every row changed."""
        write_rows(Row, path, [change(row) for row in read_certificate_rows(self.certificate)])
        return replace(self, certificate=path)

    def with_weights(self, path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> "Case":
        """Return the case with other weights in its file."""
        tensors = {name: tensor.clone() for name, tensor in load_file(self.weights).items()}
        change(tensors)
        save_file(tensors, path)
        return replace(self, weights=path)


def export(path: Path, images: ImageSet, index: tuple[int, ...]) -> Path:
    """Write the first images as the verifier reads them, with the rows that they have in the certificate."""
    count = len(index)
    np.savez(path, images=images.images[:count].numpy(), labels=images.labels[:count].numpy(), index=np.array(index))
    return path


def certified(folder: Path, recipe: Recipe, model: CertifiableModel, images: ImageSet) -> Case:
    """Write weights, recipe, bronet's certificate and images of a network."""
    folder.mkdir(exist_ok=True)
    case = Case(*(folder / name for name in ("model.safetensors", "recipe.yaml", "certificate.csv", "images.npz")))
    save_weights(case.weights, model.state_dict(), recipe=recipe)
    case.recipe.write_text(to_text(recipe), encoding="utf-8")
    result = prove(model).certify(images.pixels(torch.arange(len(images)), dtype=torch.float64))
    columns = (images.labels, result.prediction, result.margin, result.radius)
    write_rows(
        Row,
        case.certificate,
        [
            Row(index=i, label=label, prediction=t, correct=label == t, margin=margin, radius=radius, naive_radius=0.0)
            for i, (label, t, margin, radius) in enumerate(zip(*(column.tolist() for column in columns), strict=True))
        ],
    )
    export(case.images, images, tuple(range(len(images))))
    return case


def randomised(model: CertifiableModel, seed: int = 0) -> CertifiableModel:
    """Give every parameter and running mean random values of the size that training gives them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.add_(noise * (0.3 if tensor.ndim == 1 else 0.5 * float(tensor.std()) + 0.02))
    return model.eval()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    network, folder = find_network("bronet-digits/digits"), tmp_path_factory.mktemp("digits")
    images = export(folder / "images.npz", load_dataset("digits", "test"), tuple(range(500)))
    with unpacked(RESULTS / "digits") as run:
        yield Case(network.weights, run / "recipe.yaml", run / "certificate.csv", images)


@pytest.fixture(scope="module")
def few(digits: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    images = load_dataset("digits", "test")
    return replace(digits, images=export(tmp_path_factory.mktemp("few") / "images.npz", images, tuple(range(20))))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Case:
    recipe = tiny_recipe()
    model = randomised(build_model(recipe.model, dataset_spec("digits"), seed=0))
    images = load_dataset("digits", "test").subset(torch.arange(40))
    return certified(tmp_path_factory.mktemp("tiny"), recipe, model, images)


def test_every_row_of_the_digits_is_confirmed(digits: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert digits.verify() == CONFIRMED
    assert "500 of 500" in capsys.readouterr().out
    assert replace(digits, recipe=digits.weights.parent / "config.json").verify() == CONFIRMED


@pytest.mark.parametrize(
    "name", ["bronet-s-fast/cifar10", pytest.param("lipconvnet-10-32/cifar10", marks=pytest.mark.slow)]
)
def test_images_of_the_networks_for_cifar_are_confirmed(name: str, tmp_path: Path) -> None:
    network = find_network(name)
    images = export(tmp_path / "images.npz", load_dataset("cifar10", "sample"), tuple(sample_rows()[:20, 0].tolist()))
    with unpacked(RESULTS / CIFAR[name]) as run:
        assert Case(network.weights, run / "recipe.yaml", run / "certificate.csv", images).verify() == CONFIRMED


@pytest.mark.parametrize("kind", BRONETS)
def test_bronets_of_all_kinds_are_confirmed(kind: str, tmp_path: Path) -> None:
    recipe = tiny_recipe(*BRONETS[kind])
    model = randomised(build_model(recipe.model, dataset_spec("digits"), seed=0))
    assert (
        certified(tmp_path, recipe, model, load_dataset("digits", "test").subset(torch.arange(20))).verify()
        == CONFIRMED
    )


@pytest.mark.parametrize("kind", LIPCONVNETS)
def test_lipconvnets_of_all_kinds_are_confirmed(kind: str, tmp_path: Path) -> None:
    recipe = override(named_recipe("cifar10/lipconvnet-10-32"), ["model.width=2", *LIPCONVNETS[kind]])
    model = randomised(build_model(recipe.model, dataset_spec("cifar10"), seed=0))
    images = load_dataset("cifar10", "sample").subset(torch.arange(5))
    assert certified(tmp_path, recipe, model, images).verify() == CONFIRMED


@pytest.mark.parametrize("row", [0, 499])
def test_a_radius_enlarged_by_a_millionth_is_not_confirmed(
    digits: Case, tmp_path: Path, row: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def enlarged(old: Row) -> Row:
        return replace(old, radius=old.radius * (1 + 1e-6)) if old.index == row else old

    assert digits.with_rows(tmp_path / "rows.csv", enlarged).verify() == NOT_CONFIRMED
    assert f"image {row} " in (told := capsys.readouterr().out)
    assert "499 of 500" in told


@pytest.mark.parametrize("radius", [float("inf"), 1e300])
def test_no_infinite_radius_is_confirmed(tiny: Case, tmp_path: Path, radius: float) -> None:
    assert tiny.with_rows(tmp_path / "rows.csv", lambda row: replace(row, radius=radius)).verify() == NOT_CONFIRMED


@pytest.mark.parametrize("radius", ["nan", "-0.1"])
def test_no_senseless_radius_is_confirmed(tiny: Case, tmp_path: Path, radius: str) -> None:
    header, *lines = tiny.certificate.read_text().splitlines()
    cells = [line.split(",") for line in lines]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join([header, *(",".join([*row[:5], radius, row[6]]) for row in cells)]) + "\n")
    assert replace(tiny, certificate=path).verify() == NOT_CONFIRMED


def test_another_class_is_not_confirmed(digits: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def other(row: Row) -> Row:
        prediction = (row.prediction + 1) % 10
        return replace(row, prediction=prediction, correct=prediction == row.label, radius=0.0)

    assert digits.with_rows(tmp_path / "rows.csv", other).verify() == NOT_CONFIRMED
    assert "0 of 500" in capsys.readouterr().out


def test_another_label_is_not_confirmed(tiny: Case, tmp_path: Path) -> None:
    images = dict(np.load(tiny.images))
    images["labels"][3] = (images["labels"][3] + 1) % 10
    np.savez(tmp_path / "images.npz", **images)
    assert replace(tiny, images=tmp_path / "images.npz").verify() == NOT_CONFIRMED


@pytest.mark.parametrize(
    "name", ["stem.linear.weight", "backbone.2.linear.weight", "backbone.1.shift.mean", "head.bias"]
)
def test_one_changed_number_among_the_weights_is_noticed(few: Case, tmp_path: Path, name: str) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[0] *= 1 + 2.0**-7  # the last place of a bf16 number

    assert few.with_weights(tmp_path / "model.safetensors", change).verify() == NOT_CONFIRMED


@pytest.mark.parametrize("size", [1e6, 1e17])
@pytest.mark.parametrize("name", ["stem.shift.bias", "backbone.0.linear.weight", "dense.0.shift.bias", "head.bias"])
def test_huge_numbers_among_the_weights_do_not_fool_it(few: Case, tmp_path: Path, name: str, size: float) -> None:
    """The attack of Murray (2603.13334): numbers so large that rounding decides what a program computes."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name].view(-1)[0] += size

    assert few.with_weights(tmp_path / "model.safetensors", change).verify() != CONFIRMED


def test_a_margin_that_rounding_made_is_not_confirmed(few: Case, tmp_path: Path) -> None:
    """Behind a bias of 1e17 logits are multiples of 16: a program sees margins, and radii, that N does not have."""
    case = few.with_weights(tmp_path / "model.safetensors", lambda tensors: tensors["head.bias"].add_(1e17))
    assert case.with_rows(tmp_path / "rows.csv", lambda row: replace(row, radius=1e-3)).verify() == NOT_CONFIRMED


@pytest.mark.parametrize("name", ["stem.shift.bias", "stem.linear.weight", "head.bias"])
def test_both_verifiers_agree_about_tampered_networks(name: str, tmp_path: Path) -> None:
    recipe = tiny_recipe()
    model = randomised(build_model(recipe.model, dataset_spec("digits"), seed=0))
    with torch.no_grad():
        model.get_parameter(name).mul_(1e6)
    assert (
        certified(tmp_path, recipe, model, load_dataset("digits", "test").subset(torch.arange(20))).verify()
        == CONFIRMED
    )


def changed_recipe(case: Case, path: Path, old: str, new: str) -> Case:
    text = case.recipe.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return replace(case, recipe=path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("keep_padding: false", "keep_padding: true"),
        ("  depth: 1\n", "  depth: 2\n"),
        ("centring: true", "centring: false"),
        ("backbone: bro", "backbone: cayley"),
        ("stem_stride: 1", "stem_stride: true"),
        ("  depth: 1\n", "  depth: 1\n  depth: 1\n"),
        ("  depth: 1\n", "  depth: 1\n  doubled: 1\n"),
        ("  depth: 1\n", "  depth: &one 1\n"),
        ("family: bronet", "family: lipconvnet"),
    ],
)
def test_a_recipe_that_is_not_that_of_the_weights_or_not_known_is_refused(
    tiny: Case, tmp_path: Path, old: str, new: str
) -> None:
    assert changed_recipe(tiny, tmp_path / "recipe.yaml", old, new).verify() == REFUSED


@pytest.mark.parametrize("size", [0, 7, 100, -3])
def test_files_that_are_cut_short_are_refused(tiny: Case, tmp_path: Path, size: int) -> None:
    for name in ("weights", "images"):
        path = tmp_path / name
        path.write_bytes(getattr(tiny, name).read_bytes()[:size])
        assert replace(tiny, **{name: path}).verify() == REFUSED


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(tiny: Case, tmp_path: Path, value: float) -> None:
    case = tiny.with_weights(tmp_path / "model.safetensors", lambda tensors: tensors["head.bias"].fill_(value))
    assert case.verify() == REFUSED


def test_a_tensor_too_many_is_refused(tiny: Case, tmp_path: Path) -> None:
    case = tiny.with_weights(tmp_path / "model.safetensors", lambda tensors: tensors.update(extra=torch.ones(1)))
    assert case.verify() == REFUSED


def test_it_is_one_short_file_of_numpy_and_the_standard_library() -> None:
    text = SOURCE.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(text)))
    found = {name.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for name in node.names}
    found |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert found <= sys.stdlib_module_names | {"numpy"}
    assert len(text.splitlines()) <= MOST_LINES


def test_it_runs_where_neither_torch_nor_bronet_can_be_imported(tiny: Case) -> None:
    program = (
        "import runpy, sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'bronet', 'scipy', 'yaml', 'safetensors', 'lab')))\n"
        f"sys.argv[0] = {str(SOURCE)!r}\n"
        f"runpy.run_path({str(SOURCE)!r}, run_name='__main__')\n"
    )
    words = [str(tiny.weights), str(tiny.recipe), str(tiny.certificate), "--images", str(tiny.images)]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (CONFIRMED, "")
    assert "40 of 40" in done.stdout


# Its parts, against exact or far more precise arithmetic.


def fractions(A: Array) -> list[list[Fraction]]:
    return [[Fraction(value) for value in row] for row in A.tolist()]


@pytest.mark.parametrize("seed", range(5))
def test_a_product_errs_by_no_more_than_it_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    A = random.standard_normal((4, 9)) * 10.0 ** random.integers(-8, 8, (4, 9))
    B = random.standard_normal((9, 6)) * 10.0 ** random.integers(-8, 8, (9, 6))
    C, error = verifier.product(A, B, 3)  # two columns for each of three images
    exact = [
        [sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*fractions(B), strict=True)]
        for row in fractions(A)
    ]
    off = [
        [(c - e) ** 2 for c, e in zip(row, true, strict=True)] for row, true in zip(fractions(C), exact, strict=True)
    ]
    for image in range(3):
        assert sum(row[j] for row in off for j in (image, image + 3)) <= Fraction(error[image]) ** 2
    assert (error <= 1e-14 * np.abs(A).max() * np.abs(B).max()).all()


@pytest.mark.parametrize("rank", [1, 3, 12])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_largest_eigenvalue_is_bounded_closely(rank: int, scale: float) -> None:
    A = np.random.default_rng(rank).standard_normal((12, rank))
    M = scale * (A @ A.T)
    true = max(mpmath.eigsy(mpmath.matrix(M.tolist()), eigvals_only=True))
    assert true <= verifier.largest_eigenvalue(M, 0.0) <= true * (1 + 1e-11)


def applied(layer: Callable[..., None], x: Array, *arguments: object) -> object:
    enclosure = verifier.Enclosure(x, np.zeros(x.shape[-1]), 1.0)
    layer(enclosure, *arguments)
    return enclosure


def dense_jacobian(layer: Callable[..., None], shape: tuple[int, ...], *arguments: object) -> Array:
    """Return the matrix of a linear layer of the verifier: all unit vectors are its images."""
    inputs = int(np.prod(shape))
    out = applied(layer, np.eye(inputs).reshape(*shape, inputs), *arguments).x  # type: ignore[attr-defined]
    return out.reshape(-1, inputs)


@pytest.mark.parametrize(("stride", "padding", "k"), [(1, 1, 3), (2, 2, 5), (2, 0, 2), (1, 0, 3), (3, 1, 3)])
def test_the_stem_s_constant_is_the_norm_of_its_jacobian(stride: int, padding: int, k: int) -> None:
    kernel = np.random.default_rng(k).standard_normal((6, 2, k, k))
    J = dense_jacobian(verifier.strided_convolution, (2, 7, 7), kernel, stride, padding)
    bound = applied(verifier.strided_convolution, np.zeros((2, 7, 7, 1)), kernel, stride, padding).lipschitz  # type: ignore[attr-defined]
    conv = torch.nn.Conv2d(2, 6, k, stride=stride, padding=padding, bias=False, dtype=torch.float64)
    conv.weight.data = torch.from_numpy(kernel)
    norm = np.linalg.norm(jacobian(conv, (2, 7, 7)).numpy(), 2)
    assert norm * (1 - 1e-12) <= bound <= norm * (1 + 1e-11)
    assert np.abs(J - jacobian(conv, (2, 7, 7)).numpy()).max() < 1e-13


def exact_reflector(V: mpmath.matrix, ridge: float) -> mpmath.matrix:
    """Return I - 2 V (V*V + e I)^-1 V* of a complex V at the precision of mpmath."""
    gram = V.H * V
    e = mpmath.mpf(ridge) * sum(gram[i, i].real for i in range(V.cols)) / V.cols
    return mpmath.eye(V.rows) - 2 * V * (gram + e * mpmath.eye(V.cols)) ** -1 * V.H


def textbook_convolution(V: Array, x: Array, N: int, ridge: float) -> list[list[list[mpmath.mpf]]]:
    """Return the padded, reflected and cropped image (channel, row, column), by definition, at mpmath's precision."""
    m, n, k, _ = V.shape
    s = x.shape[1]

    def turn(a: int) -> mpmath.mpc:
        return mpmath.expjpi(mpmath.mpf(-2 * a) / N)

    y = [[[mpmath.mpf(0)] * s for _ in range(s)] for _ in range(m)]
    for f in range(N):
        for g in range(N):
            A = mpmath.matrix(m, n)
            for i in range(m):
                for j in range(n):
                    A[i, j] = sum(V[i, j, a, b] * turn(f * a + g * b) for a in range(k) for b in range(k))
            u = mpmath.matrix(
                [sum(x[c, a, b] * turn(f * a + g * b) for a in range(s) for b in range(s)) for c in range(m)]
            )
            w = exact_reflector(A, ridge) * u
            for c in range(m):
                for a in range(s):
                    for b in range(s):
                        y[c][a][b] += (w[c] * turn(-f * a - g * b)).real / N**2
    return y


@pytest.mark.parametrize(("padding", "scale"), [(0, 1.0), (1, 1.0), (1, 1e4)])
def test_a_reflector_convolution_encloses_the_exact_one(padding: int, scale: float) -> None:
    random = np.random.default_rng(padding)
    V, x = random.standard_normal((4, 2, 3, 3)), random.standard_normal((4, 2, 2, 1))
    V[:, 1] = V[:, 0] + V[:, 1] / scale  # nearly parallel columns
    found = applied(verifier.reflector, x, (V, 0 * V), 4, 1e-7, padding)
    with mpmath.workdps(50):
        true = textbook_convolution(V, x[..., 0], 2 + 2 * padding, 1e-7)
        off = mpmath.sqrt(sum((true[c][a][b] - found.x[c, a, b, 0]) ** 2 for c, a, b in np.ndindex(4, 2, 2)))  # type: ignore[attr-defined]
    assert off <= found.error[0] <= 1e-12 * scale  # type: ignore[attr-defined]
    J = dense_jacobian(verifier.reflector, (4, 2, 2), (V, 0 * V), 4, 1e-7, padding)
    assert np.linalg.norm(J, 2) <= 1 + 1e-9


def exact(A: Array) -> mpmath.matrix:
    return mpmath.matrix(A.tolist())


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_dense_reflector_encloses_the_exact_one(scale: float) -> None:
    random = np.random.default_rng(1)
    V, x = random.standard_normal((7, 3)), random.standard_normal((5, 2))
    V[:, 2] = V[:, 1] + V[:, 2] / scale
    found = applied(verifier.reflector, x, (V, 0 * V), 6, 1e-5)
    with mpmath.workdps(50):
        true = exact_reflector(exact(V), 1e-5) * exact(np.pad(x, ((0, 2), (0, 0))))
        for image in range(2):
            off = mpmath.sqrt(sum((true[i, image] - found.x[i, image]) ** 2 for i in range(6)))  # type: ignore[attr-defined]
            assert off <= found.error[image] <= 1e-12 * scale  # type: ignore[attr-defined]


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_cholesky_map_is_enclosed_and_its_norm_bounded_closely(scale: float) -> None:
    random = np.random.default_rng(2)
    V, x = random.standard_normal((4, 6)), random.standard_normal((6, 2))
    V[3] = V[2] + V[3] / scale
    found = applied(verifier.cholesky_map, x, (V, 0 * V), 4, 0.0)
    with mpmath.workdps(50):
        gram = exact(V) * exact(V).T
        e = mpmath.mpf(1e-3) * sum(gram[i, i] for i in range(4)) / 4
        W = mpmath.cholesky(gram + e * mpmath.eye(4)) ** -1 * exact(V)
        norm = mpmath.sqrt(max(mpmath.eigsy(W * W.T, eigvals_only=True)))
        for image in range(2):
            off = mpmath.sqrt(sum(value**2 for value in W * exact(x)[:, image] - exact(found.x)[:, image]))  # type: ignore[attr-defined]
            assert off <= found.error[image] <= 1e-12 * scale  # type: ignore[attr-defined]
        assert norm <= found.lipschitz <= norm * (1 + 1e-11)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["zero", "duplicated"])
def test_a_reflector_without_full_rank_is_enclosed_or_refused(kind: str) -> None:
    V = np.zeros((6, 2)) if kind == "zero" else np.ones((6, 2))
    x = np.random.default_rng(0).standard_normal((6, 1))
    if kind == "zero":
        with pytest.raises(ValueError, match="positive"):
            applied(verifier.reflector, x, (V, V), 6, 1e-7)
        return
    found = applied(verifier.reflector, x, (V, 0 * V), 6, 1e-7)
    with mpmath.workdps(50):
        off = mpmath.norm(exact_reflector(exact(V), 1e-7) * exact(x) - exact(found.x))  # type: ignore[attr-defined]
    assert off <= found.error[0]  # type: ignore[attr-defined]


def test_an_activation_sorts_channels_and_a_shift_is_enclosed() -> None:
    x, shift = np.random.default_rng(3).standard_normal((4, 2, 2, 3)), np.array([0.1, 0.2, -0.3, 1e9])
    found = applied(verifier.activated, x, shift)
    y = np.sort((x + shift[:, None, None, None]).reshape(2, 2, -1), axis=0)[::-1]
    assert (found.x.reshape(2, 2, -1) == y).all()  # type: ignore[attr-defined]
    assert (found.error >= 2.0**-53 * 1e9).all()  # type: ignore[attr-defined]
