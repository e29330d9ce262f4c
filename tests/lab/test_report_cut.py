"""Recipes of the paper cut short, beside its tables."""

from dataclasses import replace

import pytest

from lab.recipes import table_recipe
from lab.tables.cut import TABLES, cut_name, cut_tables
from lab.tables.fill import filled
from lab.tables.published import paper_rows
from lab.tables.tuning import TuningRow
from markdown_cells import cells_of

BASE = TuningRow(
    run=cut_name("cifar100/la-beta@loss.beta=5"),
    changed="",
    against="",
    network="lipconvnet-10-32",
    epochs=20,
    steps=1560,
    seconds=44.0,
    images_held_out=10_000,
    clean=0.4,
    certified_36=0.3,
    certified_72=0.2,
    certified_108=0.1,
    train_accuracy=0.4,
    commit="b13478f0e489",
    device="a GPU",
    verdict="",
)
OTHER = replace(
    BASE,
    run=cut_name("cifar100/la-beta@loss.beta=7"),
    against=BASE.run,
    changed="loss.beta: 5.0 -> 7.0",
    clean=0.41,
    certified_108=0.095,
)


def test_differences_to_the_base_stand_beside_those_of_the_paper() -> None:
    table = cut_tables([OTHER, BASE])
    assert table.startswith("**Table 14, beta of LA: cut to 20 epochs**")
    assert cells_of(table, "beta=7")[1:] == [
        "49.0 / 35.7 / 24.3 / 16.1",
        "41.0 / 30.0 / 20.0 / 9.5",
        "-0.1 / +0.1 / -0.1 / -0.3",
        "+1.0 / +0.0 / +0.0 / -0.5",
    ]
    assert cells_of(table, "beta=5")[2:] == ["40.0 / 30.0 / 20.0 / 10.0", "–", "–"]
    assert "More than one thing" not in table
    assert "Percent of 10,000 held-out training images" in table
    assert "Table 16" not in table  # no run of it


def test_a_run_that_differs_in_more_than_the_row_says_is_named() -> None:
    table = cut_tables([BASE, replace(OTHER, changed="loss.beta: 5.0 -> 7.0; train.seed: 0 -> 1")])
    assert "from the base: beta=7 (loss.beta: 5.0 -> 7.0; train.seed: 0 -> 1)." in table


def test_a_run_that_belongs_to_two_tables_stands_in_both() -> None:
    run = replace(BASE, run=cut_name("cifar100/lipconvnet-10-32"))
    table = cut_tables([run])
    of_4, of_16 = table.split("**Table 16")
    assert cells_of(of_4, "LipConvNet-10-32 BRO")[2] == cells_of(of_16, "LipConvNet-10-32")[2]


def test_without_runs_the_page_says_so() -> None:
    page = "<!-- generated: cut -->\n<!-- end -->"
    assert "Cut runs: not run." in filled(page, [])
    assert "beta=7" in filled(page, [], [], [BASE, OTHER])


@pytest.mark.parametrize("table", TABLES)
def test_every_row_with_a_recipe_has_a_folder_name_of_its_own(table: int) -> None:
    names = {cut_name(row.recipe): row.recipe for row in paper_rows(table) if row.recipe}
    assert len(names) == len({row.recipe for row in paper_rows(table) if row.recipe})
    assert all(table_recipe(recipe).name == recipe for recipe in names.values())
    assert not any(set(name) & set("/@=.") for name in names)


def test_a_row_that_ran_out_of_memory_in_the_paper_has_no_difference_there() -> None:
    base = replace(BASE, run=cut_name("tiny-imagenet/lipconvnet-10-32"))
    run = replace(OTHER, run=cut_name("tiny-imagenet/lipconvnet-10-48-lot"), against=base.run)
    cells = cells_of(cut_tables([base, run]), "LipConvNet-10-48 LOT")
    assert cells[1:] == ["–", "41.0 / 30.0 / 20.0 / 9.5", "–", "+1.0 / +0.0 / +0.0 / -0.5"]
