"""Entry points of torch.hub: `torch.hub.load(repository, "load_pretrained", "bronet-digits/digits")`.

`create_model` gives untrained and trained networks by name, `list_models` the names.
"""

import sys
from pathlib import Path

dependencies = ["torch", "numpy", "jaxtyping", "safetensors", "yaml"]
sys.path.insert(0, str(Path(__file__).parent / "src"))

from bronet import create_model, list_models, load_pretrained  # noqa: E402

__all__ = ["create_model", "dependencies", "list_models", "load_pretrained"]
