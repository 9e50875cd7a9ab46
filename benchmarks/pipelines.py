"""Throughput of extraction: one worker and two on Ray, and `outlines-cont extract` of this tree beside that of another.

Run from the repository's root, on a machine that does nothing else:

    OMP_NUM_THREADS=1 python -m benchmarks.pipelines --rows 600 --rounds 3 --other ../older-tree

Each command runs in a process of its own with one thread per worker, and they take turns. Rows per second are those between the first
and the last that are seen, so neither loading the model nor starting and stopping Ray counts; `cpu s` is the processor time of the
command, without that of the processes of Ray.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe, sentence
from scripts.tiny.corpus import DEMO_KINDS, MessageSource, demo_task

ROOT = Path(__file__).parents[1]


def write_input(folder: Path, count: int) -> None:
    """Held-out messages with the demo's record, as a Parquet file is too much to ask of an older tree: JSON lines."""
    rng, source = random.Random("pipelines"), MessageSource(held_out=True)
    messages = [source.draw(rng, rng.choice(DEMO_KINDS), complete=True) for _ in range(count)]
    rows = [json.dumps({"id": number, "text": message.text}) for number, message in enumerate(messages)]
    (folder / "in.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "schema.json").write_text(json.dumps(demo_task(messages[0]).schema), encoding="utf-8")


def run(tree: Path, folder: Path, options: list[str]) -> tuple[float, float]:
    """Run the command; return rows per second after those that were there first, and the processor seconds of all its processes.

    Raises:
        SystemExit: it failed, or had written too much when its output was first seen.
    """
    output = folder / "out.jsonl"
    output.unlink(missing_ok=True)
    # The same weights for every tree.
    model = ["-m", str(ROOT / "outlines_cont" / "models" / "tiny"), "--dtype", "float32"]
    arguments = ["extract", "in.jsonl", "-s", "schema.json", "-o", "out.jsonl", "--no-progress", *model, *options]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-m", "outlines_cont.cli", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    seen: list[tuple[float, int]] = []  # when the output had grown, and how long it was
    while process.poll() is None:
        size = output.stat().st_size if output.exists() else 0
        if size and (not seen or size != seen[-1][1]):
            seen.append((time.perf_counter(), size))
        time.sleep(0.005)
    if process.returncode or not seen:
        raise SystemExit(f"the command failed: {' '.join(arguments)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (first, size), (last, _) = seen[0], seen[-1]
    lines = output.read_bytes()
    rows, begun = lines.count(b"\n"), lines.count(b"\n", 0, size)
    if begun > rows / 4:
        raise SystemExit(f"{begun} of {rows} rows were there at once: take more `--rows`")
    return (rows - begun) / (last - first), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--other", type=Path, help="Another tree of this repository, to compare `extract` with.")
    parser.add_argument("--only", default="", help="Cases whose names hold this text, such as Ray or extract.")
    options = parser.parse_args()
    cases: list[tuple[str, Path, list[str]]] = [("extract", ROOT, [])]
    if options.other is not None:
        cases.append(("extract, other tree", options.other.resolve(), []))
    cases += [("1 worker on Ray", ROOT, ["--workers", "1", "--ray-address", "local"])]
    cases += [("2 workers on Ray", ROOT, ["--workers", "2"])]
    cases = [case for case in cases if options.only in case[0]]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name, *_ in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_input(folder, options.rows)
        for _ in range(options.rounds):
            for case, tree, more in cases:
                times[case].append(run(tree, folder, more))
    table = Table("what", "rows/s (median)", "least", "most", "cpu s", box=None)
    for case, found in times.items():
        rates = sorted(rate for rate, _ in found)
        cpu = statistics.median(seconds for _, seconds in found)
        table.add_row(case, f"{statistics.median(rates):.1f}", f"{rates[0]:.1f}", f"{rates[-1]:.1f}", f"{cpu:.1f}")
    console = Console(width=110)
    console.print(sentence(describe(["torch", "transformers", "ray"])))
    console.print(table)


if __name__ == "__main__":
    main()
