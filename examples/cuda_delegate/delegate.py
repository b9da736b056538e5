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

    from cuda_delegate.steps import Epilogue
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
        with self.device.entered():
            return BoundProgram(self, program, self._block.inputs).run

    def _read(self, types: Sequence[TensorType | None]) -> Any:
        inputs = {
            name: type_ for name, type_ in zip(self._block.inputs, types, strict=True) if type_
        }
        return read_program(self._block.nodes, inputs, self._block.outputs)


class BoundProgram:
    """The steps of a subgraph for one set of sizes, with the memory that they need.

    Parameters
    ----------
    delegate : CudaDelegate
    program : Program
        Its sizes are numbers.
    inputs : sequence of str
        The buffer of each input.
    """

    def __init__(self, delegate: CudaDelegate, program: Any, inputs: Sequence[str]) -> None:
        self._delegate, self._device = delegate, delegate.device
        self._steps: list[Product | Epilogue] = program.steps
        self._shapes, self._inputs = program.shapes, inputs
        weights = {inputs[i] for i in delegate.node.weights}
        self._memory = {
            name: Memory(self._device, 4 * math.prod(shape))
            for name, shape in program.shapes.items()
            if name not in weights
        }
        self._given = {
            i: Staging(self._device, self._shapes[name])
            for i, name in enumerate(inputs)
            if name not in weights
        }
        self._results = {
            name: Staging(self._device, self._shapes[name]) for name in program.outputs
        }
        self._outputs = program.outputs
        # a graph has the addresses of the weights that it was captured with
        self._captured: tuple[Weights, CapturedGraph] | None = None

    def run(self, inputs: tuple[Any, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Copy the inputs to the device, compute, and copy the outputs from it."""
        device, delegate = self._device, self._delegate
        with device.entered():
            weights = delegate.find_weights(inputs)
            for i, staging in self._given.items():
                staging.array[...] = inputs[i]
            if self._captured is not None and self._captured[0] is weights:
                self._captured[1].launch(device)
                delegate.count(replays=1)
            else:
                # cuBLAS loads its kernels at their first use, which a capture does not allow
                self._enqueue(weights)
                device.synchronize()
                if delegate.replays:
                    graph = CapturedGraph(device, lambda: self._enqueue(weights))
                    self._captured = weights, graph
                    delegate.count(captures=1)
                else:
                    delegate.count(plain_runs=1)
            device.synchronize()
            for array, name in zip(outputs, self._outputs, strict=True):
                array[...] = self._results[name].array

    def _enqueue(self, weights: Weights) -> None:
        device, shapes = self._device, self._shapes
        memory = {
            **self._memory,
            **{self._inputs[i]: held for i, held in weights.memory.items()},
        }
        for i, staging in self._given.items():
            device.copy_to_device(memory[self._inputs[i]], staging.address)
        for step in self._steps:
            if isinstance(step, Product):
                *rows, k = shapes[step.a]
                sizes = math.prod(rows), k, shapes[step.output][-1]
                given = memory[step.output], memory[step.a], memory[step.b]
                how = {"alpha": step.alpha, "transpose_b": step.transpose_b}
                device.multiply(*given, sizes, **how)
            else:
                columns = shapes[step.output][-1] if shapes[step.output] else 1
                rows = math.prod(shapes[step.output]) // columns
                steps = step.steps[0] * columns, step.steps[1]
                other = None if step.other is None else memory[step.other]
                device.finish(
                    memory[step.output], memory[step.x], other, step.number,
                    (rows, columns), steps, has_relu=step.has_relu,
                )  # fmt: skip
        for name, staging in self._results.items():
            device.copy_to_host(staging.address, memory[name])
