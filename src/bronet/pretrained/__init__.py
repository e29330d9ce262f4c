"""Trained networks as folders with config.json and model.safetensors (bf16); published ones have a card.

Some have a name, such as "bronet-digits/digits" (`places` says where they lie); any other folder of that form can be
named by its path. Reading such a folder never runs code.
"""

from bronet.pretrained.network import TrainedNetwork, create_model, find_network, list_models, load_pretrained
from bronet.pretrained.places import pretrained_names
from bronet.pretrained.saving import push_to_hub, save_pretrained, unpack

__all__ = [
    "TrainedNetwork",
    "create_model",
    "find_network",
    "list_models",
    "load_pretrained",
    "pretrained_names",
    "push_to_hub",
    "save_pretrained",
    "unpack",
]
