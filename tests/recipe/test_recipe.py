"""Recipes: exact text round trips, and one clear line for every mistake."""

import dataclasses
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bronet.errors import BronetError
from bronet.recipe import (
    BRONetArchitecture,
    DataRecipe,
    LipConvNetArchitecture,
    LossRecipe,
    OptimRecipe,
    Recipe,
    TrainRecipe,
    differing_keys,
    from_text,
    named_recipe,
    override,
    parse_budget,
    recipe_names,
    to_text,
)
from bronet.recipe.architecture import NAMED, parse_rank

MINIMAL = """
name: mine
data: {name: digits}
model: bronet-digits
loss: {name: la}
optim: {lr: 1e-3}
train: {epochs: 2, batch_size: 64}
"""

few_examples = settings(max_examples=40, deadline=None, derandomize=True)


def one_line(error: pytest.ExceptionInfo[BronetError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", recipe_names())
def test_every_named_recipe_survives_the_round_trip_through_text(name: str) -> None:
    recipe = named_recipe(name)
    assert recipe.name == name
    assert from_text(to_text(recipe)) == recipe
    assert to_text(from_text(to_text(recipe))) == to_text(recipe)


@few_examples
@given(
    lr=st.floats(1e-12, 1e3),
    clip=st.none() | st.floats(1e-6, 1e6),
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.isprintable),
    milestones=st.sets(st.integers(1, 500)).map(lambda epochs: tuple(sorted(epochs))),
)
@example(lr=1e-3, clip=1e12, name="1e-3", milestones=())
@example(lr=1e-3, clip=None, name="no", milestones=(1,))
def test_round_trip_is_exact_for_any_valid_values(
    lr: float, clip: float | None, name: str, milestones: tuple[int, ...]
) -> None:
    optim = OptimRecipe(lr=lr, clip_norm=clip, milestones=milestones)
    recipe = dataclasses.replace(named_recipe("digits/quickstart"), name=name, optim=optim)
    assert from_text(to_text(recipe)) == recipe


def test_muon_with_a_linear_schedule_survives_the_round_trip() -> None:
    settings = ["optim.name=muon", "optim.momentum=0.95", "optim.schedule=linear"]
    recipe = override(named_recipe("digits/quickstart"), settings)
    assert from_text(to_text(recipe)) == recipe
    assert (recipe.optim.name, recipe.optim.momentum, recipe.optim.schedule) == ("muon", 0.95, "linear")
    assert OptimRecipe(name="muon", lr=1e-3).momentum == 0.9


def test_text_holds_every_default_in_a_fixed_order() -> None:
    text = to_text(from_text(MINIMAL))
    for field in dataclasses.fields(LossRecipe):
        assert f"  {field.name}: " in text
    sections = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert sections == ["data", "model", "loss", "optim", "train", "certify"]


def test_a_model_may_be_named() -> None:
    recipe = from_text(MINIMAL)
    assert isinstance(recipe.model, BRONetArchitecture)
    assert recipe.model.width == 32
    with pytest.raises(BronetError, match="unknown model 'bronet-digit'; did you mean 'bronet-digits'"):
        from_text(MINIMAL.replace("bronet-digits", "bronet-digit"))


def test_a_model_table_is_told_apart_by_its_family() -> None:
    table = "model: {family: lipconvnet, depth: 15}"
    recipe = from_text(MINIMAL.replace("model: bronet-digits", table))
    assert recipe.model == LipConvNetArchitecture(depth=15)
    with pytest.raises(
        BronetError, match=r"family must be one of bronet, lipconvnet, stack, lipnext, own, got 'resnet'"
    ):
        from_text(MINIMAL.replace("model: bronet-digits", "model: {family: resnet}"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("lr: 1e-3", "lr: 1e-3, weigth_decay: 0", ["optim.weigth_decay", "optim.weight_decay"]),
        ("name: mine", "name: mine\nsead: 1", ["sead", "did you mean"]),
        ("lr: 1e-3", "lr: fast", ["optim.lr", "number", "'fast'"]),
        ("lr: 1e-3", "lr: true", ["optim.lr", "number", "True"]),
        ("lr: 1e-3", "lr: .nan", ["optim.lr", "nan"]),
        ("lr: 1e-3", "lr: 1e300", ["optim.lr", "1,000", "1e+300"]),
        ("lr: 1e-3", "lr: -1", ["optim.lr", "1e-12", "-1"]),
        ("epochs: 2", "epochs: 1:30", ["train.epochs", "whole number", "'1:30'"]),
        ("epochs: 2", "epochs: 010", ["train.epochs", "whole number", "'010'"]),
        ("lr: 1e-3", "lr: 1:30.5", ["optim.lr", "number", "'1:30.5'"]),
        ("epochs: 2", f"epochs: 1{400 * '0'}", ["train.epochs", "1,000,000", "10000"]),
        (
            "batch_size: 64",
            "batch_size: 18446744073709551616",
            ["train.batch_size", "1,000,000", "18446744073709551616"],
        ),
        ("bronet-digits", "{family: bronet, width: 9223372036854775808}", ["model.width", "65,536"]),
        ("bronet-digits", "{family: bronet, depth: 10000000}", ["model.depth", "1,000", "10000000"]),
        ("bronet-digits", "{family: lipconvnet, depth: 0}", ["model.depth", "5", "0"]),
        ("lr: 1e-3", "momentum: 0.9", ["optim.lr", "missing"]),
        ("epochs: 2", "epochs: 2.5", ["train.epochs", "whole number", "2.5"]),
        ("epochs: 2", "epochs: 0", ["train.epochs", "at least 1", "0"]),
        ("name: la", "name: hinge", ["loss.name", "la, ce, ce+cr", "'hinge'"]),
        ("name: la", "name: la, emma: 1", ["loss.emma", "true or false", "1"]),
        ("name: la", "name: la, emma_eps: 0.5", ["loss.emma_eps", "text", "0.5", "quotes"]),
        ("name: la", "name: la, emma_eps: 1/0", ["loss.emma_eps", "zero", "1/0"]),
        ("name: la", "name: la, emma_eps: 1/255", ["loss.emma_start_eps", "at most", "3.6/255"]),
        ("name: digits", "name: digit", ["digit", "digits"]),
        ("name: digits", "name: digits, border: grey", ["data.border", "black, edge, mirror", "'grey'"]),
        ("name: digits", "name: digits, randaugment_ops: some", ["data.randaugment_ops", "all, photometric", "'some'"]),
        ("lr: 1e-3", "lr: 1e-3, warmup_epochs: 3", ["optim.warmup_epochs", "train.epochs = 2", "3"]),
        ("lr: 1e-3", "lr: 1e-3, schedule: linear, warmup_epochs: 3", ["optim.warmup_epochs", "train.epochs = 2", "3"]),
        ("lr: 1e-3", "lr: 1e-3, schedule: step", ["optim.schedule", "cosine, linear, milestones", "'step'"]),
        ("lr: 1e-3", "lr: 1e-3, name: moun", ["optim.name", "nadam, sgd, muon", "'moun'"]),
        ("lr: 1e-3", "lr: 1e-3, milestones: 3", ["optim.milestones", "list", "3"]),
        ("lr: 1e-3", "lr: 1e-3, milestones: [5, 3]", ["optim.milestones", "[5, 3]"]),
        ("lr: 1e-3", "lr: 1e-3, lr: 2e-3", ["lr", "twice"]),
        ("{lr: 1e-3}", "7", ["optim", "table", "7"]),
        ("{lr: 1e-3}", "&a {lr: 1e-3}\nextra: *a", ["aliases"]),
        ("name: mine", "name: !!python/object/apply:os.system [ls]", ["YAML"]),
        ("name: mine", 'name: ""', ["name", "printable", "''"]),
        ("name: mine", "2: mine", ["key", "text", "2"]),
    ],
)
def test_a_mistake_is_refused_in_one_line_that_names_it(old: str, new: str, words: list[str]) -> None:
    assert old in MINIMAL
    with pytest.raises(BronetError) as error:
        from_text(MINIMAL.replace(old, new, 1))
    text = one_line(error)
    for word in words:
        assert word in text


HOSTILE = ["[" * 1000, "9" * 5000, "2020-13-45", "a: {b: {<<: 1}}", "x" * 70_000, "!!binary /", "? [a]\n: b", "\0"]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(BronetError) as error:
        from_text(text)
    one_line(error)


@few_examples
@given(st.text(max_size=100))
def test_no_text_makes_anything_but_a_clear_error(text: str) -> None:
    with pytest.raises(BronetError) as error:
        from_text(text)
    one_line(error)


def test_override_replaces_settings_and_validates_the_result() -> None:
    recipe = override(
        named_recipe("cifar10/bronet-m"),
        [
            "optim.lr=2e-3",
            "optim.clip_norm=null",
            "train.seed=7",
            "certify.eps=[36/255, '1']",
            "name=mine",
            "loss.emma_eps=1",
        ],
    )
    assert (recipe.optim.lr, recipe.optim.clip_norm, recipe.train.seed) == (2e-3, None, 7)
    assert (recipe.certify.eps, recipe.name, recipe.loss.emma_eps) == (("36/255", "1"), "mine", "1")
    assert override(recipe, ["model=liresnet"]).model == NAMED["liresnet"]


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("optim.rl=1", ["optim.rl", "optim.lr"]),
        ("optim.lr", ["key=value"]),
        ("optim.lr=fast", ["optim.lr", "number"]),
        ("optim=3", ["unknown recipe key optim"]),
        ("train.epochs=10", ["optim.warmup_epochs", "train.epochs = 10"]),
        ("model=bronet-xl", ["bronet-xl", "bronet-l"]),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(assignment: str, words: list[str]) -> None:
    with pytest.raises(BronetError) as error:
        override(named_recipe("cifar10/bronet-m"), [assignment])
    text = one_line(error)
    for word in words:
        assert word in text


def test_differing_keys_are_those_that_differ() -> None:
    recipe = named_recipe("cifar10/bronet-m")
    assert differing_keys(recipe, recipe) == []
    assert differing_keys(recipe, override(recipe, ["train.seed=1", "optim.lr=1"])) == ["optim.lr", "train.seed"]
    assert "model.activation" in differing_keys(recipe, override(recipe, ["model=lipconvnet-5-32"]))


@pytest.mark.parametrize(("text", "value"), [("36/255", 36 / 255), ("0.5", 0.5), ("3.6/255", 3.6 / 255), ("0", 0)])
def test_budgets_are_numbers_or_fractions(text: str, value: float) -> None:
    assert parse_budget(text) == value


@pytest.mark.parametrize("text", ["", "-1", "1e9", "nan", "1/0", "36 / 255", "a/b", "1/2/3", "²"])
def test_what_is_no_budget_is_refused(text: str) -> None:
    with pytest.raises(BronetError, match=r"^budget must"):
        parse_budget(text)


def test_an_unknown_recipe_names_the_nearest_one() -> None:
    with pytest.raises(BronetError, match="did you mean 'cifar10/bronet-m'"):
        named_recipe("cifar10/bronetm")


def test_the_catalogue_holds_the_papers_settings() -> None:
    bronet = named_recipe("cifar100/bronet-l")
    assert bronet.train == TrainRecipe(epochs=800, batch_size=256)
    assert bronet.optim == OptimRecipe(lr=1e-3, weight_decay=4e-5, warmup_epochs=20)
    assert bronet.loss == LossRecipe(emma=True)
    assert bronet.data == DataRecipe(name="cifar100", crop_padding=4, flip=True, randaugment_probability=0.5)
    imagenet = named_recipe("imagenet/bronet")
    assert (imagenet.train.epochs, imagenet.train.batch_size, imagenet.optim.weight_decay) == (400, 1024, 0)
    assert imagenet.loss.emma_eps == "72/255"


def test_the_catalogue_holds_every_lipconvnet_of_table_16() -> None:
    for dataset in ("cifar10", "cifar100", "tiny-imagenet"):
        for depth in (5, 10, 15, 20):
            for width in (32, 48, 64):
                recipe = named_recipe(f"{dataset}/lipconvnet-{depth}-{width}")
                assert recipe.model == LipConvNetArchitecture(depth=depth, width=width)
                assert recipe.loss.offset == pytest.approx(2 * math.sqrt(2))
                assert recipe.optim.milestones == (100, 150)
                assert not recipe.loss.emma


def test_recipes_are_frozen() -> None:
    recipe: Recipe = named_recipe("digits/quickstart")
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.name = "other"  # type: ignore[misc]


def test_recipes_do_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, bronet.recipe; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", ["1e-999999999", "1e999999999", "1/0", "0/5", "1", "-1/4", "1/4/2", "0x1/2", ""])
def test_a_rank_is_a_plain_fraction_below_one(text: str) -> None:
    with pytest.raises(BronetError, match="rank must"):
        parse_rank(text)


def test_a_data_set_of_ones_own_says_what_it_is() -> None:
    data = DataRecipe(name="flowers", channels=3, height=32, width=48, classes=5)
    assert (data.spec().shape, data.spec().classes) == ((3, 32, 48), 5)
    with pytest.raises(BronetError, match=r"got \'flowers\'"):
        DataRecipe(name="flowers")
    with pytest.raises(BronetError, match="fixed; leave them out"):
        DataRecipe(name="cifar10", classes=5)
    with pytest.raises(BronetError, match=r"data\.classes .* 2, got 0"):
        DataRecipe(name="flowers", channels=3, height=32, width=48)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"resize": (288, 224)}, r"data\.resize must be a range"),
        ({"resize": (16, 40)}, r"data\.resize .* 32, got 16"),
        ({"synthetic": "extra.npz"}, "belong together"),
        ({"synthetic_batch": 8}, "belong together"),
    ],
)
def test_impossible_data_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(BronetError, match=words):
        DataRecipe(name="cifar10", **settings)  # type: ignore[arg-type]
