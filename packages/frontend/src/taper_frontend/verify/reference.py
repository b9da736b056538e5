"""Run the module whose results a plan must have."""

from __future__ import annotations

import warnings
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING, Any

import torch
from torch.export.graph_signature import (
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from taper_frontend.capture.captured import Captured, changed
from taper_frontend.capture.fx_nodes import CAPTURED
from taper_frontend.capture.lifted import GUARDS
from taper_frontend.capture.module_state import ModuleState, TensorPlaces
from taper_frontend.capture.tensors import to_numpy
from taper_frontend.capture.torch_lock import TORCH
from taper_frontend.errors import ExportError
from taper_frontend.request.torch_trees import argument_placeholders

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import numpy as np
    from torch.export import ExportedProgram
    from torch.fx import Node

    from taper_frontend.capture.captured import Change

#: The types of numbers that a plan returns as scalars.
_SYMBOLIC = (SymIntArgument, SymFloatArgument, SymBoolArgument)

#: The seed of every run on both sides.
SEED = 0

#: Replacements for a module's tensors in a run; its own are not changed.
Tensors = dict[str, torch.Tensor]


@contextmanager
def _quietly() -> Iterator[None]:
    """Run with a fresh random generator, without gradients, and without torch's messages."""
    torch.manual_seed(SEED)
    # torch prints the failing line in addition to its error, and modules warn at every call
    with torch.no_grad(), redirect_stderr(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Reference:
    """The model as given: the module itself, or the program before decomposition.

    Parameters
    ----------
    model : torch.nn.Module or ExportedProgram
    program : ExportedProgram
        The captured program. It has the example arguments, and the sizes for which it is valid.
    places : collection of int
        Which of the arguments a plan has as inputs.

    Attributes
    ----------
    module : torch.nn.Module
    captured : Captured
        The program before it was decomposed.
    """

    def __init__(
        self,
        model: torch.nn.Module | ExportedProgram,
        program: ExportedProgram,
        places: Collection[int],
    ) -> None:
        """Copy the captured program, and find the tensors among arguments and results."""
        if program.example_inputs is None:
            raise ExportError(
                "expected a program with example inputs to verify the plan on, got none; "
                "export(..., verify=False) skips the check"
            )
        self.module = model if isinstance(model, torch.nn.Module) else model.module()
        self.captured: Captured = program.graph_module.meta[CAPTURED]
        self._program = program
        self._leaves, self._spec = tree_flatten(program.example_inputs)
        specs = program.graph_signature.output_specs
        results = [spec.arg for spec in specs if spec.kind == OutputKind.USER_OUTPUT]
        # integers that depend on values, which a plan returns as scalars
        self._numbers = {i for i, x in enumerate(results) if isinstance(x, _SYMBOLIC)}
        self._inputs_at = frozenset(places)
        arguments = argument_placeholders(program)
        # the arguments that the module writes to, which a plan returns after the results
        self._written = [
            arguments.index(spec.target)
            for spec in specs
            if spec.kind == OutputKind.USER_INPUT_MUTATION and spec.target is not None
        ]
        self._guards: Any = program.graph_module.meta.get(GUARDS)
        self._state: ModuleState | None = None
        # states that have a row for each item of a batch -> which axis counts rows
        self._axes = _batch_axes(program)
        self._rows: Tensors = {}
        if self._axes:
            buffers = dict(self.module.named_buffers(remove_duplicate=False))
            self._starts = {
                name: buffers[name].detach().narrow(axis, 0, 1).clone()
                for name, axis in self._axes.items()
            }
            self._rows = {name: start.clone() for name, start in self._starts.items()}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore the module, and torch's random generator, at the end."""
        with TORCH:
            self._state = ModuleState(self.module)
            # the fast path of torch's encoder layers returns zeros at masked positions
            fast = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
            try:
                with torch.random.fork_rng(devices=[]):
                    yield
            finally:
                torch.backends.mha.set_fastpath_enabled(fast)
                self._state.restore()

    def buffers(self, rows: int = 1) -> Tensors:
        """Return copies of the module's buffers.

        Parameters
        ----------
        rows : int
            How many of the states that have a row for each item of a batch.
        """
        own = {name: buffer.clone() for name, buffer in self.module.named_buffers()}
        return own | self._first_rows(rows)

    def set_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Set the module's buffers to these values; rows that a run did not finish keep theirs."""
        for name, buffer in self.module.named_buffers():
            if name in buffers and name not in self._axes:
                buffer.copy_(buffers[name])

    def admits(self, arrays: Sequence[np.ndarray], rows: int = 1) -> bool:
        """Return whether the program is valid for inputs of these shapes.

        The ranges alone do not say this: torch reports assumptions about unnamed sizes in no other
        way.
        """
        if self._guards is None:
            self._guards = getattr(self._program.module(), "_guards_fn", lambda *leaves: None)
        try:
            self._guards(*self._first_rows(rows).values(), *self._inputs(arrays))
        except Exception:  # an AssertionError means that it is not
            return False
        return True

    def run(self, arrays: Sequence[np.ndarray] | None = None, rows: int = 1) -> list[np.ndarray]:
        """Run the module.

        Buffers keep their values from the last run, like a session's state. Other attributes that a
        run changes are restored first, because the plan was made from their original values.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray, optional
            The tensors among the arguments; the example's own if left out.
        rows : int
            Of states that have a row for each item of a batch: how many there are. These go on from
            the last run each.

        Returns
        -------
        list of numpy.ndarray
            The tensors among the results, and the integers that depend on values; bfloat16 as its
            bits in uint16.
        """
        if not self._axes:
            return self._call(self._inputs(arrays))
        own = self._first_rows(rows)
        results = self._call(self._inputs(arrays), own)
        for name, axis in self._axes.items():
            self._rows[name].narrow(axis, 0, rows).copy_(own[name])
        return results

    def _first_rows(self, count: int) -> Tensors:
        """Return copies of the first rows of states; more of them begin when they are needed."""
        copies = {}
        for name, axis in self._axes.items():
            more = count - self._rows[name].shape[axis]
            if more > 0:
                begun = [self._starts[name]] * more
                self._rows[name] = torch.cat([self._rows[name], *begun], axis)
            copies[name] = self._rows[name].narrow(axis, 0, count).clone()
        return copies

    def rerun(
        self, arrays: Sequence[np.ndarray] | None, buffers: Tensors, change: Change | None = None
    ) -> list[np.ndarray]:
        """Run the module again from these buffers; its own are not changed.

        Parameters
        ----------
        arrays
            See :meth:`run`.
        buffers : dict of str to torch.Tensor
            The values, before the original run, of the buffers that it changed.
        change : callable, optional
            Changes the floats among parameters, buffers and inputs.
        """
        inputs = self._inputs(arrays)
        tensors: Tensors = {name: value.clone() for name, value in buffers.items()}
        if change is not None:
            module = self.module
            tensors = dict([*module.named_parameters(), *module.named_buffers()]) | tensors
            tensors = {name: changed(value, change) for name, value in tensors.items()}
            inputs = [changed(leaf, change) for leaf in inputs]
        return self._call(inputs, tensors)

    def exact(self, arrays: Sequence[np.ndarray] | None, buffers: Tensors) -> list[np.ndarray]:
        """Run the module in float64, including tensors that it makes; see :meth:`rerun`."""
        with _default_dtype(torch.float64):
            return self.rerun(arrays, buffers, torch.Tensor.double)

    def run_captured(
        self,
        arrays: Sequence[np.ndarray] | None,
        buffers: Tensors,
        see: Callable[[Node, Any], None],
        change: Change | None = None,
        *,
        exact: bool = False,
    ) -> None:
        """Run the captured program node by node; the module's buffers are not changed.

        Parameters
        ----------
        arrays, buffers, change
            See :meth:`rerun`.
        see : callable
            Called with each node and its value, before the next one runs.
        exact : bool
            Whether to run in float64.
        """
        change = torch.Tensor.double if exact else change
        inputs = [changed(leaf, change) for leaf in self._inputs(arrays)]
        with _default_dtype(torch.float64 if exact else torch.get_default_dtype()), _quietly():
            self.captured.run(inputs, buffers, see, change, exact=exact)

    def _inputs(self, arrays: Sequence[np.ndarray] | None) -> list[Any]:
        """Return the leaves of the arguments, with copies of the tensors."""
        if arrays is None:
            return [x.clone() if isinstance(x, torch.Tensor) else x for x in self._leaves]
        fresh = iter(arrays)
        return [
            _as_torch(next(fresh), leaf) if place in self._inputs_at else leaf
            for place, leaf in enumerate(self._leaves)
        ]

    def _call(self, leaves: Sequence[Any], tensors: Tensors | None = None) -> list[np.ndarray]:
        """Call the module; return its results and the inputs that it writes to, as arrays."""
        args, kwargs = tree_unflatten(leaves, self._spec)
        if self._state is not None:
            self._state.restore_attributes()
        with _quietly():
            if tensors is None:
                results = self.module(*args, **kwargs)
            else:
                with TensorPlaces(self.module, tensors).holding(tensors):
                    results = self.module(*args, **kwargs)
        every = enumerate(tree_leaves(results))
        returned = [
            leaf
            for place, leaf in every
            if isinstance(leaf, torch.Tensor) or place in self._numbers
        ]
        written = [leaves[place] for place in self._written]
        return [to_numpy(torch.as_tensor(leaf)) for leaf in (*returned, *written)]


def _batch_axes(program: ExportedProgram) -> dict[str, int]:
    """Return the states that have a row for each item of a batch, and which axis counts rows."""
    nodes = {node.name: node for node in program.graph.nodes}
    return {
        target: axis
        for name, target in program.graph_signature.inputs_to_buffers.items()
        for axis, size in enumerate(nodes[name].meta["val"].shape)
        if isinstance(size, torch.SymInt) and not size.node.expr.is_number
    }


def _as_torch(array: np.ndarray, like: torch.Tensor | int) -> torch.Tensor | int:
    """Convert an array of a plan to a tensor with the dtype of ``like``, or to an int."""
    if not isinstance(like, torch.Tensor):
        return int(array)
    tensor = torch.from_numpy(array.copy())
    return torch.complex(*tensor.unbind(-1)) if like.is_complex() else tensor.view(like.dtype)
