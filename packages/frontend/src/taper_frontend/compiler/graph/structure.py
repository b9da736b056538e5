"""Hold the tensors and nodes of a graph, indexed by producers and readers."""

from __future__ import annotations

from copy import copy
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from taper_frontend.compiler.graph.constants import visible
from taper_frontend.compiler.graph.listener import Listener
from taper_frontend.compiler.graph.node import ABSENT, MOVES, Meaning
from taper_runtime.base.checks import METADATA_NAME, SAMPLE_PREFIX
from taper_runtime.base.errors import InternalError
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import Size, variables
from taper_runtime.ops.opdef import Signature, TensorType
from taper_runtime.plan.plan import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    import numpy as np

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph_state import GraphState
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.base.decisions import Decision

_Graph = TypeVar("_Graph", bound="Structure")
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def changes(
    method: Callable[Concatenate[_Graph, _Args], _Result],
) -> Callable[Concatenate[_Graph, _Args], _Result]:
    """Decorate a method that changes a graph, so that it raises an error if the graph is frozen."""

    @wraps(method)
    def checked(graph: _Graph, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        if graph.is_frozen:
            raise InternalError(
                f"{method.__name__}: the graph is frozen, because it has been planned"
            )
        return method(graph, *args, **kwargs)

    return checked


class Structure:
    """The tensors and nodes of a graph, with indices of producers and readers.

    :class:`.building.Builder` adds tensors and nodes, and :class:`.graph.Graph` rewrites them.

    Attributes
    ----------
    sizes : dict of str to tuple of int
        The size variables, each with its smallest and its largest value. The graph is valid for
        sizes from 1 on; the planner finds whether it is valid for 0.
    examples : dict of str to int
        A typical value of each size variable, for estimates.
    origins : dict of str to tuple of str and int
        For each size variable that is not an input's dim, the int64 tensor with its value, and the
        row-major index of the element. Such a tensor counts as used, like an output.
    inputs : list of str
    outputs : list of str
        The outputs; a name may occur twice.
    tensors : dict of str to TensorSpec
        Type and role (input, state, constant or intermediate) of every tensor.
    constants : dict of str to Constant
        The tensors of role constant: parameters, literals, or recipes over such.
    states : list of GraphState
        The tensors that live across runs.
    nodes : mapping of str to Node
        The nodes by the name of their first output, unordered; see :meth:`order`.
    producers : mapping of str to Node
        For each tensor that a node makes, that node: none for inputs, states and constants.
    stands_for : dict of str to Meaning
        The values of the captured program that tensors hold. A rewrite keeps the value of every
        tensor whose name it keeps; a tensor that replaces another one has the same value.
    listener : Listener
        Notified of every change; :class:`taper_frontend.compiler.trace.TraceRecorder` is one.
    is_frozen : bool
        Whether changing it raises :class:`InternalError`; see :meth:`freeze`.
    """

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, int]] | None = None,
        examples: Mapping[str, int] | None = None,
    ) -> None:
        """Make an empty graph with these size variables."""
        self.sizes = dict(sizes or {})
        self.examples = dict(examples or {})
        self.origins: dict[str, tuple[str, int]] = {}
        self.inputs: list[str] = []
        self.outputs: list[str] = []
        self.tensors: dict[str, TensorSpec] = {}
        self.constants: dict[str, Constant] = {}
        self.states: list[GraphState] = []
        self.stands_for: dict[str, Meaning] = {}
        self.listener = Listener()
        self.is_frozen = False
        self._nodes: dict[str, Node] = {}
        self._producers: dict[str, Node] = {}
        self.nodes: Mapping[str, Node] = MappingProxyType(self._nodes)
        self.producers: Mapping[str, Node] = MappingProxyType(self._producers)
        # for each tensor the first outputs of its readers (a dict as an ordered set)
        self._consumers: dict[str, dict[str, None]] = {}
        self._order: tuple[Node, ...] | None = None
        self._written: frozenset[str] | None = None  # the names in writes
        self._origins: frozenset[str] | None = None  # the tensors in origins
        self._next_suffix: dict[str, int] = {}

    # -- reading ----------------------------------------------------------------------------------

    def is_constant(self, tensor: str) -> bool:
        """Return whether ``tensor`` is a constant, and not one that a run computes."""
        return tensor in self.constants

    def value(self, tensor: str) -> np.ndarray | None:
        """Return the value of a constant that may be inspected; None for any other tensor.

        See :func:`taper_frontend.compiler.graph.constants.visible`.
        """
        return visible(self.constants[tensor]) if tensor in self.constants else None

    def consumers(self, tensor: str) -> list[Node]:
        """Return the nodes that read ``tensor``, without duplicates."""
        return [self._nodes[output] for output in self._consumers[tensor]]

    def input_types(self, node: Node) -> list[TensorType | None]:
        """Return the types of the inputs of ``node``; None for absent ones."""
        return self._types(node.inputs)

    def output_types(self, node: Node) -> list[TensorType]:
        """Return the types of the outputs of ``node``."""
        return [self.tensors[name].type for name in node.outputs]

    @property
    def signature(self) -> Signature:
        """Return the types of the inputs and the outputs."""
        ends = (self.inputs, self.outputs)
        inputs, outputs = (tuple(self.tensors[name].type for name in end) for end in ends)
        return Signature(inputs, outputs)

    def typical(self, size: int) -> int:
        """Return the value of ``size`` for the examples of the size variables."""
        return size_at(size, self.examples)

    def nbytes(self, tensor: str) -> int:
        """Return the bytes of ``tensor`` for the examples of the size variables."""
        return self.typical(self.tensors[tensor].nbytes)

    def is_static(self, node: Node) -> bool:
        """Return whether all sizes that ``node`` reads or makes are fixed."""
        groups = [self.tensors[name].shape for name in (*node.reads, *node.outputs)]
        groups += [v if isinstance(v, tuple) else (v,) for v in node.attrs.values()]
        return not any(isinstance(size, Size) for group in groups for size in group)

    @property
    def reads(self) -> list[str]:
        """Return the tensors that a run reads: the inputs, then the states."""
        return [*self.inputs, *(state.name for state in self.states)]

    @property
    def writes(self) -> list[str]:
        """Return the tensors that a run writes: the outputs, then the states' next values."""
        return [*self.outputs, *(state.next for state in self.states)]

    def is_output(self, tensor: str) -> bool:
        """Return whether ``tensor`` is an output of the graph or the next value of a state."""
        if self._written is None:
            self._written = frozenset(self.writes)
        return tensor in self._written

    def is_used(self, tensor: str) -> bool:
        """Return whether ``tensor`` is read by a node, is an output, or gives a size its value."""
        return bool(self._consumers[tensor]) or self.is_output(tensor) or self.is_origin(tensor)

    def is_origin(self, tensor: str) -> bool:
        """Return whether an element of ``tensor`` is the value of a size variable."""
        if self._origins is None:
            self._origins = frozenset(origin for origin, _ in self.origins.values())
        return tensor in self._origins

    @property
    def kept(self) -> list[str]:
        """Return the tensors needed apart from nodes: outputs, next states and origins of sizes."""
        return [*self.writes, *dict.fromkeys(origin for origin, _ in self.origins.values())]

    def needs(self, node: Node) -> list[str]:
        """Return what must be computed before ``node``: its inputs, and the origins of its sizes.

        The sizes are those in the types of its outputs and in its attrs.
        """
        if not self.origins:
            return node.reads
        found = [self.origins[name][0] for name in self.variables(node) if name in self.origins]
        return list(dict.fromkeys([*node.reads, *found]))

    def variables(self, node: Node) -> set[str]:
        """Return the size variables in the types of the outputs of ``node`` and in its attrs.

        Those in its blocks are included.
        """
        groups = [self.tensors[name].shape for name in node.outputs]
        groups += [v if isinstance(v, tuple) else (v,) for v in node.attrs.values()]
        found = {atom.text for group in groups for size in group for atom in variables(size)}
        for block in node.blocks:
            found.update(*map(block.variables, block.nodes.values()))
        return found

    def sole_consumer(self, tensor: str) -> Node | None:
        """Return the only node that uses ``tensor``.

        Return None if there are several readers, it is an output, or it gives a size its value.
        """
        consumers = self._consumers[tensor]
        if len(consumers) != 1 or self.is_output(tensor) or self.is_origin(tensor):
            return None
        return self._nodes[next(iter(consumers))]

    def order(self) -> list[Node]:
        """Return the nodes in a topological order, keeping the order of insertion if possible.

        Raises
        ------
        InternalError
            If the nodes form a cycle.
        """
        if self._order is None:
            self._order = tuple(self.depth_first(self._nodes))
        return list(self._order)

    def depth_first(self, outputs: Iterable[str]) -> Iterator[Node]:
        """Yield the nodes with these first outputs, each after its producers.

        Everything that one of them needs comes before nodes that only later ones need.

        Raises
        ------
        InternalError
            If the nodes form a cycle.
        """
        done: set[str] = set()
        open_: set[str] = set()
        for root in outputs:
            stack = [root]
            while stack:
                name = stack[-1]
                if name in done:
                    stack.pop()
                    continue
                node = self._nodes[name]
                needs = self.needs(node)
                producers = [self._producers[t].output for t in needs if t in self._producers]
                waiting = [producer for producer in producers if producer not in done]
                if not waiting:
                    stack.pop()
                    done.add(name)
                    yield node
                    continue
                if name in open_:
                    raise InternalError(f"the graph has a cycle through {name!r}")
                open_.add(name)
                stack += reversed(waiting)

    def means(self, tensor: str, meaning: Meaning) -> None:
        """Record the value of the captured program that a tensor holds, unless one is known.

        Tensors of which it is a permutation or a reshape hold the value, too, in their own layout.
        """
        while tensor not in self.stands_for:
            self.stands_for[tensor] = meaning
            node = self._producers.get(tensor)
            if node is None or node.op not in MOVES:
                return
            tensor = node.inputs[0]
            meaning = Meaning(meaning.value, ((node.op, node.complete_attrs()), *meaning.moves))

    def copy(self) -> Self:
        """Return a copy of the graph without the listener; arrays are shared."""
        twin = type(self)(self.sizes, self.examples)
        twin.origins = dict(self.origins)
        twin.inputs, twin.outputs = list(self.inputs), list(self.outputs)
        twin.tensors, twin.constants = dict(self.tensors), dict(self.constants)
        twin.states = [copy(state) for state in self.states]
        twin.stands_for = dict(self.stands_for)
        twin._consumers = {name: dict(readers) for name, readers in self._consumers.items()}
        for node in self._nodes.values():
            twin._insert(node.copy())
        twin._next_suffix = dict(self._next_suffix)
        return twin

    # -- indices ----------------------------------------------------------------------------------

    def _ends_changed(self) -> None:
        """Discard the indices of outputs, next values of states and origins of sizes."""
        self._written = self._origins = None

    def unique_name(self, base: str) -> str:
        """Return ``base``, or ``base_1``, ``base_2``... if it is taken.

        Names that plan files reserve get the prefix ``_``.
        """
        if base == METADATA_NAME or base.startswith(SAMPLE_PREFIX):
            base = f"_{base}"
        if base not in self.tensors:
            return base
        suffix = self._next_suffix.get(base, 1)
        while f"{base}_{suffix}" in self.tensors:
            suffix += 1
        self._next_suffix[base] = suffix + 1
        return f"{base}_{suffix}"

    def _check_exists(self, name: str) -> None:
        if name not in self.tensors:
            raise InternalError(f"no tensor {name!r} in the graph")

    def _check_present(self, node: Node) -> None:
        if self._nodes.get(node.output) is not node:
            raise InternalError(f"node {node.output!r} is not in the graph")

    def _types(self, names: Sequence[str]) -> list[TensorType | None]:
        """Return the types of tensors; None of those that are absent."""
        try:
            return [None if name == ABSENT else self.tensors[name].type for name in names]
        except KeyError as error:
            raise InternalError(f"no tensor {error.args[0]!r} in the graph") from None

    @changes
    def _add_tensor(self, base: str, type_: TensorType, role: str) -> str:
        name = self.unique_name(base)
        self.tensors[name] = TensorSpec(name, type_.dtype, type_.shape, role, type_.format)
        self._consumers[name] = {}
        self.listener.touch(name)
        return name

    @changes
    def _insert(self, node: Node) -> None:
        """Add a node to the indices; its outputs exist as tensors already."""
        self._nodes[node.output] = node
        self._producers.update(dict.fromkeys(node.outputs, node))
        self._link(node)

    def _link(self, node: Node) -> None:
        self.listener.touch(*node.outputs)
        for name in node.reads:
            self._consumers[name][node.output] = None
        for block in node.blocks:
            block._share_sizes(self)
            block.listener = _Within(self, node)
        self._order = None

    @changes
    def _unlink(self, node: Node) -> None:
        for name in node.reads:
            self._consumers[name].pop(node.output, None)
        self._order = None

    @changes
    def _drop_node(self, node: Node) -> None:
        self._check_present(node)
        self.listener.touch(*node.outputs)
        self._unlink(node)
        del self._nodes[node.output]
        for name in node.outputs:
            del self._producers[name]

    @changes
    def _drop_tensors(self, names: Sequence[str]) -> None:
        """Remove tensors that nothing uses and no node makes, and that are no inputs."""
        self.listener.touch(*names)
        for name in names:
            del self.tensors[name], self._consumers[name]
            self.constants.pop(name, None)
            self.stands_for.pop(name, None)

    def _drop_unused(self, names: Iterable[str], removed: list[Node]) -> int:
        """Remove tensors that nothing uses, and everything that only they needed.

        Inputs and states stay. Removed nodes are added to ``removed``, readers first. Returns the
        number of removed nodes and constants.
        """
        count = 0
        stack = list(names)
        while stack:
            name = stack.pop()
            spec = self.tensors.get(name)
            if spec is None or self.is_used(name) or spec.role in ("input", "state"):
                continue
            if (node := self._producers.get(name)) is None:
                self._drop_tensors([name])
            elif any(map(self.is_used, node.outputs)):
                continue
            else:
                stack += node.reads
                self._drop_node(node)
                self._drop_tensors(node.outputs)
                removed.append(node)
            count += 1
        return count

    def _share_sizes(self, around: Structure) -> None:
        """Share the enclosing graph's size variables."""
        if self.sizes is not around.sizes:
            self.sizes, self.examples = around.sizes, around.examples
            for node in self._nodes.values():
                for block in node.blocks:
                    block._share_sizes(self)


class _Within(Listener):
    """Reports changes of a block to the enclosing graph, as changes of the node with the block."""

    def __init__(self, graph: Structure, node: Node) -> None:
        super().__init__()
        self._graph, self._node = graph, node

    def touch(self, *names: str) -> None:
        """Report that the node has changed."""
        self._graph.listener.touch(*self._node.outputs)

    def enter(self, stage: str, pass_: str) -> None:
        """Report the start of a pass."""
        self._graph.listener.enter(stage, pass_)

    def leave(self) -> None:
        """Report the end of the last pass."""
        self._graph.listener.leave()

    def fired(self, rule: str, node: str) -> None:
        """Report that ``rule`` was applied inside."""
        self._graph.listener.fired(rule, self._node.output)

    def considered(self, decision: Decision, made_of: str = "") -> None:
        """Report a choice inside the block to the listener of the graph around it."""
        self._graph.listener.considered(decision, made_of)
