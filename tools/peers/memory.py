"""Measure memory, files and start beside other engines; `--quick` only prints.

Each engine runs its own file, weights included, in a process that does not load torch, on one
thread; the processes take turns. The table goes to docs/results/benchmarks.md; a quick run prints
it and writes nothing.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import taper_frontend
from taper_runtime import load
from taper_runtime.executor.memory_use import memory_use
from tools.peers.bytecode import environment
from tools.peers.cases import SETS
from tools.peers.page import ROOT, command_line, describe_setting, write_section
from tools.peers.start import ENGINES

#: Set and model of each row.
ROWS = [("minilm", "MiniLM 1x16"), ("gpt2", "GPT-2 1x64")]
ROWS += [("vision", name) for name in SETS["vision"]]


def save_all(module: torch.nn.Module, args: tuple[Any, ...], folder: Path) -> dict[str, Path]:
    """Write the file of every engine, and the inputs beside them; return the files."""
    import openvino as ov

    names = {"taper": "model.taper", "ONNX Runtime": "model.onnx", "OpenVINO": "model.xml"}
    files = {}
    for index, (engine, name) in enumerate(names.items()):
        (folder / str(index)).mkdir()
        files[engine] = folder / str(index) / name
    taper_frontend.export(module, args, verify=False).save(files["taper"])
    torch.onnx.export(module, args, dynamo=True, verbose=False).save(
        files["ONNX Runtime"], external_data=True
    )
    model = ov.convert_model(torch.export.export(module, args))
    ov.save_model(model, files["OpenVINO"], compress_to_fp16=False)
    inputs = {f"input{i}": a.numpy() for i, a in enumerate(args)}
    np.savez(folder / "inputs.npz", **inputs)
    return files


def start(engine: str, model: Path, inputs: Path) -> tuple[float, int]:
    """Seconds from the start of a process to its first result, and the most bytes it has held."""
    command = [sys.executable, "-m", "tools.peers.start", engine, str(model), str(inputs)]
    settings = environment()
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=settings, check=True, capture_output=True, text=True
    )
    return time.perf_counter() - begin, int(done.stdout)


def row(family: str, model: str, rounds: int) -> str:
    """A row of the table."""
    module, args = SETS[family][model]()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        with torch.no_grad():
            files = save_all(module, args, folder)
        memory = memory_use(load(files["taper"]))
        taken: dict[str, list[tuple[float, int]]] = {name: [] for name in files}
        for _ in range(1 + rounds):
            for name, file in files.items():
                taken[name].append(start(name, file, folder / "inputs.npz"))
        cells = [_mb(memory.arena), _mb(memory.lower_bound)]
        for name, file in files.items():
            on_disk = sum(part.stat().st_size for part in file.parent.iterdir())
            seconds = statistics.median(s for s, _ in taken[name][1:])
            peak = max(bytes_ for _, bytes_ in taken[name])
            cells.append(f"{_mb(on_disk)} / {_mb(peak)} / {seconds:.2f}")
    return f"| {model} | {' | '.join(cells)} |"


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.0f}" if nbytes >= 20e6 else f"{nbytes / 1e6:.1f}"


def main() -> None:
    """Measure every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one turn: print, write nothing")
    options = parser.parse_args()
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision aloud
    setting = describe_setting(command_line("memory"), "onnxruntime", "openvino")
    table = [f"| model | arena | lower bound | {' | '.join(ENGINES)} |"]
    table.append("| --- " * (len(ENGINES) + 3) + "|")
    print(setting, *table, sep="\n", flush=True)
    for family, model in ROWS:
        table.append(row(family, model, 1 if options.quick else 5))
        print(table[-1], flush=True)
    if not options.quick:
        write_section("memory", "Memory and start", "\n".join([setting, "", *table]))


if __name__ == "__main__":
    main()
