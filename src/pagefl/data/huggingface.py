"""Reads a Hugging Face or Flower federation from disk as FederatedData. Every partition is a client.

`flwr-datasets create`, a loop over `load_partition(i).save_to_disk(folder / f"partition_{i}")`, and a saved
DatasetDict with keys partition_0, … all write the same layout: a folder of datasets. Only Arrow files are
read. Nothing is downloaded, unpickled or executed. Images are decoded here from their bytes: `datasets` would
otherwise open an image's path, which may be a URL.
"""

import io
import warnings
from pathlib import Path

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from pagefl.core import memory, rng
from pagefl.core.errors import UserError

from .federated import FederatedData
from .pairs import Pair, image_bytes

try:
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc

    from .arrow import check_files
except ModuleNotFoundError as error:
    raise UserError(f'{error.name} is not installed; `pip install "pagefl[huggingface]"` brings it') from None

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")  # other Pillow formats start programs, such as Ghostscript
KINDS = " or ".join([", ".join(FORMATS[:-1]), FORMATS[-1]])
BOMBS = (Image.DecompressionBombError, Image.DecompressionBombWarning)
COPIES = 5  # of an example: as a tensor, split, joined, reordered for training, and one to spare
ARRAYS = (
    datasets.List,
    datasets.LargeList,
    datasets.Array2D,
    datasets.Array3D,
    datasets.Array4D,
    datasets.Array5D,
)


class Room:
    """Adds up the memory that a federation needs. Raises before more is used than there is."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.size, self.room = folder, 0, memory.available()

    def take(self, size: int) -> None:
        self.size += size
        memory.needs(
            self.size, f"{self.folder}: its examples", "use fewer partitions, or smaller ones", self.room
        )


def from_disk(
    folder: str | Path,
    x: str | None = None,
    y: str | None = None,
    *,
    test: float = 0.24,
    server: float = 0.2,
    seed: int = 0,
) -> FederatedData:
    """Read columns x and y of every partition_<i>. Columns that are not given are found by their types.

    A partition's `test` split is the test data of its client. A dataset `server` or `test` beside the
    partitions is the server's data. Missing parts are split off the training data with the shares `test` and
    `server`, as in `FederatedData.split`. Images are bytes [channels, height, width], with one channel if all
    are grey and three otherwise.
    """
    partitions, public = _folders(Path(folder))
    tables = {path: _splits(path) for path in [*partitions, *public]}
    x, y = _columns(partitions[0], tables[partitions[0]]["train"].features, x, y)
    room = Room(Path(folder))
    pairs = {
        path: {split: _pair(path, table, x, y, room) for split, table in splits.items()}
        for path, splits in tables.items()
    }
    every = [table.features for splits in tables.values() for table in splits.values()]
    if len({(type(features[x]), str(getattr(features[y], "names", ""))) for features in every}) > 1:
        raise UserError(
            f"{folder} has datasets whose {x!r} differ in type or whose {y!r} in class names; they must agree"
        )
    if isinstance(every[0][x], datasets.Image):
        channels = max(len(images[0]) for splits in pairs.values() for images, _ in splits.values())
        for splits in pairs.values():
            room.take(
                COPIES
                * sum((channels - len(images[0])) * images[:, 0].numel() for images, _ in splits.values())
            )
            splits.update(
                {
                    split: (images.expand(-1, channels, -1, -1), labels)
                    for split, (images, labels) in splits.items()
                }
            )
    shapes = {
        tuple(inputs.shape[1:]): path for path, splits in pairs.items() for inputs, _ in splits.values()
    }
    if len(shapes) > 1:
        found = ", ".join(f"{list(shape)} in {path.name}" for shape, path in shapes.items())
        raise UserError(f"{folder} has examples of shape {found}; they must agree")

    train, own, shared = [], [], [pairs[path]["train"] for path in public]
    for i, path in enumerate(partitions):
        inputs, labels = pairs[path]["train"]
        shares = [0.0 if "test" in pairs[path] else test, 0.0 if public else server]
        counts = [round(len(labels) * share) for share in shares]
        if min(counts) < 0 or counts.count(0) > shares.count(0.0) or sum(counts) >= len(labels):
            raise UserError(
                f"{path} has {len(labels)} examples: shares test={test}, server={server} must each get at "
                "least one and "
                "leave one for training"
            )
        order = torch.from_numpy(rng.stream(seed, "split", i).permutation(len(labels)))
        cut = [(inputs[part], labels[part]) for part in order.split([*counts, len(labels) - sum(counts)])]
        own.append(pairs[path].get("test", cut[0]))
        shared += [] if public else [cut[1]]
        train.append(cut[2] if sum(counts) else (inputs, labels))
    return FederatedData(
        train, own, (torch.cat([x for x, _ in shared]), torch.cat([y for _, y in shared])), seed=seed
    )


def _folders(folder: Path) -> tuple[list[Path], list[Path]]:
    """The partitions in numerical order, and the folder of the server's examples, if there is one."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; expected one that holds datasets partition_0, partition_1, …"
        )
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    partitions = [f"partition_{i}" for i in range(sum(name.startswith("partition_") for name in found))]
    if not partitions or not set(partitions) <= set(found):
        raise UserError(
            f"{folder} holds {', '.join(found) or 'no folder'}; expected partition_0, partition_1, … "
            "without a gap"
        )
    public = [name for name in ("server", "test") if name in found]
    if len(public) > 1:
        raise UserError(
            f"{folder} holds both server and test; expected one of them, for the server's examples"
        )
    return [folder / name for name in partitions], [folder / name for name in public]


def _splits(path: Path) -> dict[str, datasets.Dataset]:
    try:
        check_files(path)
        found = datasets.load_from_disk(str(path))
    except UserError:
        raise
    # An empty dataset raises an IndexError, which is a LookupError.
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UserError(
            f"{path} cannot be read ({error}); expected a dataset with examples as save_to_disk leaves it"
        ) from None
    splits = {"train": found} if isinstance(found, datasets.Dataset) else dict(found)
    spare = set(splits) - ({"train", "test"} if path.name.startswith("partition_") else {"train"})
    if spare or "train" not in splits:
        raise UserError(
            f"{path} has splits {', '.join(splits)}; expected one dataset or, for a client, train and test"
        )
    return splits


def _columns(path: Path, features: datasets.Features, x: str | None, y: str | None) -> tuple[str, str]:
    def of(*kinds: type) -> list[str]:
        return [name for name in features if isinstance(features[name], kinds)]

    def one(role: str, given: str | None, found: list[str]) -> str:
        if given in features or (given is None and len(found) == 1):
            return given or found[0]
        valid = ", ".join(f"{name!r} ({type(features[name]).__name__})" for name in features)
        raise UserError(
            f"{role}={given!r} does not tell which column of {path} to use; expected one of {valid}"
        )

    labels = of(datasets.ClassLabel)
    if len(labels) != 1:  # such as CIFAR-100's coarse and fine labels
        labels = [name for name in ("label", "labels", "fine_label", "target") if name in features]
    return one("x", x, of(datasets.Image) or of(*ARRAYS)), one("y", y, labels)


def _pair(path: Path, table: datasets.Dataset, x: str, y: str, room: Room) -> Pair:
    if not len(table) or not {x, y} <= {*table.features}:
        raise UserError(
            f"{path} has {len(table)} rows of {', '.join(table.features)}; expected one or more of {x} "
            f"and {y}"
        )
    try:
        columns = table.select_columns([*{x, y}]).with_format("arrow")[:]  # as stored, not decoded
        columns.validate(full=True)  # otherwise Arrow trusts the offsets in the file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}); get it again") from None
    read = _images if isinstance(table.features[x], datasets.Image) else _numbers
    return read(f"{path}, column {x!r},", columns[x], room), _numbers(
        f"{path}, column {y!r},", columns[y], room
    )


def _images(where: str, column: pa.ChunkedArray, room: Room) -> Tensor:
    """Decode images into [n, channels, height, width]."""
    images = []
    for i, cell in enumerate(column):
        try:
            images.append(_image(cell.as_py()["bytes"], room))
        except UserError:
            raise
        except (*BOMBS, OSError, ValueError, TypeError, SyntaxError) as error:
            raise UserError(
                f"{where} has in row {i} no image ({error}); expected the bytes of an 8-bit {KINDS}"
            ) from None
    return image_bytes(where, images)


def _image(content: bytes, room: Room) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(io.BytesIO(content), formats=FORMATS)
        except UnidentifiedImageError:
            raise ValueError(f"it is no {KINDS}") from None
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"its mode is {image.mode}")
    mode = "L" if image.mode in ("1", "L", "LA") else "RGB"
    room.take((COPIES + 1) * image.width * image.height * len(mode))  # decoded first, and then copied
    return image.convert(mode)


def _numbers(where: str, column: pa.ChunkedArray, room: Room) -> Tensor:
    """Convert a column to a tensor with one dimension per level of nested lists.

    Floats become float32, bytes stay bytes, other integers become int64.
    """
    room.take(column.nbytes)
    values, shape = column.combine_chunks(), [len(column)]
    values = getattr(values, "storage", values)
    while isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        lengths = pc.list_value_length(values).unique().to_pylist()
        if len(lengths) > 1 or lengths == [None]:
            raise UserError(f"{where} has lists of lengths {lengths[:3]}; expected one length for all")
        shape, values = [*shape, lengths[0]], values.flatten()
    kinds = {
        torch.float32: pa.types.is_floating,
        torch.uint8: pa.types.is_uint8,
        torch.int64: pa.types.is_integer,
    }
    kind = next((dtype for dtype, fits in kinds.items() if fits(values.type)), None)
    if kind is None or values.null_count:
        raise UserError(
            f"{where} holds {values.type} with {values.null_count} missing; expected numbers, none missing"
        )
    room.take(COPIES * len(values) * kind.itemsize)
    return torch.tensor(values.to_numpy(zero_copy_only=False), dtype=kind).view(shape)
