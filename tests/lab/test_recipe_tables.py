"""Every row of the paper that can be trained has a recipe that builds and takes a step; its numbers are data."""

from pathlib import Path

import pytest
import torch
from torch import nn

from bronet.data import ImageSet, MixedBatches, ResidentStream
from bronet.errors import BronetError
from bronet.models import CertifiableModel, build_model
from bronet.recipe import LipConvNetArchitecture, Recipe, dataset_spec, recipe_names
from bronet.recipe.architecture import Architecture, LipNeXtArchitecture
from bronet.run.folder import create_run
from bronet.training.learner import Training
from lab.recipes import TABLE_NETWORKS, ablations, sweeps, table_recipe
from lab.tables.published import paper_rows, paper_tables
from shrink import shrink

OWN = ("digits/quickstart", "cifar10/bronet-small")
SWEPT = [member.name for sweep in sweeps().values() for member in sweep.members()]
ALL = [*recipe_names(), *ablations(), *SWEPT]
# One member of each sweep is enough for a step: they differ in numbers only.
STEPPED = [*recipe_names(), *ablations(), *(next(sweep.members()).name for sweep in sweeps().values())]
MILLION = 1e6


@pytest.fixture(scope="module")
def sizes() -> dict[tuple[object, object], float]:
    """Parameters, in millions, of every network that occurs; each is built once, on the meta device."""
    recipes = [table_recipe(name) for name in ALL]
    found: dict[tuple[object, object], float] = {}
    for recipe in recipes:
        key = (recipe.model, recipe.data.name)
        if key not in found:
            model = build_model(recipe.model, recipe.data.spec(), device="meta")
            found[key] = sum(parameter.numel() for parameter in model.parameters()) / MILLION
    return found


def test_every_recipe_builds_with_the_parameters_the_paper_prints(sizes: dict[tuple[object, object], float]) -> None:
    checked = 0
    for row in paper_rows():
        if row.recipe not in ALL or not row.parameters:
            continue
        recipe = table_recipe(row.recipe)
        printed = float(row.parameters.removesuffix("M"))
        # Printed without decimals, rounded or cut (133.7 is "133M", 68.8 is "68M").
        assert abs(sizes[recipe.model, recipe.data.name] - printed) < 1, row
        checked += 1
    assert checked >= 14


def test_every_recipe_that_a_row_names_is_there() -> None:
    assert {row.recipe for row in paper_rows() if row.recipe} <= set(ALL)
    assert paper_tables() == (1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 16)
    for table in paper_tables():
        rows = paper_rows(table)
        assert any(row.recipe in ALL for row in rows), table
        assert len({(row.group, row.row) for row in rows}) == len(rows), table


def test_certified_accuracies_of_the_paper_fall_with_the_radius() -> None:
    for row in paper_rows():
        numbers = [value for value in (row.clean, *row.certified) if value is not None]
        assert numbers == sorted(numbers, reverse=True), row
        assert all(0 < value < 100 for value in numbers)


def test_a_row_is_what_the_paper_prints() -> None:
    (row,) = (row for row in paper_rows(1) if row.recipe == "cifar10/bronet-m")
    assert (row.clean, row.certified, row.parameters) == (81.2, (69.7, 55.6, 40.7), "37M")
    (swept,) = (row for row in paper_rows(14) if row.row == "beta=3")
    assert swept.certified == (35.68, 24.78, 16.66)
    with pytest.raises(BronetError, match=r"table must be one of 1, .*, got 8"):
        paper_rows(8)


def test_mixed_batches_are_the_papers() -> None:
    edm, edm2 = table_recipe("cifar10/bronet-l-edm"), table_recipe("imagenet/bronet-edm2")
    assert (edm.train.batch_size, edm.data.synthetic_batch, edm.optim.weight_decay) == (1024, 768, 0)
    assert (edm2.train.batch_size, edm2.data.synthetic_batch) == (1024, 512)


def test_the_grid_of_the_la_ablation_is_a_sweep() -> None:
    members = list(sweeps()["cifar100/la-grid"].members())
    assert len({(member.loss.temperature, member.loss.offset) for member in members}) == 24
    assert table_recipe(members[5].name) == members[5]
    with pytest.raises(BronetError, match=r"is a sweep: .*'cifar100/la-grid@"):
        table_recipe("cifar100/la-grid")
    with pytest.raises(BronetError, match=r"did you mean 'cifar100/la-beta@loss\.beta=3'"):
        table_recipe("cifar100/la-beta@loss.beta=33")
    with pytest.raises(BronetError, match="did you mean 'cifar100/lipconvnet-10-48-lot-cr'"):
        table_recipe("cifar100/lipconvnet-10-48-lot-cx")


def noise(recipe: Recipe, count: int) -> ImageSet:
    spec = recipe.data.spec()
    images = torch.randint(0, spec.scale + 1, (count, *spec.shape), dtype=torch.uint8)
    classes = tuple(str(number) for number in range(spec.classes))
    return ImageSet(recipe.data.name, images, torch.arange(count) % spec.classes, classes, spec.scale)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def stepped(recipe: Recipe, path: Path) -> tuple[CertifiableModel, list[torch.Tensor]]:
    """Train the shrunk recipe for its one epoch of one step; return the model and the weights before."""
    small = shrink(recipe)
    real = small.train.batch_size - small.data.synthetic_batch
    extra = ResidentStream(noise(small, small.data.synthetic_batch)) if small.data.synthetic_batch else None
    batches = MixedBatches(small, ResidentStream(noise(small, real)), extra, device=torch.device("cpu"))
    model = build_model(small.model, small.data.spec())
    before = weights(model)
    Training(small, model, batches, create_run(path, small)).fit(progress=False)
    return model, before


def signature(recipe: Recipe) -> tuple[object, ...]:
    """What makes two shrunk recipes run through different code; depth and rank do not."""
    small = shrink(recipe)
    model = small.model
    shape: tuple[object, ...]
    if isinstance(model, LipConvNetArchitecture):
        shape = (model.backbone, model.head, model.depth > 5)
    elif isinstance(model, LipNeXtArchitecture):
        shape = (model.family, model.mixing)
    else:
        shape = (model.backbone, model.dense, model.neck, model.regularized_depth, model.keep_padding)
    return (small.data.name, *shape, small.loss, small.optim.name, small.data.synthetic)


ONE_EACH = list({signature(table_recipe(name)): name for name in reversed(STEPPED)}.values())


@pytest.mark.parametrize("name", ONE_EACH)
def test_a_shrunk_recipe_takes_a_step(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model, before = stepped(table_recipe(name), tmp_path / "run")
    after = weights(model)
    assert all(bool(tensor.isfinite().all()) for tensor in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPPED)
def test_every_shrunk_recipe_takes_a_step(tmp_path: Path, name: str) -> None:
    stepped(table_recipe(name), tmp_path / "run")


def kind(model: Architecture) -> tuple[str, str]:
    """What the layers of a network are."""
    return (model.family, model.mixing if isinstance(model, LipNeXtArchitecture) else model.backbone)


def test_shrinking_keeps_what_the_code_branches_on() -> None:
    for name in STEPPED:
        recipe = table_recipe(name)
        small = shrink(recipe)
        assert (small.loss, small.optim.name, kind(small.model)) == (recipe.loss, recipe.optim.name, kind(recipe.model))
        assert bool(small.data.synthetic_batch) == bool(recipe.data.synthetic_batch)


COUNTS = [  # millions of parameters in Tables 1 and 3
    ("soc-20", "cifar10", 27),
    ("lot-20", "cifar10", 18),
    ("cayley-large", "cifar10", 21),
    ("cpl-xl", "cifar10", 236),
    ("aol-large", "cifar10", 136),
    ("sll-xl", "cifar10", 236),
    ("sandwich", "cifar100", 26),
    ("liresnet-imagenet", "imagenet", 98),
    ("liresnet-lot", "cifar10", 59),
    ("liresnet-cayley", "cifar10", 68),
    ("liresnet-cholesky", "cifar10", 68),
    ("liresnet-sll", "cifar10", 83),
    ("liresnet-soc", "cifar10", 83),
]


@pytest.mark.parametrize(("name", "dataset", "expected"), COUNTS)
def test_a_network_of_the_tables_has_the_papers_parameter_count(name: str, dataset: str, expected: float) -> None:
    model = build_model(TABLE_NETWORKS[name], dataset_spec(dataset), device="meta")
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(expected, rel=0.1)
