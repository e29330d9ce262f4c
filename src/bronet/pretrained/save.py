"""Writing a run as a pretrained folder: weights rounded to bf16, configuration, model card."""

from pathlib import Path

from bronet.errors import BronetError
from bronet.files import replace_text
from bronet.pretrained.card import model_card
from bronet.pretrained.config import PretrainedConfig, class_names, config_text
from bronet.pretrained.find import CARD, WEIGHTS
from bronet.pretrained.places import CONFIG
from bronet.pretrained.record import published_record
from bronet.pretrained.rounding import save_rounded
from bronet.report.evidence import read_evidence
from bronet.report.table import Summary, summarize
from bronet.run.certificate import file_hash
from bronet.run.folder import RunFolder, open_run
from bronet.run.weights import load_model


def save_pretrained(run_dir: Path | str, folder: Path | str, *, name: str = "") -> Path:
    """Write the network of a run as config.json, model.safetensors and README.md, and return the folder.

    Guaranteed: the card shows numbers only if the run has a certificate of exactly these rounded weights; see
    `round_run`. A folder with a run in it is refused. The configuration is written last, and names the weights by hash.
    """
    run, folder = open_run(Path(run_dir)), Path(folder)
    if RunFolder(folder).recipe_file.exists():
        raise BronetError(f"a pretrained network needs a folder of its own, got the run {folder}; choose another")
    recipe = run.recipe
    model = load_model(run)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    save_rounded(folder / WEIGHTS, model, recipe=recipe)
    config = PretrainedConfig(
        recipe=recipe,
        classes=class_names(recipe.data.spec()),
        weights_sha256=file_hash(folder / WEIGHTS),
        record=published_record(run.record),
    )
    summary = _certified(run, config.weights_sha256)
    replace_text(folder / CARD, model_card(name or folder.resolve().name, config, parameters, summary))
    replace_text(folder / CONFIG, config_text(config))
    return folder


def _certified(run: RunFolder, weights_sha256: str) -> Summary | None:
    """Return what is proved of these weights and this recipe on the test images; None if the run does not say."""
    if not run.certificate().facts.exists():
        return None
    evidence = read_evidence(run.path)
    network = {"weights_sha256": weights_sha256, "recipe_sha256": file_hash(run.recipe_file)}
    return summarize(evidence) if evidence.certificate.network.items() <= network.items() else None
