"""Damages data archives at random: each must be read, or be refused in one sentence.

    python benchmarks/mutate_data.py --zips 3000 --arrows 400 --published 3000

The archives are a Tiny-ImageNet zip, the files of a Hugging Face federation, those of partitions that PFLlib,
FLGo and LEAF wrote, and an IDX file. Every archive is read in a process of its own, with a limit of memory
and time, because a library written in C may crash.
"""

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

from pagefl import UserError
from pagefl.data import flgo, leaf, mnist, pfllib, tiny_imagenet
from pagefl.data.huggingface import from_disk

MEMORY, SECONDS = 8 * 2**30, 120
LABELS = datasets.ClassLabel(names=["a", "b"])
EXTREMES = [0, 1, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**33, 2**40, 2**62, 2**64 - 1]


def picture(kind: str, side: int) -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, kind, **({"quality": 5} if kind == "JPEG" else {}))
    return content.getvalue()


def make_zip(path: Path, method: int) -> None:
    image, names = picture("JPEG", tiny_imagenet.SIZE), [f"n{i:08}" for i in range(tiny_imagenet.CLASSES)]
    files: dict[str, str | bytes] = {"wnids.txt": "\n".join(names)}
    files |= {f"train/{name}/images/{name}_0.JPEG": image for name in names}
    files |= {f"val/images/{i}.JPEG": image for i in range(3)}
    files["val/val_annotations.txt"] = "".join(f"{i}.JPEG\t{names[i]}\t0\t0\t1\t1\n" for i in range(3))
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(f"{tiny_imagenet.FOLDER}/{name}", content)


def make_federation(folder: Path, kind: int) -> None:
    values, feature = [
        (np.random.default_rng(0).normal(size=(30, 4)), datasets.List(datasets.Value("float64"))),
        (np.zeros((30, 2, 3), np.uint8), datasets.Array2D((2, 3), "uint8")),
        ([{"bytes": picture("PNG", 6), "path": None}] * 30, datasets.Image()),
    ][kind]
    features = datasets.Features({"x": feature, "label": LABELS})
    table = datasets.Dataset.from_dict({"x": values, "label": [0, 1] * 15}, features=features)
    table.save_to_disk(folder / "partition_0")


def make_published(folder: Path, packed: bool) -> None:
    """A PFLlib folder, a FLGo data.json, LEAF's images and texts, and an IDX file."""
    data = {"x": np.zeros((8, 1, 4, 4), np.float32), "y": np.arange(8) % 2}
    for part in ("train", "test"):
        (folder / "pfllib" / part).mkdir(parents=True)
        (np.savez_compressed if packed else np.savez)(folder / "pfllib" / part / "0.npz", data=data)
    (folder / "pfllib/config.json").write_text('{"num_clients": 1, "num_classes": 2}')
    (folder / "flgo.json").write_text(
        '{"client_names": ["a", "b"], "a": {"data": [3, 1]}, "b": {"data": [0, 2]}}'
    )
    for form, sample, label in (("vectors", [0.5] * 4, 1), ("texts", "abc", "d")):
        own = {"users": ["a"], "num_samples": [9], "user_data": {"a": {"x": [sample] * 9, "y": [label] * 9}}}
        (folder / form).mkdir()
        (folder / form / "0.json").write_text(json.dumps(own))
    (folder / "images.idx").write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 3]) + bytes(18))


def read_published(folder: Path, name: str) -> object:
    if name == "pfllib":
        return pfllib.from_folder(folder / name)
    if name == "flgo.json":
        return flgo._places(folder / name, flgo.bounded.json_file(folder / name, 10**6))
    if name == "images.idx":
        return mnist._array(folder / name, (folder / name).read_bytes(), 3)
    return leaf.from_folder(folder / name)


def mutate(content: bytes, chance: random.Random) -> bytes:
    """Change bytes anywhere or in the headers, write extreme numbers, cut, delete, insert or repeat."""
    changed = bytearray(content)
    how = chance.choice(["flip", "byte", "number", "header", "cut", "delete", "insert", "repeat"])
    marks = [i for i in range(len(content) - 3) if content[i : i + 2] == b"PK"] if how == "header" else []
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        place = chance.randrange(len(changed) or 1)
        if how == "cut":
            return bytes(changed[:place])
        if how == "flip" and changed:
            changed[place] ^= 1 << chance.randrange(8)
        elif how == "byte" and changed:
            changed[
                chance.choice([place, min(place, 1500), max(place, len(changed) - 1500) % len(changed)])
            ] = chance.randrange(256)
        elif how in ("number", "header"):
            size = chance.choice([2, 4, 8])
            place = chance.choice(marks) + 4 + 2 * chance.randrange(21) if marks else place - place % size
            changed[place : place + size] = (chance.choice(EXTREMES) % 256**size).to_bytes(size, "little")
        elif how == "delete":
            del changed[place : place + chance.randrange(1, 200)]
        elif how == "insert":
            changed[place:place] = chance.randbytes(chance.randrange(1, 50))
        elif how == "repeat":
            other = chance.randrange(len(changed) or 1)
            changed[place : place + 46] = changed[other : other + 46]
    return bytes(changed)


def ended(read: Callable[[], object]) -> str:
    """How reading ended, in a process of its own: read, refused, or what is wrong."""
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.alarm(SECONDS)
        try:
            read()
            told = "read"
        except UserError as error:
            told = "refused" if str(error).isprintable() else f"bad sentence: {error}"
        except BaseException:
            told = f"traceback: {traceback.format_exc(limit=-3)}"
        os.write(sender, told.encode()[:4000])
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        told = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    return f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else told


def count(zips: int, arrows: int, published: int = 0, seed: int = 0) -> tuple[Counter[str], list[str]]:
    """How many ended how, and the first failures."""
    datasets.disable_progress_bars()
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        root, kinds = Path(place), 3
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            make_zip(root / f"{method}.zip", method)
        for kind in range(kinds):
            make_federation(root / f"federation-{kind}", kind)
        for packed in (False, True):
            make_published(root / f"published-{packed}", packed)
        for number in range(zips + arrows + published):
            chance = random.Random(f"{seed} {number}")  # noqa: S311 (mutants are no secrets)
            run = root / "run"
            shutil.rmtree(run, ignore_errors=True)
            if number < zips:
                run.mkdir()
                base = root / f"{chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])}.zip"
                (run / f"{tiny_imagenet.FOLDER}.zip").write_bytes(mutate(base.read_bytes(), chance))
                told = ended(
                    lambda run=run: (
                        tiny_imagenet.TINY_IMAGENET.check(run),
                        tiny_imagenet.TINY_IMAGENET.load(run),
                    )
                )
            elif number >= zips + arrows:
                shutil.copytree(root / f"published-{chance.random() < 0.5}", run)
                name = chance.choice([*["pfllib"] * 4, "flgo.json", "vectors", "texts", "images.idx"])
                file = chance.choice([path for path in sorted(run.rglob("*.*")) if name in str(path)])
                file.write_bytes(mutate(file.read_bytes(), chance))
                told = ended(lambda run=run, name=name: read_published(run, name))
            else:
                shutil.copytree(root / f"federation-{chance.randrange(kinds)}", run)
                file = chance.choice([*sorted(run.rglob("*.arrow")) * 5, *sorted(run.rglob("*.json"))])
                file.write_bytes(mutate(file.read_bytes(), chance))
                told = ended(lambda run=run: from_disk(run))
            kind = "zips" if number < zips else "arrows" if number < zips + arrows else "published"
            counts[f"{kind} {told.partition(':')[0]}"] += 1
            if told not in ("read", "refused") and len(failures) < 10:
                failures.append(f"mutant {number}: {told}")
    return counts, failures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zips", type=int, default=3000)
    parser.add_argument("--arrows", type=int, default=400)
    parser.add_argument("--published", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts, failures = count(given.zips, given.arrows, given.published, given.seed)
    print("\n".join(failures))
    print(", ".join(f"{counts[name]} {name}" for name in sorted(counts)))
    sys.exit(bool(failures))
