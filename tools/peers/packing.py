"""Measure packed weights that are stored in the file and made at open; `--quick` only prints.

Each file is opened and run once in a process without torch, on one thread; the two kinds take
turns. Times are those of the CPU. A quick run measures once, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import taper_frontend
from tools.peers.cases import SETS
from tools.peers.page import ROOT, command_line, describe_setting, write_section

PAGE = ROOT / "docs" / "results" / "packing.md"

#: What a process prints: seconds until open and of the first run, bytes packed when opened, bytes
#: of its own, and a digest of the outputs.
_PROCESS = """
import hashlib, json, sys, time
import taper_runtime
options = taper_runtime.SessionOptions()
options.intra_op_num_threads = 1
begin = time.process_time()
session = taper_runtime.InferenceSession(sys.argv[1], options)
opened = time.process_time()
outputs = session.run(None, dict(session.plan.samples))
done = time.process_time()
lines = open("/proc/self/smaps_rollup").read().splitlines()[1:]
sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
own = sizes["Anonymous"]
digest = hashlib.sha256(b"".join(y.tobytes() for y in outputs)).hexdigest()
times = [opened - begin, done - opened]
print(json.dumps([*times, session.stats().packed_bytes, own, digest]))
"""


WIDTHS, DEPTHS = (64, 128, 256, 512, 512), (2, 2, 3, 3, 3)


class Vgg(nn.Module):
    """The convolutions of VGG-16, with batch norms."""

    def __init__(self) -> None:
        super().__init__()
        before = (3, *WIDTHS)
        self.stages = nn.ModuleList(
            nn.Sequential(*(layer for i in range(n) for layer in _conv(b if i else a, b)))
            for a, b, n in zip(before, WIDTHS, DEPTHS, strict=False)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return what each stage gives."""
        found = []
        for stage in self.stages:
            x = stage(nn.functional.max_pool2d(x, 2) if found else x)
            found.append(x)
        return found


class Detector(nn.Module):
    """A detector of text in CRAFT's form: VGG-16, and four steps back up."""

    def __init__(self) -> None:
        super().__init__()
        self.down = Vgg()
        self.bottom = nn.Sequential(*_conv(512, 1024), *_conv(1024, 512, 1))
        self.ups = nn.ModuleList(
            nn.Sequential(*_conv(a + b, a, 1), *_conv(a, c))
            for a, b, c in ((512, 512, 256), (256, 256, 128), (128, 128, 64), (64, 64, 32))
        )
        self.head = nn.Sequential(*_conv(32, 32), *_conv(32, 16), nn.Conv2d(16, 2, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the two maps."""
        *skips, x = self.down(x)
        x = self.bottom(x)
        for up, skip in zip(self.ups, skips[::-1], strict=True):
            x = nn.functional.interpolate(x, size=skip.shape[2:], mode="bilinear")
            x = up(torch.cat([x, skip], 1))
        out: torch.Tensor = self.head(x)
        return out


def _conv(a: int, b: int, kernel: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(a, b, kernel, padding=kernel // 2), nn.BatchNorm2d(b), nn.ReLU()]


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    """The models by name, each with its arguments."""
    return {
        "detector of text (VGG-16, CRAFT's form) 1x320": (
            Detector(),
            (torch.zeros(1, 3, 320, 320),),
        ),
        "VGG-16 without classifier 1x224": (Vgg(), (torch.zeros(1, 3, 224, 224),)),
        "ResNet-50 1x224": SETS["vision"]["ResNet-50 1x224"](),
        "MiniLM 1x128": SETS["minilm"]["MiniLM 1x128"](),
        "CRNN 1x256": SETS["recurrent"]["CRNN 1x256"](),
    }


def rows(name: str, module: nn.Module, args: tuple[torch.Tensor, ...], rounds: int) -> list[str]:
    """Measure one model.

    Raises
    ------
    AssertionError
        If the two files give other bits.
    """
    module = module.eval()
    with tempfile.TemporaryDirectory() as folder:
        files = {how: Path(folder, f"{how}.taper") for how in ("stored", "at_open")}
        for how, file in files.items():
            taper_frontend.export(module, args, verify=False, packing=how).save(file)
        runs: dict[str, list[list[float]]] = {how: [] for how in files}
        digests = set()
        for _ in range(rounds):
            for how, file in files.items():
                command = [sys.executable, "-c", _PROCESS, file]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                *numbers, digest = json.loads(done.stdout)
                runs[how].append(numbers)
                digests.add(digest)
        assert len(digests) == 1, f"{name}: other bits"
        weights = sum(p.numel() * 4 for p in module.parameters())
        found = []
        for how, file in files.items():
            medians = map(statistics.median, zip(*runs[how], strict=True))
            opened, first, packed, own = medians
            found.append(
                f"| {name} | {weights / 1e6:.0f} | `{how}` | {file.stat().st_size / 1e6:.1f} "
                f"| {1e3 * opened:.0f} | {1e3 * first:.0f} | {packed / 1e6:.1f} | {own / 1e6:.0f} |"
            )
        return found


def main() -> None:
    """Measure all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round each, printed only")
    quick = parser.parse_args().quick
    torch.manual_seed(0)
    lines = [
        "| model | weights, MB | packing | file, MB | open, ms | run, ms | packed, MB | own, MB |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (module, args) in models().items():
        lines += rows(name, module, args, 1 if quick else 5)
    table = "\n".join(lines)
    print(table)
    if not quick:
        text = f"{describe_setting(command_line('packing'))}\n\n{table}"
        write_section("packing", "Measured", text, PAGE)


if __name__ == "__main__":
    main()
