"""Write down what the zoo's plans are made of: `-o FILE`; on another commit `--against FILE`.

python -m tools.zoo.plans -o FILE.json              writes it
python -m tools.zoo.plans --against FILE.json       prints what differs from what was written before

Of each architecture: nodes, bytes of the arena and of the file, fallbacks, and a digest of the
results on one thread. Where an architecture cannot be exported, why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import taper_frontend
import taper_runtime
from taper_runtime.base.progress import progress
from taper_runtime.executor.memory_use import memory_use
from tools.zoo import GROUPS

if TYPE_CHECKING:
    from tools.zoo.architecture import Architecture


def outcome(architecture: Architecture) -> dict[str, Any]:
    """Export an architecture and run its plan; what became of it as plain data."""
    module, inputs = architecture.build()
    try:
        plan = taper_frontend.export(module, (), inputs, verify=False)
    except Exception as error:  # the outcome says what it was
        return {"error": type(error).__name__}
    with TemporaryDirectory() as directory:
        path = Path(directory, "model.taper")
        plan.save(path)
        options = taper_runtime.SessionOptions()
        options.intra_op_num_threads = 1
        results = taper_runtime.InferenceSession(path, options).run(None, dict(plan.samples))
        nbytes = path.stat().st_size
    digest = hashlib.sha256()
    for array in results:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return {
        "nodes": len(plan.nodes),
        "arena": memory_use(plan).arena,
        "file": nbytes,
        "fallbacks": len(plan.metadata["fallbacks"]),
        "digest": digest.hexdigest()[:16],
    }


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return what differs between two outcomes; empty if nothing does."""
    keys = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    return ", ".join(f"{key} {before.get(key)} -> {now.get(key)}" for key in keys)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="where to write the outcomes")
    parser.add_argument("--against", type=Path, help="outcomes to compare with")
    options = parser.parse_args()
    before = json.loads(options.against.read_text()) if options.against else {}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models warn of their own configs
    outcomes = {}
    with progress("models", sum(map(len, GROUPS.values()))) as advance:
        for group, members in GROUPS.items():
            for name, architecture in members.items():
                key = f"{group} {name}"
                outcomes[key] = outcome(architecture)
                if key in before and (text := difference(before[key], outcomes[key])):
                    print(f"{key}: {text}", flush=True)
                advance()
    print(f"{len(outcomes)} plans")
    if options.output:
        options.output.write_text(json.dumps(outcomes, indent=1))


if __name__ == "__main__":
    main()
