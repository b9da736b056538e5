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
    """A graph that tensors and nodes are added to."""

    def new_block(self) -> Self:
        """Return an empty graph for a node of this one: it has the same size variables."""
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
        """Add a state, whose value stays what it is until :meth:`set_next` says otherwise.

        Parameters
        ----------
        name : str
            Wanted name.
        first : numpy.ndarray
            The value before the first run.
        dtype : str, optional
            As :meth:`add_constant` takes it.
        shape : sequence of size, optional
            That of ``first``, with a size variable in place of a dim of 1. A plan has such states
            only where they begin as zeros.

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
            Of an array, where numpy has no such type.

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
        """Add a node of one output; the op's definition infers its type.

        Parameters
        ----------
        op : str
        inputs : sequence of str or None
            Existing tensors; None for an optional one that is absent.
        attrs : mapping, optional
        name : str, optional
            Wanted name of the output; the op's in lower case if not given.
        source : SourceLine or str, optional
            The user's source line, if it is a string.

        Returns
        -------
        str
            The name of the output: as wanted, with a suffix where that was taken.

        Raises
        ------
        OpError
            If there is no such op, it does not allow these inputs or attrs, or it has several
            outputs.
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
        """Add a node of any number of outputs; the op's definition infers their types.

        Parameters
        ----------
        op, inputs, attrs, source
            As :meth:`add_node` takes them.
        blocks : sequence of Graph
            Of an op of control flow; they belong to the node from then on.
        name : str, optional
            Wanted name of the first output; that of the second is ``name.1`` and so on.

        Returns
        -------
        tuple of str
            The names of the outputs: as wanted, with a suffix where that was taken.

        Raises
        ------
        OpError
            If there is no such op, or it does not allow these inputs, attrs or blocks.
        """
        return self._add_node(op, inputs, attrs, blocks, name, source)

    @changes
    def add_computed_size(
        self, name: str, limits: tuple[int, int], origin: tuple[str, int], example: int
    ) -> None:
        """Add a size variable whose value a node computes, or an input gives.

        Parameters
        ----------
        name : str
        limits : tuple of int
            The least and the largest value.
        origin : tuple of str and int
            An int64 tensor that a node makes, or an input, and which of its elements.
        example : int
            A typical value.

        Raises
        ------
        InternalError
            If there is such a variable, or the tensor is none that can be an origin.
        """
        tensor, element = origin
        self._check_exists(tensor)
        spec = self.tensors[tensor]
        if name in self.sizes or (tensor not in self.producers and tensor not in self.inputs):
            raise InternalError(f"size {name!r}: expected a new one, of a node or an input")
        if spec.dtype != "int64" or not 0 <= element < bounds(spec.type.size)[0]:
            raise InternalError(f"size {name!r}: expected an int64, got {element} of {spec.type}")
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
                f"{old!r} of {self.tensors[old].type} cannot be replaced by "
                f"{new!r} of {self.tensors[new].type}"
            )

    def _infer(
        self, op: str, inputs: Sequence[str], attrs: Mapping[str, Any], blocks: Sequence[Graph]
    ) -> tuple[TensorType, ...]:
        if op not in REGISTRY:
            raise OpError(f"no op {op!r} is registered")
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
            raise OpError(f"{op}: expected an op of one output, it has {len(types)}")
        names = [base, *(f"{base}.{index}" for index in range(1, len(types)))]
        outputs = [
            self._add_tensor(wanted, type_, "intermediate")
            for wanted, type_ in zip(names, types, strict=True)
        ]
        source = SourceLine(source) if isinstance(source, str) else source
        self._insert(Node(op, operands, outputs, attrs, source, list(blocks)))
        return tuple(outputs)


def _literal(what: str, array: np.ndarray, dtype: str | None) -> Literal:
    """Make a literal, or say what is wrong with the array of ``what``."""
    try:
        return literal(array, dtype)
    except OpError as error:
        raise OpError(f"{what}: {error}") from None


def present(inputs: Sequence[str | None]) -> list[str]:
    """Return the inputs as nodes have them: named where they are absent, and not so at the end."""
    names = [ABSENT if name is None else name for name in inputs]
    while names and names[-1] == ABSENT:
        names.pop()
    return names


def plain(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attrs with their lists frozen: nodes may share them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in attrs.items()}
