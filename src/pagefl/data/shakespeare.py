"""Shakespeare's plays by role, as in LEAF. Caldas et al.: LEAF: A Benchmark for Federated Settings. 2018.

A user is a role in a play. All that it says is one text, in which every 80 characters predict the next one.
"""

import re
from collections import defaultdict
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch

from pagefl.core import rng
from pagefl.core.errors import UserError

from . import bounded
from .federated import FederatedData
from .originals import Arrays, Original

LENGTH = 80  # characters that predict the next one
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
LARGEST = 20_000_000  # bytes; the original has 5 million
SHA256 = "5886dc8d8d2d1726fc93a1b014ff7db691707d5a2ccb8b8888d87037dccc8982"
BYLINE = "by William Shakespeare"  # below the title of every play
LAST_LINE = 124_195  # last line of the plays; the poems follow
FEWEST_LINES = 3  # roles with fewer lines are left out
TRAIN, TEST = 0.6125, 0.2625  # shares of a client's samples; the rest goes to the server


def verify(source: Path) -> str:
    _verified(source)
    return "sha256 as of the text that LEAF preprocesses"


def _verified(source: Path) -> str:
    with source.open("rb") as file:
        content = bounded.read(file, LARGEST, str(source))
    found = sha256(content).hexdigest()
    if found != SHA256:
        raise UserError(
            f"{source} has sha256 {found[:12]}…, the text that LEAF preprocesses has {SHA256[:12]}…: it "
            "is damaged or another "
            "edition (LEAF goes by the line numbers of this one)"
        )
    return content.decode("utf-8-sig")


def read(source: Path) -> Arrays:
    """All text as indices into ALPHABET, and `starts`: user i's text is text[starts[i]:starts[i + 1]]."""
    spoken = users(_verified(source))
    place = np.full(128, -1, np.int16)
    place[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
    text = place[np.frombuffer("".join(spoken.values()).encode("ascii", "replace"), np.uint8)]
    if not len(text) or text.min() < 0:
        raise UserError(
            f"{source} has a character that is not among LEAF's {len(ALPHABET)}; get the original text"
        )
    starts = np.cumsum([0, *(len(words) for words in spoken.values())])
    return {"text": torch.from_numpy(text.astype(np.uint8)), "starts": torch.from_numpy(starts)}


SHAKESPEARE = Original(
    name="shakespeare",
    places=("shakespeare/raw_data.txt",),
    home="http://www.gutenberg.org/files/100/old/1994-01-100.zip (LEAF's raw_data.txt)",
    verify=verify,
    read=read,
)


def users(works: str) -> dict[str, str]:
    """The text of each (play, role), in the order of the plays. Roles without a whole sample are left out."""
    spoken: dict[str, str] = {}
    for play, roles in _plays(works.splitlines()[1:]):
        for role, lines in roles.items():
            if len(lines) >= FEWEST_LINES:
                name = re.sub(r"\W+", "_", f"{play}_{role}")
                spoken[name] = re.sub("   *", " ", "".join(f"{line} " for line in lines))
    return {name: text for name, text in spoken.items() if len(text) > LENGTH}


def windows(arrays: Arrays, user: int, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` samples of a user from `first` on: x [count, LENGTH] in uint8, and the next characters."""
    start = int(arrays["starts"][user]) + first
    text = arrays["text"][start : start + count + LENGTH]
    return text[:-1].unfold(0, LENGTH, 1).clone(), text[LENGTH:].long()


def _plays(lines: list[str]) -> list[tuple[str, dict[str, list[str]]]]:
    bylines = [i for i, line in enumerate(lines) if BYLINE in line]
    if len(bylines) < 2:
        raise UserError(
            f"the text has {len(bylines)} lines {BYLINE!r}; the complete works have one for every play"
        )
    found = []
    for begin, end in zip(bylines[1:], [*bylines[2:], LAST_LINE + 1], strict=True):  # without the sonnets
        title = next(lines[begin - up].strip() for up in range(2, 8) if lines[begin - up].strip() or up == 7)
        found.append(
            (
                title,
                _roles(
                    lines[begin + 1 : min(end, LAST_LINE + 1)], flush_left=title == "THE COMEDY OF ERRORS"
                ),
            )
        )
    return [(title, roles) for title, roles in found if len(roles) > 1]


def _roles(lines: list[str], flush_left: bool) -> dict[str, list[str]]:
    """`flush_left`: for the one play whose lines are not indented."""
    speaks = re.compile(r"^([a-zA-Z][a-zA-Z ]*)\. (.*)" if flush_left else r"^  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
    goes_on = re.compile(r"^(.*)" if flush_left else r"^    (.*)")
    roles: dict[str, list[str]] = defaultdict(list)
    role = None
    for line in lines:
        if match := speaks.match(line):
            role = match.group(1).upper()
            if flush_left and role.startswith("ACT "):
                role = None
            else:
                roles[role].append(match.group(2))
        elif role and (match := goes_on.match(line)):
            if flush_left and match.group(1).startswith("<"):
                role = None
            else:
                roles[role].append(match.group(1))
    return roles


def federation(clients: int, per_client: int, seed: int, length: int = LENGTH) -> FederatedData:
    """A federation in which each client is a role with enough samples.

    A sample is cut to its last `length` characters.

    A client trains on the beginning of its text and is tested on what follows. The server gets the rest. A
    gap of one window separates the parts, so that no character is in two of them.
    """
    arrays = SHAKESPEARE.load()
    parts = [round(per_client * share) for share in (TRAIN, TEST)]
    parts.append(per_client - sum(parts))
    samples = arrays["starts"].diff() - LENGTH
    able = torch.nonzero(samples >= per_client + 2 * LENGTH)[:, 0]
    if clients > len(able):
        raise UserError(
            f"task.clients = {clients}: only {len(able)} roles have the {per_client + 2 * LENGTH} samples "
            "that "
            f"task.per_client = {per_client} takes; use fewer of either"
        )
    if min(parts) < 1:
        raise UserError(
            f"task.per_client = {per_client}: it must leave a sample for the server; expected 8 or more"
        )
    chosen = able[torch.from_numpy(rng.stream(seed, "shakespeare", "roles").permutation(len(able)))][:clients]
    firsts = [0, parts[0] + LENGTH, parts[0] + parts[1] + 2 * LENGTH]
    train, test, server = (
        [
            (x[:, LENGTH - length :], y)
            for x, y in (windows(arrays, int(user), first, count) for user in chosen)
        ]
        for first, count in zip(firsts, parts, strict=True)
    )
    public = torch.cat([x for x, _ in server]), torch.cat([y for _, y in server])
    return FederatedData(train, test, public, seed=seed, in_order=True)
