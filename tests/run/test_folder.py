"""The run folder: its layout, and what it refuses to overwrite."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from bronet.certificates.run import certify_run
from bronet.errors import BronetError
from bronet.files import sealed
from bronet.recipe import named_recipe, override
from bronet.run.folder import create_run, open_run
from bronet.training import train_recipe
from bronet.training.run import describe_run, source_commit
from generated_images import class_folders

RECIPE = named_recipe("digits/quickstart")


def test_a_new_run_holds_its_recipe(tmp_path: Path) -> None:
    run = create_run(tmp_path / "deep" / "run", RECIPE)
    assert run.recipe == RECIPE
    assert open_run(run.path).recipe == RECIPE


def test_an_existing_run_is_not_overwritten_by_accident(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", RECIPE)
    run.append_log({"epoch": 1})
    with pytest.raises(BronetError, match="already holds a run"):
        create_run(run.path, RECIPE)
    assert run.log.exists()


def test_overwriting_removes_the_old_run_and_nothing_else(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", RECIPE)
    run.append_log({"epoch": 1})
    run.report.mkdir()
    (run.report / "curve.png").touch()
    (run.path / "notes.txt").write_text("mine")
    create_run(run.path, RECIPE, overwrite=True)
    assert sorted(entry.name for entry in run.path.iterdir()) == ["notes.txt", "recipe.yaml"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_other_files_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(BronetError, match="other files"):
        create_run(tmp_path, RECIPE, overwrite=overwrite)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    for path in (tmp_path / "run", tmp_path / "run" / "inner"):
        with pytest.raises(BronetError, match="could not make run folder"):
            create_run(path, RECIPE)


def test_what_is_no_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BronetError, match=r"no recipe\.yaml"):
        open_run(tmp_path)


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", RECIPE)
    run.truncate_log(0)
    for epoch in (1, 2, 3):
        run.append_log({"epoch": epoch})
    run.truncate_log(2)
    assert [json.loads(line)["epoch"] for line in run.log.read_text().splitlines()] == [1, 2]
    run.log.write_text('{"epoch": 1, "lo\n{"epoch": 2}\n{"epoch": 3}\n')
    run.truncate_log(2)
    assert run.log.read_text() == '{"epoch": 2}\n'


def test_a_record_says_how_the_run_was_made(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", RECIPE)
    record = describe_run(RECIPE, device=torch.device("cpu"), command="bronet train x")
    run.write_record(record)
    stored = run.read_record()
    assert stored == record
    assert stored["command"] == "bronet train x"
    assert stored["seed"] == RECIPE.train.seed
    assert stored["versions"]["torch"] == torch.__version__


def test_a_copy_without_its_repository_may_be_told_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bronet.training.run.__file__", str(tmp_path / "run.py"))
    assert source_commit() is None
    monkeypatch.setenv("BRONET_COMMIT", "747be9b")
    assert source_commit() == "747be9b"


def test_a_run_remembers_the_names_of_its_own_classes(tmp_path: Path) -> None:
    """Labels are places of sorted folders: without the training folders nothing else tells which class is which."""
    pets = tmp_path / "pets"
    class_folders(pets / "train", ["ant", "bee", "cat"], 4)
    class_folders(pets / "test", ["ant", "bee", "cat"], 1)
    shape = ["data.name=pets", "data.channels=3", "data.height=64", "data.width=64", "data.classes=3"]
    small = ["model.width=8", "model.depth=1", "model.dense_depth=1", "model.dense_width=16", "train.batch_size=4"]
    recipe = override(named_recipe("cifar10/bronet-small"), [*shape, *small, "train.epochs=1", "optim.warmup_epochs=0"])
    run = train_recipe(recipe, tmp_path / "run", data_dir=tmp_path, progress=False)
    assert run.classes() == ("ant", "bee", "cat")
    assert len(certify_run(run.path, data_dir=tmp_path).rows) == 3
    shutil.rmtree(pets / "train")
    (pets / "test" / "ant").rename(pets / "test" / "dog")
    with pytest.raises(BronetError, match="must be named like the classes or numbered from 0, got dog"):
        certify_run(run.path, data_dir=tmp_path)
    record = json.loads(run.record.read_text())
    edited = record | {"classes": [1, 2, 3]}
    run.record.write_text(json.dumps(edited))
    with pytest.raises(BronetError, match=r"the seal of .*record\.json differs"):
        certify_run(run.path, data_dir=tmp_path)
    run.record.write_text(json.dumps(sealed(edited)))
    with pytest.raises(BronetError, match=r"classes in .*record\.json must be a list of names, got \[1, 2, 3\]"):
        certify_run(run.path, data_dir=tmp_path)
