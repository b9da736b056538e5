"""Check a program against a model, and make executors that run it on a device."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from taper_openinfer.errors import check_choice, check_kind
from taper_openinfer.language.graph import Graph
from taper_openinfer.link import link as link_program
from taper_openinfer.native import Stretches
from taper_openinfer.oinf.reader import Model
from taper_openinfer.simulator.compiling import find_slots
from taper_openinfer.simulator.devices import level_of
from taper_openinfer.simulator.executor import Executor
from taper_openinfer.simulator.indices import Names
from taper_openinfer.simulator.variables import filled

if TYPE_CHECKING:
    import numpy as np


_LINKS = ("lenient", "strict")


class Simulator:
    """Runs a program step by step.

    Parameters
    ----------
    model : Model
        The model must stay open while the simulator is used: data are read when needed.
    graph : Graph
        The program. It is checked against the model before anything runs.
    device : str
        ``"Cpu"``, ``"CpuAvx"``, ``"CpuAvx2"``, ``"CpuAvx512"`` or ``"Neon"``.
    link : str
        ``"lenient"``: a volatile variable that the model lacks starts as ``@init`` or zeros.
        ``"strict"``: it is an error if a step reads such zeros before it writes the variable.

    Raises
    ------
    ProgramError
        If the program has errors; the message lists all of them.
    OpenInferError
        If this CPU or build lacks the device, or an argument is of another type or value.
    """

    def __init__(
        self, model: Model, graph: Graph, device: str = "Cpu", *, link: str = "lenient"
    ) -> None:
        check_kind("model", model, Model)
        check_kind("graph", graph, Graph)
        check_choice("link", link, _LINKS)
        level = level_of(device)
        self.device = device
        self.program = link_program(graph, model, strict=link == "strict", device=device)
        self.slots = find_slots(self.program)
        self.names = Names(self.program)
        self.stretches = Stretches(level)
        self.has_trace = self.has_timer = False
        self._tensors: dict[str, np.ndarray] = {}
        self._filled: dict[int, np.ndarray] = {}
        self._lock = Lock()

    def with_trace(self) -> Simulator:
        """Record every node that runs, and print its line."""
        self.has_trace = True
        return self

    def with_timer(self) -> Simulator:
        """Measure the time of every op that is traced or iterated over."""
        self.has_timer = True
        return self

    def make_executor(self) -> Executor:
        """Return an executor with persistent variables of its own."""
        return Executor(self)

    def first_value(self, number: int) -> np.ndarray:
        """Return a variable's initial value: read-only, one array for all executors."""
        slot = self.slots[number]
        if slot.tensor is not None:
            return self.tensor(slot.tensor)
        with self._lock:
            if number not in self._filled:
                self._filled[number] = filled(slot.dtype, slot.shape, slot.init)
            return self._filled[number]

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor of the model; it is read at the first call."""
        with self._lock:
            if name not in self._tensors:
                self._tensors[name] = self.program.model.read(name)
            return self._tensors[name]
