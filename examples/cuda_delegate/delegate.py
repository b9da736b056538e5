"""Compute subgraphs on the device: steps for each set of sizes, captured and replayed."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from cuda_delegate.driver import CapturedGraph, Memory, Staging, open_device
from cuda_delegate.steps import BLOB, Product, read_program
from taper_runtime import Delegate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from cuda_delegate.steps import Program
    from taper_runtime.extend.servers import ServedNode
    from taper_runtime.ops.opdef import TensorType


class Counts(NamedTuple):
    """The work of one subgraph so far.

    Attributes
    ----------
    node : str
        The subgraph, by its first output.
    captures : int
        Runs that computed step by step and captured their steps for later runs.
    replays : int
        Runs that launched captured steps.
    plain_runs : int
        Runs that computed step by step and captured nothing, since ``replays`` is False.
    weight_copies : int
        Weights copied to the device: right-hand sides and biases.
    """

    node: str
    captures: int = 0
    replays: int = 0
    plain_runs: int = 0
    weight_copies: int = 0


class Weights:
    """One set of weights on the device.

    Attributes
    ----------
    addresses : tuple of int
        Of the arrays on the host.
    memory : dict of int to Memory
        By the index among the inputs.
    """

    def __init__(self, delegate: CudaDelegate, arrays: Mapping[int, np.ndarray]) -> None:
        self.addresses = addresses(arrays.values())
        self.memory = {i: delegate.device.upload(array) for i, array in arrays.items()}
        delegate.count(weight_copies=len(arrays))


def addresses(arrays: Any) -> tuple[int, ...]:
    """Return where arrays lie on the host."""
    return tuple([array.__array_interface__["data"][0] for array in arrays])


class CudaDelegate(Delegate):
    """Computes a subgraph of products, sums and ReLUs on the first GPU, in float32.

    Weights stay on the device until they are replaced; intermediate results never leave it. All
    sessions of a process share the device's one stream: runs of several threads are safe, and wait
    for each other.

    Attributes
    ----------
    replays : bool
        Whether the steps of a run are captured as a graph, which later runs of the same sizes with
        the same weights launch. A subclass may set it to False.

    Raises
    ------
    CudaError
        If there is no library or no device, or a call fails.
    UnsupportedError
        If the subgraph has a node that has no step.
    ValueError
        If the blob is another one, or a size is 0.
    """

    replays: ClassVar[bool] = True
    _made: ClassVar[weakref.WeakSet[CudaDelegate]] = weakref.WeakSet()

    def __init__(self, node: ServedNode) -> None:
        super().__init__(node)
        if node.blob.tobytes() != BLOB or node.block is None:
            raise ValueError(f"expected the blob {BLOB!r}, got {node.blob.tobytes()[:40]!r}")
        self._block = node.block
        self._read(node.inputs)
        self.device = open_device()
        self._counts = Counts(node.name)
        self._next: Weights | None = None
        self._current: Weights | None = None
        self._programs: weakref.WeakSet[BoundProgram] = weakref.WeakSet()
        self._made.add(self)

    @classmethod
    def counts(cls) -> list[Counts]:
        """Return the counts of each subgraph of each open session with this class or a subclass."""
        return sorted([each._counts for each in [*cls._made] if isinstance(each, cls)])

    def count(self, **more: int) -> None:
        """Add to the counts; called while the device is entered."""
        sums = {field: getattr(self._counts, field) + number for field, number in more.items()}
        self._counts = self._counts._replace(**sums)

    def prepare_weights(self, weights: Mapping[int, np.ndarray]) -> None:
        """See :meth:`taper_runtime.Server.prepare_weights`."""
        with self.device.entered():
            self._next = Weights(self, weights)

    def commit_weights(self) -> None:
        """See :meth:`taper_runtime.Server.commit_weights`."""
        self._current = self._next

    def close(self) -> None:
        """Free the memory of the device; see :meth:`taper_runtime.Server.close`."""
        with self.device.entered():
            self._current = self._next = None
            for program in self._programs:
                program.free()

    def find_weights(self, inputs: Sequence[Any]) -> Weights:
        """Return the weights among the inputs of a run, on the device.

        A run may have other weights than the current ones while these are replaced.
        """
        arrays = {i: inputs[i] for i in self.node.weights}
        wanted = addresses(arrays.values())
        for known in (self._current, self._next):
            if known is not None and known.addresses == wanted:
                return known
        return Weights(self, arrays)

    def bind(
        self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]
    ) -> Callable[[tuple[Any, ...], tuple[np.ndarray, ...]], None]:
        """See :meth:`taper_runtime.Server.bind`."""
        program = self._read(types[: len(self.node.inputs)])
        for shape in program.shapes.values():
            if 0 in shape:
                raise ValueError(f"expected sizes of at least 1, got {list(shape)}")
        bound = BoundProgram(self, program, self._block.inputs)
        with self.device.entered():
            self._programs.add(bound)
        return bound.run

    def _read(self, types: Sequence[TensorType | None]) -> Program:
        inputs = {
            name: type_ for name, type_ in zip(self._block.inputs, types, strict=True) if type_
        }
        return read_program(self._block.nodes, inputs, self._block.outputs)


class Buffers(NamedTuple):
    """The memory of a program.

    Attributes
    ----------
    memory : dict of str to Memory
        On the device, of each buffer but the weights.
    given : dict of int to Staging
        Where inputs are put, by the index among the inputs.
    results : list of Staging
        Where the outputs come to.
    """

    memory: dict[str, Memory]
    given: dict[int, Staging]
    results: list[Staging]


class BoundProgram:
    """The steps of a subgraph for one set of sizes.

    Parameters
    ----------
    delegate : CudaDelegate
    program : Program
        Its sizes are numbers.
    inputs : sequence of str
        The buffer of each input.
    """

    def __init__(self, delegate: CudaDelegate, program: Program, inputs: Sequence[str]) -> None:
        self._delegate, self._device = delegate, delegate.device
        self._program, self._inputs = program, inputs
        self._buffers: Buffers | None = None
        # a graph has the addresses of the weights that it was captured with
        self._captured: tuple[Weights, CapturedGraph] | None = None

    def free(self) -> None:
        """Free the memory; a later run takes some again."""
        self._buffers = self._captured = None

    def run(self, inputs: tuple[Any, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Copy the inputs to the device, compute, and copy the outputs from it."""
        device, delegate = self._device, self._delegate
        with device.entered():
            weights = delegate.find_weights(inputs)
            if self._buffers is None:
                self._buffers = self._allocate()
            for i, staging in self._buffers.given.items():
                staging.array[...] = inputs[i]
            if self._captured is not None and self._captured[0] is weights:
                self._captured[1].launch(device)
                delegate.count(replays=1)
            else:
                # cuBLAS loads its kernels at their first use, which a capture does not allow
                self._enqueue(self._buffers, weights)
                device.synchronize()
                if delegate.replays:
                    buffers = self._buffers
                    graph = CapturedGraph(device, lambda: self._enqueue(buffers, weights))
                    self._captured = weights, graph
                    delegate.count(captures=1)
                else:
                    delegate.count(plain_runs=1)
            device.synchronize()
            for array, staging in zip(outputs, self._buffers.results, strict=True):
                array[...] = staging.array

    def _allocate(self) -> Buffers:
        device, shapes = self._device, self._program.shapes
        weights = {self._inputs[i] for i in self._delegate.node.weights}
        own = {name: shape for name, shape in shapes.items() if name not in weights}
        return Buffers(
            {name: Memory(device, 4 * math.prod(shape)) for name, shape in own.items()},
            {i: Staging(device, own[n]) for i, n in enumerate(self._inputs) if n in own},
            [Staging(device, own[name]) for name in self._program.outputs],
        )

    def _enqueue(self, buffers: Buffers, weights: Weights) -> None:
        """Enqueue the copies to the device, the steps, and the copies from it."""
        device, shapes = self._device, self._program.shapes
        held = {self._inputs[i]: each for i, each in weights.memory.items()}
        memory = {**buffers.memory, **held}
        for i, staging in buffers.given.items():
            device.copy_to_device(memory[self._inputs[i]], staging.address)
        for step in self._program.steps:
            shape = shapes[step.output]
            if isinstance(step, Product):
                *rows, k = shapes[step.a]
                device.multiply(
                    memory[step.output], memory[step.a], memory[step.b],
                    (math.prod(rows), k, shape[-1]),
                    alpha=step.alpha, transpose_b=step.transpose_b,
                )  # fmt: skip
            else:
                columns = shape[-1] if shape else 1
                device.finish(
                    memory[step.output], memory[step.x],
                    None if step.other is None else memory[step.other], step.number,
                    (math.prod(shape) // columns, columns),
                    (step.steps[0] * columns, step.steps[1]), has_relu=step.has_relu,
                )  # fmt: skip
        for name, staging in zip(self._program.outputs, buffers.results, strict=True):
            device.copy_to_host(staging.address, memory[name])
