"""From the name of a data set to images, labels and classes; augmentation; batches.

It reads the digits in the package, CIFAR-10/100, Tiny-ImageNet and ImageNet (Section 5), and folders of one's own.
"""

from bronet.data.batches import Batch, DecodedStream, ImageStream, MixedBatches, ResidentStream, prepared_ahead
from bronet.data.image_set import FileSet, ImageSet, stratified_split
from bronet.data.load import data_folder, folder, load_dataset, load_images, open_images, open_synthetic, provide_images
from bronet.data.randomness import generator_for
from bronet.data.sources import batches_of

__all__ = [
    "Batch",
    "DecodedStream",
    "FileSet",
    "ImageSet",
    "ImageStream",
    "MixedBatches",
    "ResidentStream",
    "batches_of",
    "data_folder",
    "folder",
    "generator_for",
    "load_dataset",
    "load_images",
    "open_images",
    "open_synthetic",
    "prepared_ahead",
    "provide_images",
    "stratified_split",
]
