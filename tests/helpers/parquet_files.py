"""Small parquet files in the layout of the hub."""

import json
from pathlib import Path

import pytest

from generated_images import encoded

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_parquet(path: Path, labels: list[int], *, names: list[str] | None = None, image: str = "image") -> None:
    """Write one parquet file; the picture of a row has its label as seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": encoded(abs(label)), "path": None} for label in labels]
    table = pyarrow.table({image: rows, "label": pyarrow.array(labels, pyarrow.int64())})
    if names is not None:
        features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
    parquet.write_table(table, path)
