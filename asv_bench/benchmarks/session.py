"""Opening and running plans."""

import statistics
import tempfile
from pathlib import Path

import taper_frontend
import taper_runtime
from callers import call_from
from models import BLOCK_SIZES, MINILM_SIZES, MLP_SIZES, block, encoder, mlp, towers
from taper_runtime.executor.memory_use import memory_use


class Plans:
    """One plan per case, exported once for all benchmarks of the class."""

    cases = {
        **{f"mlp {b}x{w}": (mlp, (b, w)) for b, w in MLP_SIZES},
        **{f"block {b}x{s}x{w}": (block, (b, s, w)) for b, s, w in BLOCK_SIZES},
        **{f"encoder {b}x{s}": (encoder, (b, s)) for b, s in MINILM_SIZES},
    }
    params = list(cases)
    param_names = ["model"]
    timeout = 300

    def setup_cache(self):
        directory = Path(tempfile.mkdtemp())
        for i, (make, sizes) in enumerate(self.cases.values()):
            taper_frontend.export(*make(*sizes), verify=False).save(directory / f"{i}.taper")
        return directory

    def setup(self, directory, case):
        self.path = directory / f"{self.params.index(case)}.taper"
        self.session = taper_runtime.InferenceSession(self.path)
        self.feed = dict(self.session.plan.samples)
        self.session.run(None, self.feed)

    def time_run(self, directory, case):
        self.session.run(None, self.feed)

    def time_open(self, directory, case):
        taper_runtime.InferenceSession(self.path)

    def track_arena_bytes(self, directory, case):
        return memory_use(self.session.plan).arena

    track_arena_bytes.unit = "bytes"

    def peakmem_run(self, directory, case):
        self.session.run(None, self.feed)


class Overhead:
    """What a run costs beyond its nodes: a plan of one small node."""

    def setup(self):
        import torch

        class Add(torch.nn.Module):
            def forward(self, x):
                return x + 1.0

        plan = taper_frontend.export(Add().eval(), (torch.zeros(4),), verify=False)
        self.session = taper_runtime.InferenceSession(plan)
        self.feed = dict(plan.samples)

    def time_run(self):
        self.session.run(None, self.feed)


class NodesAtOnce:
    """Nodes in order and at the same time, on two threads: branches, and a chain."""

    cases = {"8 branches": (8, 256, 3), "2 branches": (2, 256, 12), "chain": (1, 256, 24)}
    params = [list(cases), ["sequential", "parallel"]]
    param_names = ["model", "mode"]

    def setup_cache(self):
        directory = Path(tempfile.mkdtemp())
        for name, sizes in self.cases.items():
            taper_frontend.export(*towers(*sizes), verify=False).save(directory / f"{name}.taper")
        return directory

    def setup(self, directory, name, mode):
        options = taper_runtime.SessionOptions()
        options.execution_mode = mode
        options.intra_op_num_threads = options.inter_op_num_threads = 2
        self.session = taper_runtime.InferenceSession(directory / f"{name}.taper", options)
        self.feed = dict(self.session.plan.samples)
        self.session.run(None, self.feed)

    def time_run(self, directory, name, mode):
        self.session.run(None, self.feed)


class Callers:
    """Requests from threads, each run on one thread: 64 of them."""

    params = [1, 2, 8, 32]
    param_names = ["callers"]

    def setup_cache(self):
        path = Path(tempfile.mkdtemp()) / "encoder.taper"
        taper_frontend.export(*encoder(1, 16), verify=False).save(path)
        return path

    def setup(self, path, callers):
        options = taper_runtime.SessionOptions()
        options.intra_op_num_threads = 1
        session = taper_runtime.InferenceSession(path, options)
        feed = dict(session.plan.samples)
        self.run = lambda: session.run(None, feed)
        call_from(callers, self.run, callers)

    def time_requests(self, path, callers):
        call_from(callers, self.run, 64)

    def track_p95(self, path, callers):
        return statistics.quantiles(call_from(callers, self.run, 256).latencies, n=20)[-1]

    track_p95.unit = "seconds"
