"""The card of a published network: what it is, how it was trained, what is proved of it, what it is not for."""

from bronet.pretrained.network import PretrainedConfig
from bronet.report.evidence import Evidence
from bronet.wording import bound_text, number_text, percent

DATA_LICENCES = {
    "digits": "Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, UCI Machine Learning Repository), "
    "CC BY 4.0.",
    "cifar10": "CIFAR-10 (Krizhevsky, 2009). Its authors state no licence and ask for citation; the photographs belong "
    "to their makers.",
    "cifar100": "CIFAR-100 (Krizhevsky, 2009). Its authors state no licence and ask for citation; the photographs "
    "belong to their makers.",
}

TEXT = """---
license: mit
library_name: bronet
pipeline_tag: image-classification
tags: [certified-robustness, lipschitz, orthogonal]
datasets: [{data}]
---

# {name}

A classifier for {data} whose robustness is proved: {parameters:,} parameters, images of {shape} pixels in [0, 1],
{classes} classes. Kernels and matrices are stored in bf16; every certificate is about the weights as stored.

```python
import bronet

model = bronet.load_pretrained("{name}")
radius = bronet.certified_radius(model, images)  # l2, in pixel space
```

## Training

{training}

Every setting is in `config.json`, under `recipe`.

## What is proved

{proved}

## Intended use and limits

For research, teaching and as a starting point for comparisons. Not for decisions about people, nor for safety: the
network is small and can be wrong, and a proof that it keeps an answer does not make the answer right.

- A radius is about the l2 norm. It says nothing about rotation, blur or other norms beyond what follows from l2, nor
  about images that were different to begin with.
- The proof is about the float64 program of bronet with these weights. The same weights in float32, bf16 or another
  runtime are another program; they round differently.
- Accuracies are statistics of one test set. Other images, even of the same things, can be harder.

## Licence

The weights are published under the MIT licence. Training data: {licence}
"""


def model_card(name: str, config: PretrainedConfig, parameters: int, evidence: Evidence) -> str:
    """Return the card as Markdown; `evidence` must be what is proved of these very weights."""
    spec = config.recipe.data.spec()
    return TEXT.format(
        name=name,
        data=spec.name,
        parameters=parameters,
        shape=f"{spec.channels} x {spec.height} x {spec.width}",
        classes=spec.classes,
        training=_training(config),
        proved=_proved(evidence),
        licence=DATA_LICENCES.get(spec.name, f"{spec.name}; see the licence of that data set."),
    )


def _training(config: PretrainedConfig) -> str:
    recipe, record = config.recipe, config.record
    facts = [
        ("recipe", f"`{recipe.name}`"),
        ("epochs, batch", f"{recipe.train.epochs}, {recipe.train.batch_size}"),
        ("loss", recipe.loss.name),
        ("seed, precision", f"{recipe.train.seed}, {recipe.train.precision}"),
        *((key, str(record[key])) for key in ("device", "seconds", "commit", "finished") if key in record),
        *([("command", f"`{record['command']}`")] if "command" in record else []),
    ]
    return "| | |\n|---|---|\n" + "\n".join(f"| {what} | {value} |" for what, value in facts)


def _proved(evidence: Evidence) -> str:
    certificate, statistics = evidence.certificate, evidence.statistics
    lines = [
        f"On {certificate.images:,} {certificate.split} images of {certificate.data}, in float64, rounding counted:",
        "",
        "| | |",
        "|---|---:|",
        f"| clean accuracy | {percent(statistics.clean_accuracy)} |",
        *(f"| certified accuracy, radius {eps} | {percent(share)} |" for eps, share in statistics.certified.items()),
        f"| median radius of the correct images | {number_text(statistics.radius.median)} |",
        f"| Lipschitz constant, at most | {bound_text(certificate.lipschitz)} |",
    ]
    return "\n".join(lines)
