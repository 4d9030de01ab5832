"""The console under load: a run is written at 50 rounds a second while three browsers watch it.

    python benchmarks/console_load.py [--rounds 5000] [--clients 200] [--browsers 3]

In turns of some seconds the console serves its pages, and is held still. So the two are compared under the
same load of the machine: what a round costs the run, with and without watchers. It also prints the frames of
the pages while they are served, and the console's memory and share of a core. Needs the extras `console` and
`test`, and Chromium.
"""

import argparse
import fcntl
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time, sleep, time

import numpy as np

CHROMIUM = "/usr/bin/chromium"
PACE, WORK = 50, 200  # rounds a second, and the size of the matrices that stand for a round's training
TABLES = '[task]\nname = "synthetic"\n[algorithm]\nname = "fedavg"\n[players]\nname = "page"\n'
TURN, SETTLED = 5.0, 1.0  # seconds of a turn, and how many of them are not counted
FRAMES = """() => {
  window.frames_ = []; window.tasks_ = [];
  const now_ = () => Date.now() / 1000;
  const note = list => window.tasks_.push(...list.getEntries().map(entry => [now_(), entry.duration]));
  new PerformanceObserver(note).observe({type: "longtask"});
  let last = performance.now();
  const tick = now => {
    window.frames_.push([now_(), now - last]);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
}"""
Moments = list[tuple[float, float]]  # time of day, and seconds or milliseconds


def write(path: Path, rounds: int, clients: int) -> None:
    """What a run does: some work, a record of the round, a record of its clients; 50 times a second."""
    from pagefl.runtime.record import Records

    path.mkdir(parents=True)
    (path / "spec.toml").write_text(f"rounds = {rounds}\nseed = 0\n{TABLES}")
    records = Records(path)
    moments: list[tuple[float, float, float]] = []  # time of day, seconds, CPU seconds
    records.open()
    draw = np.random.default_rng(0)
    matrix = draw.normal(size=(WORK, WORK))
    with (path / ".lock").open("w") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        begun = perf_counter()
        for number in range(1, rounds + 1):
            started, worked = perf_counter(), process_time()
            np.linalg.matrix_power(matrix / WORK, 20)
            learnt = 1 - np.exp(-number / 800)
            columns = {
                name: draw.random(clients).round(6).tolist() for name in ("lr", "epochs", "weight", "reward")
            }
            entry = {"round": number, "local_accuracy": [learnt] * clients, **columns}
            numbers = {
                "global_accuracy": learnt * 0.9,
                "local_accuracy": learnt,
                "local_worst10": learnt * 0.7,
            }
            numbers |= {
                "global_loss": 2 - learnt,
                "reward_server": 1 / (2.01 - learnt),
                "mean_lr": 0.1 / number,
            }
            numbers |= {
                "participants": clients,
                "quarantined": 0,
                "seconds": 0.02,
                "bytes_up": 1e6,
                "bytes_down": 1e6,
            }
            records.write({"round": number, "bias": "1:1", **numbers}, entry)
            moments.append((time(), perf_counter() - started, process_time() - worked))
            sleep(max(0.0, begun + number / PACE - perf_counter()))
    print(json.dumps(moments))


def started(path: Path, rounds: int, clients: int) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        __file__,
        "--write",
        str(path),
        "--rounds",
        str(rounds),
        "--clients",
        str(clients),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)  # noqa: S603 (ourselves)


def within(moments: Moments, turns: list[tuple[float, float]]) -> list[float]:
    return [value for moment, value in moments if any(a + SETTLED <= moment <= b for a, b in turns)]


def compared(moments: Moments, turns: dict[bool, list[tuple[float, float]]]) -> dict[str, object]:
    served, still = (statistics.median(within(moments, turns[serving])) for serving in (True, False))
    return {"served": round(served, 2), "held_still": round(still, 2), "slower": f"{served / still - 1:+.1%}"}


def in_turns(
    writer: "subprocess.Popen[bytes]", console: int
) -> tuple[list[tuple[float, float, float]], dict[bool, list[tuple[float, float]]], float]:
    """Hold the console still every other turn. Returns the run's rounds, the turns, and the most memory."""
    turns: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    most, serving, output = memory(console), True, b""
    while True:
        began = time()
        try:
            output = writer.communicate(timeout=TURN)[0]
        except subprocess.TimeoutExpired:
            most = max(most, memory(console))
        turns[serving].append((began, time()))
        serving = not serving or bool(output)
        os.kill(console, signal.SIGCONT if serving else signal.SIGSTOP)
        if output:
            return json.loads(output), turns, most


def share_of_core(process: int) -> float:
    """CPU seconds so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """Megabytes of a process and its children, shared ones counted once."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = [process, *(child for child, parent in parents.items() if parent == process)]
    total = 0
    for one in family:
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1000


def watched(root: Path, rounds: int, clients: int, browsers: int) -> dict[str, object]:
    from playwright.sync_api import sync_playwright

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "pagefl", "console", str(root), "--port", str(port)]
    console = subprocess.Popen(command)  # noqa: S603 (ourselves)
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            sleep(0.2)
        writer = started(root / "live", rounds, clients)
        while not (root / "live" / "rounds.jsonl").exists():
            sleep(0.1)
        with sync_playwright() as driver, ExitStack() as closing:
            pages = []
            for _ in range(browsers):
                arguments = ["--headless", "--no-sandbox", "--disable-gpu"]
                browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
                closing.callback(browser.close)
                pages.append(browser.new_page(viewport={"width": 1200, "height": 900}))
                pages[-1].goto(f"http://127.0.0.1:{port}/runs/live")
            pages[0].wait_for_timeout(5000)
            for page in pages:
                page.evaluate(FRAMES)
            busy = share_of_core(console.pid)
            rounds_, turns, most = in_turns(writer, console.pid)
            busy = share_of_core(console.pid) - busy
            pages[0].wait_for_timeout(3000)
            frames = sorted(
                within([one for page in pages for one in page.evaluate("window.frames_")], turns[True])
            )
            tasks = within([one for page in pages for one in page.evaluate("window.tasks_")], turns[True])
            shown = [page.text_content("#reached") for page in pages]
        wall, cpu = ([(one[0], 1000 * one[place]) for one in rounds_] for place in (1, 2))
        return {
            "round_ms": compared(wall, turns),
            "round_cpu_ms": compared(cpu, turns),
            "frames": {
                "count": len(frames),
                "median_ms": round(statistics.median(frames), 1),
                "p99_ms": round(frames[int(0.99 * len(frames))], 1),
                "under_50_ms": f"{sum(frame < 50 for frame in frames) / len(frames):.2%}",
            },
            "long_tasks": {"count": len(tasks), "longest_ms": max(tasks, default=0)},
            "memory_MB": round(most),
            "console_share_of_a_core": round(busy / sum(end - start for start, end in turns[True]), 3),
            "shown": shown,
        }
    finally:
        console.terminate()
        console.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--browsers", type=int, default=3)
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    if asked.write:
        write(asked.write, asked.rounds, asked.clients)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = watched(Path(folder), asked.rounds, asked.clients, asked.browsers)
    print(json.dumps({**found, "load": os.getloadavg()}, indent=1))


if __name__ == "__main__":
    main()
