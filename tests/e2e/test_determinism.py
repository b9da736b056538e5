"""Two processes export the same bytes, name options alike and compute the same bits."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"

PROGRAM = """
import hashlib, os, sys
sys.path.insert(0, sys.argv[1])
import torch
import taper_frontend
from control_flow import Counting, X
from taper_frontend.request.options import Options
from taper_runtime import InferenceSession

torch.set_num_threads(int(os.environ["TAPER_NUM_THREADS"]))


def seeded(make, *args):
    torch.manual_seed(0)
    return make(*args).eval()


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)

    def forward(self, x):
        x = self.layer(x)
        return {"all": x, "mean": x.mean(1)}


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU()
        )
        self.second = torch.nn.Conv2d(32, 48, 3, padding=1)
        self.last = torch.nn.Linear(48, 1000)

    def forward(self, x):
        return self.last(self.second(self.first(x)).mean((2, 3))).softmax(-1)


rows = torch.export.Dim("rows", min=2, max=64)
torch.manual_seed(1)
cases = {
    "varying": (seeded(Attention), (torch.randn(2, 33, 64),), {"x": {1: rows}}),
    "images": (seeded(Images), (torch.randn(2, 3, 32, 32),), None),
    "lstm": (seeded(torch.nn.LSTM, 96, 64), (torch.randn(3, 2, 96),), None),
    "loop": (Counting(), (X,), None),
}
for name, (module, args, shapes) in cases.items():
    plan = taper_frontend.export(module, args, dynamic_shapes=shapes)
    plan.save("m.taper")
    file = hashlib.sha256(open("m.taper", "rb").read()).hexdigest()
    outputs = InferenceSession("m.taper").run(None, dict(plan.samples))
    bits = hashlib.sha256(b"".join(array.tobytes() for array in outputs)).hexdigest()
    print(name, file, bits, plan.metadata["verified"])
print(Options(metadata={"a": "1", "b": "2"}, dynamic_shapes={"x": {1: rows}}).fingerprint())
"""


def begin(folder, seed, threads):
    folder.mkdir()
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TAPER_NUM_THREADS")
    environment = os.environ | {"PYTHONHASHSEED": seed} | dict.fromkeys(names, threads)
    command = [sys.executable, "-c", PROGRAM, SUPPORT]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)


def test_bytes_and_bits_of_two_processes(tmp_path):
    processes = begin(tmp_path / "a", "0", "1"), begin(tmp_path / "b", "12345", "2")
    one, two = (process.communicate(timeout=300)[0].splitlines() for process in processes)
    assert len(one) == 5
    assert one == two
