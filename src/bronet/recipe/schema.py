"""The description of a run: data, model, loss, optimiser, training and certification (App. B.5 of the paper).

A recipe is frozen and validated when it is made, and knows no tensors. Perturbation budgets are fractions in text
("36/255"), exactly as in the paper.
"""

import reprlib
from dataclasses import dataclass
from typing import Annotated, Literal

from bronet.errors import BronetError
from bronet.recipe.architecture import (
    MAX_PIXELS,
    Architecture,
    Limits,
    OwnArchitecture,
    Padding,
    Pixels,
    Settings,
    parse_fraction,
)
from bronet.records import require_range

Border = Literal["black", "edge", "mirror"]
RandAugmentOps = Literal["all", "photometric"]

SPLITS = ("train", "test", "sample")
"""Parts of a data set; "sample" is the 500 test images of CIFAR-10 that the package holds."""
BYTE_SCALE = 255
SEED_LIMIT = 2**63  # what a torch generator accepts
MAX_EPOCHS = 1_000_000
MAX_IMAGES = 1_000_000_000
MAX_BATCH = 1_000_000
MIN_RATE, MAX_RATE = 1e-12, 1e3
"""Learning rates: float32 weights do not change below this range, and do not stay finite above it."""
MAX_WEIGHT = 1e6
"""For a term or a scale of a loss: with a thousand classes float32 can represent it and its square."""

UnitInterval = Annotated[float, Limits(0, 1)]
BelowOne = Annotated[float, Limits(0, 1 - 1e-9)]
Images = Annotated[int, Limits(0, MAX_IMAGES)]
Count = Annotated[int, Limits(1, MAX_EPOCHS)]
CountOrNone = Annotated[int, Limits(0, MAX_EPOCHS)]
ScaleFactor = Annotated[float, Limits(1 / MAX_WEIGHT, MAX_WEIGHT)]
Weight = Annotated[float, Limits(0, MAX_WEIGHT)]
BudgetText = Annotated[str, parse_fraction]


def parse_budget(text: str, *, name: str = "budget") -> float:
    """Return the perturbation budget of a text such as "36/255" or "0.5"."""
    return float(parse_fraction(text, name=name))


def check_seed(seed: int, *, name: str = "seed") -> None:
    """Refuse a seed that a generator could not take."""
    if not 0 <= seed < SEED_LIMIT:
        raise BronetError(f"{name} must satisfy 0 <= seed < 2^63, got {reprlib.repr(seed)}")


Seed = Annotated[int, check_seed]


@dataclass(frozen=True)
class DatasetSpec(Settings, table="data"):
    """What a model and a loader must agree on; the value of a pixel is its stored byte divided by `scale`."""

    name: str
    channels: Annotated[int, Limits(1, 1_024)]
    height: Pixels
    width: Pixels
    classes: Annotated[int, Limits(2, 65_536)]
    scale: Annotated[int, Limits(1, BYTE_SCALE)] = BYTE_SCALE

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return self.channels, self.height, self.width


_KNOWN = (
    DatasetSpec("digits", 1, 8, 8, 10, scale=16),  # a pixel counts the ink of a 4 x 4 block
    DatasetSpec("cifar10", 3, 32, 32, 10),
    DatasetSpec("cifar100", 3, 32, 32, 100),
    DatasetSpec("tiny-imagenet", 3, 64, 64, 200),
    DatasetSpec("imagenet", 3, 224, 224, 1000),
)
DATASETS = {spec.name: spec for spec in _KNOWN}


def dataset_spec(name: str) -> DatasetSpec:
    """Return the description of a known data set, or an error that names all of them."""
    if name not in DATASETS:
        raise BronetError(
            f"dataset must be one of {', '.join(DATASETS)}, got {name!r}; "
            "a folder of one's own needs data.channels, data.height, data.width and data.classes, too"
        )
    return DATASETS[name]


@dataclass(frozen=True, kw_only=True)
class DataRecipe(Settings, table="data"):
    """The data set and its augmentation; `held_out` training images are set aside for tuning.

    `name` is a known data set, or a folder of one's own with `channels`, `height`, `width` and `classes`. `resize` is
    the range of an image's shorter side before a random crop to the model's size ([224, 288] for ImageNet); without it
    every image must have that size. Outside an image, crops and RandAugment show the `border`, which is black in the
    paper. RandAugment draws from `randaugment_ops`: all, as in the paper, or only those that change colours. Every
    batch contains `synthetic_batch` of the generated images `synthetic`; they are cropped with their own padding,
    flipped if `flip` is set, and RandAugmented with their own probability.
    """

    name: str
    crop_padding: Padding = 0
    flip: bool = False
    randaugment_probability: UnitInterval = 0.0
    randaugment_ops: RandAugmentOps = "all"
    border: Border = "black"
    held_out: Images = 0
    resize: tuple[int, ...] = ()
    synthetic: str = ""
    synthetic_batch: Images = 0
    synthetic_crop_padding: Padding = 2
    synthetic_randaugment_probability: UnitInterval = 0.0
    channels: int = 0
    height: int = 0
    width: int = 0
    classes: int = 0

    def __post_init__(self) -> None:
        spec = self.spec()
        super().__post_init__()
        for side in self.resize:
            require_range("each of data.resize", side, max(spec.height, spec.width), MAX_PIXELS)
        if self.resize and (len(self.resize) != 2 or self.resize[0] > self.resize[1]):
            raise BronetError(f"data.resize must be a range such as [224, 288], got {list(self.resize)}")
        if bool(self.synthetic) != bool(self.synthetic_batch):
            raise BronetError(
                "data.synthetic and data.synthetic_batch belong together, "
                f"got {self.synthetic!r} and {self.synthetic_batch}; set both or neither"
            )

    def spec(self) -> DatasetSpec:
        """Return what a model and a loader must agree on."""
        own = (self.channels, self.height, self.width, self.classes)
        if self.name in DATASETS or not any(own):
            if any(own):
                raise BronetError(f"shape and classes of the known data set {self.name} are fixed; leave them out")
            return dataset_spec(self.name)
        return DatasetSpec(self.name, *own)


@dataclass(frozen=True, kw_only=True)
class LossRecipe(Settings, table="loss"):
    """LA (temperature T, offset xi, annealing beta), cross-entropy, or cross-entropy with CR (weight gamma).

    `cr` says whether CR rewards the certified radius in pixel space (the published code) or the logit margin (the
    text). `scale` multiplies the loss. With `emma` the loss sees EMMA-adjusted logits, whose budget grows linearly from
    `emma_start_eps` to `emma_eps` over the first `emma_ramp` of training. `teacher` is the share of a label that an
    ordinary network, trained for `teacher_epochs` before the first step, decides.
    """

    name: Literal["la", "ce", "ce+cr"] = "la"
    temperature: ScaleFactor = 0.75
    offset: Weight = 2.0
    beta: Weight = 5.0
    gamma: Weight = 0.5
    cr: Literal["radius", "margin"] = "radius"
    scale: ScaleFactor = 1.0
    emma: bool = False
    emma_eps: BudgetText = "108/255"
    emma_start_eps: BudgetText = "3.6/255"
    emma_ramp: UnitInterval = 0.5
    teacher: UnitInterval = 0.0
    teacher_epochs: Count = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teacher and self.name != "la":
            raise BronetError(
                f"loss.name must be la with a teacher (loss.teacher = {self.teacher}; 0 does without), got {self.name}"
            )
        if parse_budget(self.emma_start_eps) > parse_budget(self.emma_eps):
            raise BronetError(
                f"loss.emma_start_eps must be at most loss.emma_eps = {self.emma_eps}, got {self.emma_start_eps}"
            )


@dataclass(frozen=True, kw_only=True)
class OptimRecipe(Settings, table="optim"):
    """The optimiser, Lookahead, gradient clipping and the learning rate over time.

    `weight_decay` is added to the gradient as an L2 term. `clip_norm` None turns clipping off, and `lookahead_steps` 0
    turns Lookahead off. `momentum` is for sgd and muon (where 0.95 is usual); muon orthogonalises the updates of
    orthogonal layers, manifold keeps LipNeXt's matrices orthogonal, and both use nadam for the rest. `warmup_epochs` is
    for the cosine and linear schedules, `milestones` (epochs at which the rate is multiplied by `milestone_factor`) for
    the other one.
    """

    name: Literal["nadam", "sgd", "muon", "manifold"] = "nadam"
    lr: Annotated[float, Limits(MIN_RATE, MAX_RATE)]
    weight_decay: Annotated[float, Limits(0, MAX_RATE)] = 0.0
    momentum: UnitInterval = 0.9
    clip_norm: Annotated[float | None, Limits(MIN_RATE, 1 / MIN_RATE)] = 3.0
    lookahead_steps: CountOrNone = 6
    lookahead_alpha: UnitInterval = 0.5
    schedule: Literal["cosine", "linear", "milestones"] = "cosine"
    warmup_epochs: CountOrNone = 0
    milestones: Annotated[tuple[int, ...], Limits(1, MAX_EPOCHS)] = ()
    milestone_factor: UnitInterval = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if list(self.milestones) != sorted(set(self.milestones)):
            raise BronetError(f"optim.milestones must be growing epochs, got {list(self.milestones)}")


@dataclass(frozen=True, kw_only=True)
class TrainRecipe(Settings, table="train"):
    """The length and precision of training, power iterations per step, and what is kept.

    A network of the user's own may have 0 `epochs`, if it was trained elsewhere. A checkpoint is written every
    `checkpoint_every` epochs; the last `keep_checkpoints` are kept. Every `validate_every` epochs (0: never) the
    held-out images are evaluated, and the best weights are kept as well. With `ema_decay` above 0 the final weights are
    the average of the trained ones.
    """

    epochs: CountOrNone
    batch_size: Annotated[int, Limits(1, MAX_BATCH)]
    seed: Seed = 0
    precision: Literal["float32", "bf16"] = "float32"
    power_iterations: Count = 10
    checkpoint_every: Count = 1
    keep_checkpoints: Count = 1
    validate_every: CountOrNone = 0
    ema_decay: BelowOne = 0.0


@dataclass(frozen=True, kw_only=True)
class CertifyRecipe(Settings, table="certify"):
    """The budgets at which certified accuracy is reported; training logs the first one."""

    eps: Annotated[tuple[str, ...], parse_fraction] = ("36/255", "72/255", "108/255")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eps:
            raise BronetError('certify.eps must name at least one budget such as "36/255", got an empty list')


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines a run, except the machine it runs on."""

    name: str
    data: DataRecipe
    model: Architecture
    loss: LossRecipe
    optim: OptimRecipe
    train: TrainRecipe
    certify: CertifyRecipe = CertifyRecipe()

    def __post_init__(self) -> None:
        if not self.name or not self.name.isprintable():
            raise BronetError(f"name must be printable text of at least one letter, got {self.name!r}")
        if not self.train.epochs and not isinstance(self.model, OwnArchitecture):
            raise BronetError("train.epochs must be at least 1, got 0")
        if self.optim.schedule != "milestones" and self.optim.warmup_epochs > self.train.epochs:
            raise BronetError(
                f"optim.warmup_epochs must be at most train.epochs = {self.train.epochs}, "
                f"got {self.optim.warmup_epochs}: lower it too"
            )
        batch, synthetic = self.train.batch_size, self.data.synthetic_batch
        if synthetic >= batch:
            raise BronetError(
                f"data.synthetic_batch must be less than train.batch_size = {batch}, got {synthetic}: lower it"
            )
        if self.train.validate_every and not self.data.held_out:
            raise BronetError(
                f"train.validate_every needs held-out images, got data.held_out = 0 and {self.train.validate_every}; "
                "hold some out, such as data.held_out=5000"
            )
