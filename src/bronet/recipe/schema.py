"""The description of a run: data, model, loss, optimiser, training and certification (App. B.5 of the paper).

A recipe is frozen and validated when it is made, and knows no tensors. Perturbation budgets are fractions in text
("36/255"), exactly as in the paper.
"""

import re
import reprlib
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from bronet.errors import BronetError
from bronet.recipe.architecture import MAX_PIXELS, Architecture
from bronet.recipe.dataset import DATASETS, DatasetSpec, dataset_spec
from bronet.records import require_range

Border = Literal["black", "edge", "mirror"]
RandAugmentOps = Literal["all", "photometric"]
LossName = Literal["la", "ce", "ce+cr"]
PenalisedQuantity = Literal["radius", "margin"]
OptimizerName = Literal["nadam", "sgd", "muon"]
ScheduleName = Literal["cosine", "linear", "milestones"]
Precision = Literal["float32", "bf16"]

# An exponent is not allowed: "1e999999999" would be an exact number of a billion digits.
BUDGET_TEXT = re.compile(r"\d{1,18}(\.\d{1,18})?(/\d{1,18})?", re.ASCII)
SEED_LIMIT = 2**63  # what a torch generator accepts
MAX_EPOCHS = 1_000_000
MAX_IMAGES = 1_000_000_000
MAX_BATCH = 1_000_000
MIN_RATE, MAX_RATE = 1e-12, 1e3
"""Learning rates: float32 weights do not change below this range, and do not stay finite above it."""
MAX_WEIGHT = 1e6
"""For a term or a scale of a loss: with a thousand classes float32 can represent it and its square."""


def parse_budget(text: str, *, name: str = "budget") -> float:
    """Return the perturbation budget of a text such as "36/255" or "0.5"; it must be a finite number >= 0."""
    if not isinstance(text, str) or not BUDGET_TEXT.fullmatch(text):
        raise BronetError(f'{name} must be a number or fraction as text, such as "36/255", got {text!r}')
    numerator, _, denominator = text.partition("/")
    if denominator and int(denominator) == 0:
        raise BronetError(f"{name} must not divide by zero, got {text!r}")
    return float(Fraction(numerator) / int(denominator or 1))


def check_seed(seed: int, *, name: str = "seed") -> None:
    """Refuse a seed that a generator could not take."""
    if not 0 <= seed < SEED_LIMIT:
        raise BronetError(f"{name} must satisfy 0 <= seed < 2^63, got {reprlib.repr(seed)}")


def _require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise BronetError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class DataRecipe:
    """The data set and its augmentation; `held_out` training images are set aside for tuning.

    `name` is a known data set, or a folder of one's own with `channels`, `height`, `width` and `classes`. `resize` is
    the range of an image's shorter side before a random crop to the model's size ([224, 288] for ImageNet); without it
    every image must have that size. Outside an image, crops and RandAugment show the `border`: black, as in the paper,
    the nearest pixel of the edge, or the image mirrored at its edge. RandAugment draws from `randaugment_ops`: all, as
    in the paper, or only those that change colours. `synthetic` names generated images, of which every batch contains
    `synthetic_batch`; they are cropped with their own padding, flipped if `flip` is set, and never RandAugmented.
    """

    name: str
    crop_padding: int = 0
    flip: bool = False
    randaugment_probability: float = 0.0
    randaugment_ops: RandAugmentOps = "all"
    border: Border = "black"
    held_out: int = 0
    resize: tuple[int, ...] = ()
    synthetic: str = ""
    synthetic_batch: int = 0
    synthetic_crop_padding: int = 2
    channels: int = 0
    height: int = 0
    width: int = 0
    classes: int = 0

    def __post_init__(self) -> None:
        spec = self.spec()
        for name in ("crop_padding", "synthetic_crop_padding"):
            require_range(f"data.{name}", getattr(self, name), 0, MAX_PIXELS)
        for name in ("held_out", "synthetic_batch"):
            require_range(f"data.{name}", getattr(self, name), 0, MAX_IMAGES)
        require_range("data.randaugment_probability", self.randaugment_probability, 0, 1)
        _require_one_of("data.randaugment_ops", self.randaugment_ops, get_args(RandAugmentOps))
        _require_one_of("data.border", self.border, get_args(Border))
        if self.resize and (len(self.resize) != 2 or self.resize[0] > self.resize[1]):
            raise BronetError(f"data.resize must be a range such as [224, 288], got {list(self.resize)}")
        if self.resize:
            for side in self.resize:
                require_range("each of data.resize", side, max(spec.height, spec.width), MAX_PIXELS)
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
class LossRecipe:
    """LA (temperature T, offset xi, annealing beta), cross-entropy, or cross-entropy with CR (weight gamma).

    `cr` says whether CR rewards the certified radius in pixel space (the published code) or the logit margin (the
    text). `scale` multiplies the loss. With `emma` the loss sees EMMA-adjusted logits, whose budget grows linearly from
    `emma_start_eps` to `emma_eps` over the first `emma_ramp` of training. `teacher` is the share of a label that an
    ordinary network, trained for `teacher_epochs` before the first step, decides.
    """

    name: LossName = "la"
    temperature: float = 0.75
    offset: float = 2.0
    beta: float = 5.0
    gamma: float = 0.5
    cr: PenalisedQuantity = "radius"
    scale: float = 1.0
    emma: bool = False
    emma_eps: str = "108/255"
    emma_start_eps: str = "3.6/255"
    emma_ramp: float = 0.5
    teacher: float = 0.0
    teacher_epochs: int = 8

    def __post_init__(self) -> None:
        _require_one_of("loss.name", self.name, get_args(LossName))
        _require_one_of("loss.cr", self.cr, get_args(PenalisedQuantity))
        for name in ("temperature", "scale"):
            require_range(f"loss.{name}", getattr(self, name), 1 / MAX_WEIGHT, MAX_WEIGHT)
        for name in ("offset", "beta", "gamma"):
            require_range(f"loss.{name}", getattr(self, name), 0, MAX_WEIGHT)
        for name in ("emma_ramp", "teacher"):
            require_range(f"loss.{name}", getattr(self, name), 0, 1)
        require_range("loss.teacher_epochs", self.teacher_epochs, 1, MAX_EPOCHS)
        if self.teacher and self.name != "la":
            raise BronetError(
                f"loss.name must be la with a teacher (loss.teacher = {self.teacher}; 0 does without), got {self.name}"
            )
        target = parse_budget(self.emma_eps, name="loss.emma_eps")
        start = parse_budget(self.emma_start_eps, name="loss.emma_start_eps")
        if start > target:
            raise BronetError(
                f"loss.emma_start_eps must be at most loss.emma_eps = {self.emma_eps}, got {self.emma_start_eps}"
            )


@dataclass(frozen=True, kw_only=True)
class OptimRecipe:
    """The optimiser, Lookahead, gradient clipping and the learning rate over time.

    `weight_decay` is added to the gradient as an L2 term. `clip_norm` None turns clipping off, and `lookahead_steps` 0
    turns Lookahead off. `momentum` is for sgd and muon (where 0.95 is usual); muon orthogonalises the updates of
    orthogonal layers and uses nadam for the rest. `warmup_epochs` is for the cosine and linear schedules, `milestones`
    (epochs at which the rate is multiplied by `milestone_factor`) for the other one.
    """

    name: OptimizerName = "nadam"
    lr: float
    weight_decay: float = 0.0
    momentum: float = 0.9
    clip_norm: float | None = 3.0
    lookahead_steps: int = 6
    lookahead_alpha: float = 0.5
    schedule: ScheduleName = "cosine"
    warmup_epochs: int = 0
    milestones: tuple[int, ...] = ()
    milestone_factor: float = 0.1

    def __post_init__(self) -> None:
        _require_one_of("optim.name", self.name, get_args(OptimizerName))
        _require_one_of("optim.schedule", self.schedule, get_args(ScheduleName))
        require_range("optim.lr", self.lr, MIN_RATE, MAX_RATE)
        require_range("optim.weight_decay", self.weight_decay, 0, MAX_RATE)
        if self.clip_norm is not None:
            require_range("optim.clip_norm", self.clip_norm, MIN_RATE, 1 / MIN_RATE)
        require_range("optim.lookahead_steps", self.lookahead_steps, 0, MAX_EPOCHS)
        for name in ("momentum", "lookahead_alpha", "milestone_factor"):
            require_range(f"optim.{name}", getattr(self, name), 0, 1)
        require_range("optim.warmup_epochs", self.warmup_epochs, 0, MAX_EPOCHS)
        for epoch in self.milestones:
            require_range("each of optim.milestones", epoch, 1, MAX_EPOCHS)
        if list(self.milestones) != sorted(set(self.milestones)):
            raise BronetError(f"optim.milestones must be growing epochs, got {list(self.milestones)}")


@dataclass(frozen=True, kw_only=True)
class TrainRecipe:
    """The length and precision of training, power iterations per step, and what is kept.

    A checkpoint is written every `checkpoint_every` epochs; the last `keep_checkpoints` are kept. Every
    `validate_every` epochs (0: never) the held-out images are evaluated, and the best weights are kept as well. With
    `ema_decay` above 0 the final weights are the running average of the trained ones.
    """

    epochs: int
    batch_size: int
    seed: int = 0
    precision: Precision = "float32"
    power_iterations: int = 10
    checkpoint_every: int = 1
    keep_checkpoints: int = 1
    validate_every: int = 0
    ema_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_one_of("train.precision", self.precision, get_args(Precision))
        for name in ("epochs", "power_iterations", "checkpoint_every", "keep_checkpoints"):
            require_range(f"train.{name}", getattr(self, name), 1, MAX_EPOCHS)
        require_range("train.batch_size", self.batch_size, 1, MAX_BATCH)
        require_range("train.validate_every", self.validate_every, 0, MAX_EPOCHS)
        if not 0 <= self.ema_decay < 1:
            raise BronetError(f"train.ema_decay must satisfy 0 <= decay < 1, got {self.ema_decay}")
        check_seed(self.seed, name="train.seed")


@dataclass(frozen=True, kw_only=True)
class CertifyRecipe:
    """The budgets at which certified accuracy is reported; training logs the first one."""

    eps: tuple[str, ...] = ("36/255", "72/255", "108/255")

    def __post_init__(self) -> None:
        if not self.eps:
            raise BronetError('certify.eps must name at least one budget such as "36/255", got an empty list')
        for text in self.eps:
            parse_budget(text, name="certify.eps")


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
        if self.optim.schedule != "milestones" and self.optim.warmup_epochs > self.train.epochs:
            raise BronetError(
                f"optim.warmup_epochs must be at most train.epochs = {self.train.epochs}, "
                f"got {self.optim.warmup_epochs}: lower it too"
            )
        if self.data.synthetic_batch >= self.train.batch_size:
            raise BronetError(
                f"data.synthetic_batch must be less than train.batch_size = {self.train.batch_size}, "
                f"got {self.data.synthetic_batch}: a batch needs real images too"
            )
        if self.train.validate_every and not self.data.held_out:
            raise BronetError(
                f"train.validate_every needs held-out images, got data.held_out = 0 and {self.train.validate_every}; "
                "hold some out, such as data.held_out=5000"
            )
