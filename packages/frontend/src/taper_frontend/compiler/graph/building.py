"""Build a graph: its inputs, states, constants, nodes and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.constants import Constant, literal
from taper_frontend.compiler.graph.graph_state import GraphState
from taper_frontend.compiler.graph.node import ABSENT, Node, SourceLine
from taper_frontend.compiler.graph.structure import Structure, changes
from taper_runtime.base.errors import InternalError, OpError
from taper_runtime.base.sizes import bounds
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    import numpy as np

    from taper_frontend.compiler.graph.constants import Literal
    from taper_frontend.compiler.graph.graph import Graph


class Builder(Structure):
    """Adds tensors and nodes to a graph."""

    def new_block(self) -> Self:
        """Return an empty graph for a node of this one, with the same size variables."""
        block = type(self)()
        block.sizes, block.examples = self.sizes, self.examples
        return block

    def add_input(self, name: str, dtype: str, shape: Sequence[int]) -> str:
        """Add a graph input.

        Returns
        -------
        str
            Its name: ``name``, with a suffix where that was taken.
        """
        name = self._add_tensor(name, TensorType(dtype, tuple(shape)), "input")
        self.inputs.append(name)
        return name

    def add_state(
        self,
        name: str,
        first: np.ndarray,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
    ) -> str:
        """Add a state; its value does not change unless :meth:`set_next` is called.

        Parameters
        ----------
        name : str
            Wanted name.
        first : numpy.ndarray
            The value before the first run.
        dtype : str, optional
            See :meth:`add_constant`.
        shape : sequence of size, optional
            The shape of ``first``, with a size variable in place of a dim of 1. ``first`` is then
            what each row of a batch begins with.

        Returns
        -------
        str
            Its name: ``name``, with a suffix where that was taken.
        """
        stored = _literal(f"state {name!r}", first, dtype)
        type_ = stored.type if shape is None else stored.type._replace(shape=tuple(shape))
        name = self._add_tensor(name, type_, "state")
        self.states.append(GraphState(name, stored.array, name))
        self._ends_changed()
        return name

    @changes
    def set_next(self, name: str, tensor: str) -> None:
        """Make ``tensor`` the value of the state ``name`` after a run."""
        self._check_same_type(name, tensor)
        state = next(state for state in self.states if state.name == name)
        state.next = tensor
        self._ends_changed()

    def add_constant(
        self, name: str, value: Constant | np.ndarray, dtype: str | None = None
    ) -> str:
        """Add a constant.

        Parameters
        ----------
        name : str
            Wanted name.
        value : Constant or numpy.ndarray
            An array is a literal: see :func:`taper_frontend.compiler.graph.constants.literal`.
        dtype : str, optional
            The dtype of an array, if numpy has no such type.

        Returns
        -------
        str
            Its name: ``name``, with a suffix where that was taken.

        Raises
        ------
        OpError
            If the array's dtype is not one of Taper's, or not the storage type of ``dtype``.
        """
        if not isinstance(value, Constant):
            value = _literal(f"constant {name!r}", value, dtype)
        name = self._add_tensor(name, value.type, "constant")
        self.constants[name] = value
        return name

    def add_node(
        self,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        source: SourceLine | str = "",
    ) -> str:
        """Add a node with one output, whose type the op's definition infers.

        Parameters
        ----------
        op : str
        inputs : sequence of str or None
            Existing tensors; None for an absent optional input.
        attrs : mapping, optional
        name : str, optional
            Wanted name of the output; by default the op's in lower case.
        source : SourceLine or str, optional
            A string is the user's source line.

        Returns
        -------
        str
            The name of the output: as wanted, with a suffix where that was taken.

        Raises
        ------
        OpError
            If the op is unknown, does not accept these inputs or attrs, or has several outputs.
        """
        return self._add_node(op, inputs, attrs, (), name, source, one=True)[0]

    def add_multi_output(
        self,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        blocks: Sequence[Graph] = (),
        name: str | None = None,
        source: SourceLine | str = "",
    ) -> tuple[str, ...]:
        """Add a node with any number of outputs, whose types the op's definition infers.

        Parameters
        ----------
        op, inputs, attrs, source
            See :meth:`add_node`.
        blocks : sequence of Graph
            The blocks of a control-flow op, which belong to the node from now on.
        name : str, optional
            Wanted name of the first output; the second is ``name.1`` and so on.

        Returns
        -------
        tuple of str
            The names of the outputs: as wanted, with a suffix where that was taken.

        Raises
        ------
        OpError
            If the op is unknown, or does not accept these inputs, attrs or blocks.
        """
        return self._add_node(op, inputs, attrs, blocks, name, source)

    @changes
    def add_computed_size(
        self, name: str, limits: tuple[int, int], origin: tuple[str, int], example: int
    ) -> None:
        """Add a size variable whose value is an element of a node's output, or of an input.

        Parameters
        ----------
        name : str
        limits : tuple of int
            The smallest and the largest value.
        origin : tuple of str and int
            An int64 tensor that a node computes, or an input, and the index of the element.
        example : int
            A typical value.

        Raises
        ------
        InternalError
            If the variable exists already, or the tensor cannot be an origin.
        """
        tensor, element = origin
        self._check_exists(tensor)
        spec = self.tensors[tensor]
        if name in self.sizes or (tensor not in self.producers and tensor not in self.inputs):
            raise InternalError(f"size {name!r}: expected a new size, from a node or an input")
        if spec.dtype != "int64" or not 0 <= element < bounds(spec.type.size)[0]:
            raise InternalError(
                f"size {name!r}: expected an int64 element, got {element} of {spec.type}"
            )
        self.sizes[name], self.examples[name] = limits, example
        self.origins[name] = origin
        self._ends_changed()

    @changes
    def set_outputs(self, names: Iterable[str]) -> None:
        """Make the named tensors the graph's outputs, in this order."""
        names = list(names)
        for name in names:
            self._check_exists(name)
        self.outputs = names
        self._ends_changed()
        self._order = None

    # -- inside -----------------------------------------------------------------------------------

    def _check_same_type(self, old: str, new: str) -> None:
        if self.tensors[old].type != self.tensors[new].type:
            raise InternalError(
                f"{old!r}: expected a replacement of type {self.tensors[old].type}, got "
                f"{new!r} of type {self.tensors[new].type}"
            )

    def _infer(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any], blocks: Sequence[Graph]
    ) -> tuple[TensorType, ...]:
        if op not in REGISTRY:
            raise OpError(f"expected a registered op, got {op!r}")
        signatures = [block.signature for block in blocks]
        return REGISTRY[op].infer_types(self._types(inputs), attrs, signatures)

    def _add_node(
        self,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None,
        blocks: Sequence[Graph],
        name: str | None,
        source: SourceLine | str,
        *,
        one: bool = False,
    ) -> tuple[str, ...]:
        attrs, operands, base = plain(attrs or {}), present(inputs), name or op.lower()
        types = self._infer(op, operands, attrs, blocks)
        if one and len(types) != 1:
            raise OpError(f"{op}: expected one output, got {len(types)}")
        names = [base, *(f"{base}.{index}" for index in range(1, len(types)))]
        outputs = [
            self._add_tensor(wanted, type_, "intermediate")
            for wanted, type_ in zip(names, types, strict=True)
        ]
        source = SourceLine(source) if isinstance(source, str) else source
        self._insert(Node(op, operands, outputs, attrs, source, list(blocks)))
        return tuple(outputs)


def _literal(what: str, array: np.ndarray, dtype: str | None) -> Literal:
    """Make a literal; raise an error about ``what`` if the array is invalid."""
    try:
        return literal(array, dtype)
    except OpError as error:
        raise OpError(f"{what}: {error}") from None


def present(inputs: Sequence[str | None]) -> list[str]:
    """Return the inputs in the form of nodes: absent ones are named, or left out at the end."""
    names = [ABSENT if name is None else name for name in inputs]
    while names and names[-1] == ABSENT:
        names.pop()
    return names


def plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attrs with their lists frozen, so that nodes may share them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}
