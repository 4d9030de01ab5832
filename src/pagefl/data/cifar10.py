"""CIFAR-10 from its original files.

Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009.
"""

from .cifar import Cifar

MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CLASSES = 10
*_TRAIN, _TEST = MD5
FILES = Cifar(
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    md5=MD5,
    parts={"train": tuple(_TRAIN), "test": (_TEST,)},
    labels="labels",
    classes=CLASSES,
)
CIFAR10 = FILES.original("cifar10", "cifar-10-python.tar.gz")
