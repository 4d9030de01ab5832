"""CIFAR-100 from its original files.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.
"""

from .cifar import Cifar

MD5 = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
CLASSES = 100
FILES = Cifar(
    title="CIFAR-100",
    folder="cifar-100-python",
    md5=MD5,
    parts={"train": ("train",), "test": ("test",)},
    labels="fine_labels",
    classes=CLASSES,
)
CIFAR100 = FILES.original("cifar100", "cifar-100-python.tar.gz")
