"""Files of attacks as `bronet attack` writes them, with content chosen by a test."""

from dataclasses import replace
from pathlib import Path

from bronet.run.attack_rows import AttackFacts, write_attack

ATTACK = AttackFacts(
    attack="pgd",
    norm="l2",
    eps="1/4",
    split="test",
    steps=100,
    restarts=5,
    seed=0,
    batch_size=250,
    weights_sha256="ab" * 32,
    recipe_sha256="cd" * 32,
    data="digits",
    command="bronet attack run",
    warnings=(),
    seconds=1.0,
)


def write_attack_facts(folder: Path, facts: AttackFacts) -> None:
    """Write the facts of an attack under its own name, without rows."""
    write_attack(facts.files(folder).facts, facts)


def finished(facts: AttackFacts, images: int, *, clean: float, robust: float, certified: float) -> AttackFacts:
    """Return the facts as those of a finished attack."""
    return replace(
        facts,
        images=images,
        clean_accuracy=clean,
        robust_accuracy=robust,
        certified_broken=0,
        certified_accuracy=certified,
    )
