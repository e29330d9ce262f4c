"""From the name of a data set to images, labels and classes; augmentation; batches.

It reads the digits in the package, CIFAR-10/100, Tiny-ImageNet and ImageNet (Section 5), and folders of one's own.
"""

from bronet.data.augment import augment
from bronet.data.batches import Batch, MixedBatches, endless_batch, epoch_order, prepared_ahead, steps_per_epoch
from bronet.data.file_set import FileSet
from bronet.data.image_set import ImageSet, stratified_split
from bronet.data.load import (
    DATA_DIR_VARIABLE,
    DEFAULT_DATA_DIR,
    data_folder,
    load_dataset,
    load_images,
    open_images,
    open_synthetic,
    provide_images,
)
from bronet.data.randomness import Share, generator_for
from bronet.data.stream import DecodedStream, ImageStream, ResidentStream

__all__ = [
    "DATA_DIR_VARIABLE",
    "DEFAULT_DATA_DIR",
    "Batch",
    "DecodedStream",
    "FileSet",
    "ImageSet",
    "ImageStream",
    "MixedBatches",
    "ResidentStream",
    "Share",
    "augment",
    "data_folder",
    "endless_batch",
    "epoch_order",
    "generator_for",
    "load_dataset",
    "load_images",
    "open_images",
    "open_synthetic",
    "prepared_ahead",
    "provide_images",
    "steps_per_epoch",
    "stratified_split",
]
