"""Programs in the simulator: a decoder's layer beside its plan, and what a node of a loop costs."""

import statistics
import time
import warnings

import numpy as np

import taper_frontend
import taper_openinfer
import taper_runtime
from decoder_layer import DecoderLayer, arguments, feed_of, simulated, step
from taper_openinfer.simulator.devices import LEVELS, available_devices

#: The device whose kernels are this CPU's best.
DEVICE = next(name for name in reversed(LEVELS) if name in available_devices())


class Layer:
    """One token through a layer with a cache of 512, on one thread: a program, and a plan of it."""

    params = ["program", "plan"]
    param_names = ["form"]

    def setup(self, form):
        layer = DecoderLayer().eval()
        executor, given = simulated(layer, DEVICE, moves=False).make_executor(), feed_of(0)
        options = taper_runtime.SessionOptions()
        options.isa, options.intra_op_num_threads = LEVELS[DEVICE], 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", taper_frontend.ExportWarning)
            plan = taper_frontend.export(layer, arguments(0), verify=False)
        session, feed = taper_runtime.InferenceSession(plan, options), dict(plan.samples)
        self.forms = {
            "program": lambda: step(executor, *given),
            "plan": lambda: session.run(None, feed),
        }
        for run in self.forms.values():
            run()

    def time_step(self, form):
        self.forms[form]()

    def track_against_plan(self, form):
        """Time of the form by that of the plan, the median of alternating runs."""
        ratios = []
        for _ in range(500):
            mine, theirs = _seconds(self.forms[form]), _seconds(self.forms["plan"])
            ratios.append(mine / theirs)
        return statistics.median(ratios)

    track_against_plan.unit = "ratio"


class Loop:
    """1,000 iterations of ten small ops and a write to a cache: 11,000 nodes."""

    program = """
    dynamic { x: f32[16]; }
    volatile { y: f32[16]; a: f32[16] @init(0.5); b: f32[16] @init(0.9); }
    persistent { K(t): f32[16] @table @fixed(t=1000); }
    block entry {
      op add(x, a) >> y;
      loop steps (i in 0..1000) {
        op add(y, a) >> y; op mul(y, b) >> y; op sub(y, a) >> y; op neg(y) >> y;
        op abs(y) >> y; op add(y, x) >> y; op mul(y, b) >> y; op max(y, a) >> y;
        op relu(y) >> y; op min(y, x) >> y;
        cache.write y >> K[i];
      }
    }
    """

    def setup(self):
        graph = taper_openinfer.parse(self.program)
        self.executor = taper_openinfer.Simulator(
            taper_openinfer.Model.of({}), graph, DEVICE
        ).make_executor()
        self.x = np.linspace(1, 2, 16, dtype=np.float32)
        self.time_step()

    def time_step(self):
        self.executor.insert_dynamic("x", self.x)
        self.executor.step()

    def track_node(self):
        """Nanoseconds of a node, its kernel among them: the least of many steps."""
        return min(_seconds(self.time_step) for _ in range(100)) / 11000 * 1e9

    track_node.unit = "ns"


def _seconds(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
