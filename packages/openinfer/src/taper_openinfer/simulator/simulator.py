"""A program that was checked against a model, ready to run on a device."""

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
        Open as long as the simulator is used: data are read when a node needs them.
    graph : Graph
        It and the model are checked against each other; nothing runs if something is wrong.
    device : str
        ``"Cpu"``, ``"CpuAvx"``, ``"CpuAvx2"``, ``"CpuAvx512"`` or ``"Neon"``.
    link : str
        ``"lenient"``: a volatile variable that the model lacks begins as ``@init`` or zeros.
        ``"strict"``: zeros that a step reads before it writes the variable are a problem.

    Raises
    ------
    ProgramError
        With all problems of the program.
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
        """Note every node that runs, and print its line."""
        self.has_trace = True
        return self

    def with_timer(self) -> Simulator:
        """Take the time of every op that a trace notes, or that is iterated over."""
        self.has_timer = True
        return self

    def make_executor(self) -> Executor:
        """Return an executor with persistent variables of its own."""
        return Executor(self)

    def first_value(self, number: int) -> np.ndarray:
        """Return what a variable is before anything writes it: read-only, one array for all."""
        slot = self.slots[number]
        if slot.tensor is not None:
            return self.tensor(slot.tensor)
        with self._lock:
            if number not in self._filled:
                self._filled[number] = filled(slot.dtype, slot.shape, slot.init)
            return self._filled[number]

    def tensor(self, name: str) -> np.ndarray:
        """Return a tensor of the model, which is read when it is first asked for."""
        with self._lock:
            if name not in self._tensors:
                self._tensors[name] = self.program.model.read(name)
            return self._tensors[name]
