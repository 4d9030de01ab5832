"""Damages record files and checkpoints at random, and counts what the commands make of them.

    python benchmarks/damage.py --records 500 --checkpoints 500

A finished run and one that was killed are copied, one file of the copy is damaged, and resume, report,
compare, load and verify are let loose on it. Each must give the right result, or refuse in one sentence and
leave every byte as it was.
"""

import argparse
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pagefl
from pagefl.cli import main
from pagefl.runtime import checkpoint

SPEC = {
    "task": {"name": "synthetic", "clients": 3},
    "players": {"name": "page", "warm_up": 2},
    "rounds": 8,
    "epochs": 1,
    "workers": 1,
    "checkpoint_seconds": 0.0,
    "stages_every": 3,
}
RUN = Path("run")  # every copy has this name, so that what is said of it is the same
Damage = Callable[[bytes, random.Random], bytes | None]


class Outcome(NamedTuple):
    refused: bool
    result: object  # what a user would take for the truth
    trace: str = ""


# --- how files are damaged
# -------------------------------------------------------------------------------------------------


def flip(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def digit(content: bytes, chance: random.Random) -> bytes:
    place = chance.choice([i for i, byte in enumerate(content) if byte in b"0123456789"])
    return (
        content[:place]
        + str((int(chr(content[place])) + chance.randrange(1, 10)) % 10).encode()
        + content[place + 1 :]
    )


def truncate(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def append(content: bytes, chance: random.Random) -> bytes:
    return content + chance.choice([b"x", b"\n", b"{}\n", b'{"round": 99}\n', chance.randbytes(100)])


def binary(content: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 2 * len(content)))


def zeros(content: bytes, chance: random.Random) -> bytes:
    start, end = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + bytes(end - start) + content[end:]


def lines(change: Callable[[list[bytes], random.Random], None]) -> Damage:
    def damage(content: bytes, chance: random.Random) -> bytes:
        parts = content.splitlines(keepends=True)
        change(parts, chance)
        return b"".join(parts)

    return damage


def cut_last(parts: list[bytes], chance: random.Random) -> None:
    del parts[-chance.randrange(1, len(parts) + 1) :]


def delete_line(parts: list[bytes], chance: random.Random) -> None:
    del parts[chance.randrange(len(parts))]


def repeat_line(parts: list[bytes], chance: random.Random) -> None:
    parts.insert(chance.randrange(len(parts) + 1), chance.choice(parts))


def swap_lines(parts: list[bytes], chance: random.Random) -> None:
    chance.shuffle(parts)


def header(content: bytes, chance: random.Random) -> bytes:
    end = 8 + int.from_bytes(content[:8], "little")
    return digit(content[:end], chance) + content[end:]


def empty(content: bytes, chance: random.Random) -> bytes:
    return b""


def nothing(content: bytes, chance: random.Random) -> None:
    """The file is deleted."""


ANY: list[Damage] = [flip, digit, truncate, append, binary, zeros, empty, nothing]
OF_RECORDS = [*ANY, *map(lines, (cut_last, delete_line, repeat_line, swap_lines))]
OF_CHECKPOINTS = [*ANY, header, flip]


# --- what is made of them
# --------------------------------------------------------------------------------------------------


def command(*words: object) -> Outcome:
    """In this process, as from a shell; what is on stdout is its result."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["pagefl", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        said = err.getvalue().strip().splitlines()
        sentence = (
            bool(said)
            and said[-1].startswith("pagefl: ")
            and sum(line.startswith("pagefl: ") for line in said) == 1
        )
        if end.code in (0, None):
            return Outcome(False, out.getvalue())
        return Outcome(True, None, "" if end.code == 2 and sentence else err.getvalue())
    except BaseException as error:  # what a user would see as a traceback
        return Outcome(True, None, f"{words}: {type(error).__name__}: {error}")
    return Outcome(True, None, f"{words}: main came back")


def resume() -> Outcome:
    done = command("resume", RUN)
    if done.refused:
        return done
    rounds = [json.loads(line) for line in (RUN / "rounds.jsonl").read_text().splitlines()]
    tensors, facts = checkpoint.read(RUN / "checkpoint")
    seconds_apart = [{name: value for name, value in entry.items() if name != "seconds"} for entry in rounds]
    return Outcome(
        False,
        (seconds_apart, (RUN / "clients.jsonl").read_bytes(), checkpoint.digest(tensors), facts["over"]),
    )


def report() -> Outcome:
    done = command("report", RUN, "--out", "page.html")
    if done.refused:
        return done
    page = re.sub(rb"<dt>Date</dt>.*?</dd>", b"", Path("page.html").read_bytes())  # of a copy, it is another
    return Outcome(False, sha256(page).hexdigest())


def load() -> Outcome:
    try:
        run = pagefl.load(RUN)
        return Outcome(False, (run.rounds, run.client_rounds, checkpoint.digest(run.state), run.over))
    except pagefl.UserError as error:
        return Outcome(True, None, "" if "\n" not in str(error) else f"load: two lines: {error}")
    except Exception as error:
        return Outcome(True, None, f"load: {type(error).__name__}: {error}")


COMMANDS: dict[str, Callable[[], Outcome]] = {
    "resume": resume,
    "report": report,
    "load": load,
    "compare": lambda: command("compare", RUN),
    "verify": lambda: command("verify", RUN, "--horizon", 1, "--clients", 1, "--random", 0, "--json"),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def make_runs() -> list[Path]:
    """A finished run; and one that was killed in round 7, of which the checkpoint vouches for five rounds."""
    finished, killed = Path("finished"), Path("killed")

    def observe(entry: dict[str, object]) -> None:
        if entry["round"] == 2:
            (current / "bias.request").write_text("2:1")
        if entry["round"] == 5 and current is killed:
            os.kill(os.getpid(), signal.SIGTERM)

    for current in (finished, killed):
        pagefl.run(**SPEC, out=current, observe=observe)
        (current / "report.html").unlink()
    for name in ("rounds.jsonl", "clients.jsonl"):
        parts = (finished / name).read_bytes().splitlines(keepends=True)
        with (killed / name).open("ab") as file:
            file.write(parts[5] + parts[6][:50])
    return [finished, killed]


def copy_of(base: Path) -> None:
    shutil.rmtree(RUN, ignore_errors=True)
    shutil.copytree(base, RUN)


def count(trials: dict[str, int], seed: int) -> Counter[str]:
    bases = make_runs()
    expected = {}
    for base in bases:
        for name, act in COMMANDS.items():
            copy_of(base)
            expected[base, name] = act()
    assert not any(outcome.refused for outcome in expected.values()), expected
    assert expected[bases[0], "resume"].result == expected[bases[1], "resume"].result
    counts: Counter[str] = Counter()
    for kind, number in trials.items():
        for i in range(number):
            chance = random.Random(f"{seed} {kind} {i}")  # noqa: S311 (damage, not secrets)
            base = bases[i % 2]
            copy_of(base)
            targets, how = choose(kind, chance)
            for target in targets:
                damaged = how(target.read_bytes(), chance)
                target.unlink() if damaged is None else target.write_bytes(damaged)
            before = contents(RUN)
            shutil.copytree(RUN, "damaged", dirs_exist_ok=False)
            for name, act in COMMANDS.items():
                copy_of(Path("damaged"))
                outcome, after = act(), contents(RUN)
                wrong = not outcome.refused and outcome.result != expected[base, name].result
                kept = (
                    after == before
                    if outcome.refused
                    else name == "resume" or before.items() <= after.items()
                )
                counts[f"{kind} {name} {'refused' if outcome.refused else 'right'}"] += not wrong
                for what, found in (
                    ("tracebacks", outcome.trace),
                    ("silently wrong", wrong),
                    ("lost bytes", not kept),
                ):
                    counts[what] += bool(found)
                    if found:
                        where = ", ".join(map(str, targets))
                        print(
                            f"{what}: {name} after {kind} {i} of {base} ({where}): {outcome.trace}",
                            flush=True,
                        )
            shutil.rmtree("damaged")
    return counts


def choose(kind: str, chance: random.Random) -> tuple[list[Path], Damage]:
    if kind == "records":
        return [
            RUN / chance.choice(["rounds.jsonl", "rounds.jsonl", "clients.jsonl", "bias.jsonl"])
        ], chance.choice(OF_RECORDS)
    both = [RUN / "checkpoint", RUN / "checkpoint.previous"]
    stage = RUN / "stages" / "000003" / "checkpoint"
    targets = chance.choice([both[:1], both[:1], both[1:], both, [stage]])
    if targets == both[:1] and chance.random() < 0.1:
        return targets, lambda content, _: stage.read_bytes()
    if targets == [stage]:  # to delete one is no damage: `verify` says from which it starts
        return targets, chance.choice([how for how in OF_CHECKPOINTS if how is not nothing])
    return targets, chance.choice(OF_CHECKPOINTS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--checkpoints", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = count({"records": given.records, "checkpoints": given.checkpoints}, given.seed)
        os.chdir("/")
    for name in sorted(set(found) - {"tracebacks", "silently wrong", "lost bytes"}):
        print(f"{name}: {found[name]}")
    bad = {name: found[name] for name in ("tracebacks", "silently wrong", "lost bytes")}
    print(", ".join(f"{number} {name}" for name, number in bad.items()))
    sys.exit(any(bad.values()))
