"""Define the graph of a model: nodes over named tensors, which passes rewrite."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.graph.building import Builder, plain, present
from taper_frontend.compiler.graph.node import MOVES, Node
from taper_frontend.compiler.graph.structure import changes
from taper_runtime.base.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from taper_frontend.compiler.graph.constants import Constant
    from taper_runtime.ops.opdef import TensorType


class Graph(Builder):
    """Nodes connected by named tensors; inputs, states and constants are tensors, not nodes.

    Every tensor is an input, a state, a constant, or an output of exactly one node. All changes go
    through methods, which update the indices of producers and consumers and discard the cached
    order.

    A graph inside a node, one of its blocks, has no states, and shares the size variables of the
    enclosing graph. Its changes are reported to the enclosing graph's listener as changes of the
    node.

    :class:`.structure.Structure` has the attributes and queries, :class:`.building.Builder` adds
    tensors and nodes, and this class has the rewrites.
    """

    def verify(self) -> None:
        """Raise :class:`InternalError` if the graph breaks a rule; see :mod:`.verify`."""
        from taper_frontend.compiler.graph.verify import verify

        verify(self)

    def __str__(self) -> str:
        from taper_frontend.compiler.graph.printer import format_graph

        return format_graph(self)

    def freeze(self) -> None:
        """Forbid changes to the graph and to the graphs in its nodes; copies can be changed."""
        self.is_frozen = True
        for node in self._nodes.values():
            for block in node.blocks:
                block.freeze()

    def rewire_input(self, node: Node, index: int, new: str) -> None:
        """Make ``node`` read ``new`` at position ``index``; its outputs' types must not change."""
        inputs = list(node.inputs)
        inputs[index] = new
        self._set_definition(node, node.op, inputs, node.attrs, node.blocks)

    def replace_node(
        self,
        node: Node,
        op: str,
        inputs: Sequence[str | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        blocks: Sequence[Graph] = (),
        outputs: Sequence[str] | None = None,
    ) -> None:
        """Compute the outputs of ``node`` by another op; names, types and readers stay.

        Nodes that only the old op needed are removed, so rewrites leave no dead nodes. Their source
        lines' targets are added to the node's.

        Parameters
        ----------
        node : Node
        op, inputs, attrs, blocks
            See :meth:`add_multi_output`.
        outputs : sequence of str, optional
            The outputs that the new op computes, in order; nothing may use the others.

        Raises
        ------
        OpError
            If the op is unknown, or does not accept these inputs, attrs or blocks.
        InternalError
            If the types of the results differ.
        """
        old = node.reads
        if outputs is not None:
            self._leave_out(node, outputs)
        self._set_definition(node, op, present(inputs), plain(attrs or {}), list(blocks))
        removed: list[Node] = []
        self._drop_unused(old, removed)
        node.source = node.source.joined([each.source for each in reversed(removed)])

    def bypass(self, node: Node, *tensors: str) -> bool:
        """Replace the outputs of ``node`` by ``tensors`` for all readers, and remove ``node``.

        Names of graph outputs never change. If ``node`` makes an output, the tensor takes over its
        name. If the tensor must keep its own name (an input, a constant, another output), a COPY of
        it becomes the output.

        Returns
        -------
        bool
            Whether anything changed: False if the output is such a COPY already.

        Raises
        ------
        InternalError
            If a tensor's type differs from the output's.
        """
        pairs = list(zip(node.outputs, tensors, strict=True))
        for name, tensor in pairs:
            self._check_same_type(name, tensor)
        readers = [self._reroute(name, tensor) for name, tensor in pairs]
        for name, tensor in pairs:
            if not self.is_output(name):
                self.listener.replaced(name, tensor)
            if tensor in self._producers:
                self._move_origins(name, tensor)
        if not any(map(self._is_bound, node.outputs)):
            self.prune(node.outputs)
        elif len(pairs) == 1 and not self._may_rename(*tensors):
            if node.op == "COPY" and node.inputs == [*tensors]:
                return any(readers)
            self.replace_node(node, "COPY", tensors)
        else:
            self._hand_over(node, pairs)
        return True

    def replace_by_constant(self, node: Node, *constants: Constant) -> None:
        """Make each output of ``node`` a constant; a graph output becomes a COPY of one."""
        old, specs = node.reads, [self.tensors[name] for name in node.outputs]
        self._drop_node(node)
        for spec, constant in zip(specs, constants, strict=True):
            if self._is_bound(spec.name):
                value = self.add_constant(f"{spec.name}.value", constant)
                self._reroute(spec.name, value)
                self._insert(Node("COPY", [value], [spec.name], source=node.source))
            else:
                self.tensors[spec.name] = spec._replace(role="constant")
                self.constants[spec.name] = constant
        self.prune(old)

    @changes
    def replace_uses(self, old: str, new: str) -> None:
        """Replace ``old`` by ``new`` in all readers, outputs and states."""
        self._check_same_type(old, new)
        self.listener.replaced(old, new)
        self._reroute(old, new)
        self._move_origins(old, new)
        if self.is_output(old):
            self.outputs = [new if name == old else name for name in self.outputs]
            for state in self.states:
                state.next = new if state.next == old else state.next
            self._ends_changed()
        self._order = None

    def remove_node(self, node: Node) -> None:
        """Remove a node whose outputs nothing uses, and those outputs."""
        for name in node.outputs:
            if self.is_used(name):
                raise InternalError(f"node {node.output!r} cannot be removed: {name!r} is used")
        self._drop_node(node)
        self._drop_tensors(node.outputs)

    @changes
    def remove_tensor(self, name: str) -> None:
        """Remove an unused input or constant, or an output of a removed node."""
        spec = self.tensors[name]
        if self.is_used(name) or name in self._producers or spec.role == "state":
            raise InternalError(f"tensor {name!r} cannot be removed: it is used or has a producer")
        if spec.role == "input":
            self.inputs.remove(name)
        self._drop_tensors([name])

    @changes
    def remove_computed_size(self, name: str) -> None:
        """Remove a size variable that no tensor's shape and no attr uses."""
        tensor, _ = self.origins.pop(name)
        self._ends_changed()
        del self.sizes[name], self.examples[name]
        self.prune([tensor])

    @changes
    def rename(self, names: Mapping[str, str]) -> None:
        """Rename tensors, all at once; ``names`` maps old names to new ones.

        Raises
        ------
        InternalError
            If two tensors would have the same name.
        """

        def new(name: str) -> str:
            return names.get(name, name)

        if len({new(name) for name in self.tensors}) < len(self.tensors):
            raise InternalError(f"expected different names for all tensors, got {dict(names)}")
        for old in names:
            self.listener.touch(old, new(old), *map(new, self._consumers[old]))
            self.listener.replaced(old, new(old))
        self.tensors = {
            new(name): spec._replace(name=new(name)) for name, spec in self.tensors.items()
        }
        self.constants = {new(name): constant for name, constant in self.constants.items()}
        self.stands_for = {new(name): value for name, value in self.stands_for.items()}
        for state in self.states:
            state.name, state.next = new(state.name), new(state.next)
        self.origins = {size: (new(name), at) for size, (name, at) in self.origins.items()}
        self.inputs = [new(name) for name in self.inputs]
        self.outputs = [new(name) for name in self.outputs]
        self._ends_changed()
        self._consumers = {
            new(name): {new(reader): None for reader in readers}
            for name, readers in self._consumers.items()
        }
        for node in self._nodes.values():
            node.name_outputs([new(name) for name in node.outputs])
            node.define(node.op, [new(name) for name in node.inputs], node.attrs, node.blocks)
        nodes = [*self._nodes.values()]
        for index in (self._nodes, self._producers):
            index.clear()
        self._nodes.update((node.output, node) for node in nodes)
        self._producers.update((name, node) for node in nodes for name in node.outputs)
        self._order = None

    def name_outputs(self, names: Sequence[str]) -> None:
        """Return the first outputs these names; other tensors with these names are renamed."""
        renamed = dict(zip(self.outputs, names, strict=False))
        taken = {*self.tensors, *names}
        for name in names:
            if name in self.tensors and name not in renamed:
                others = (f"{name}_{i}" for i in count(1))
                renamed[name] = next(other for other in others if other not in taken)
                taken.add(renamed[name])
        self.rename(renamed)

    def prune(self, names: Iterable[str]) -> int:
        """Remove the named tensors that nothing uses, and everything that only they needed.

        A node with a used output keeps all its outputs. Inputs and states stay, because they are
        the module's signature.

        Returns
        -------
        int
            The number of removed nodes and constants.
        """
        return self._drop_unused(names, [])

    # -- inside -----------------------------------------------------------------------------------

    def _leave_out(self, node: Node, kept: Sequence[str]) -> None:
        """Reduce the outputs of ``node`` to these; nothing may use the others."""
        left_out = [name for name in node.outputs if name not in kept]
        self._drop_node(node)
        for name in left_out:
            self.remove_tensor(name)
        node.name_outputs(list(kept))
        self._insert(node)

    @changes
    def _set_definition(
        self,
        node: Node,
        op: str,
        inputs: list[str],
        attrs: dict[str, Any],
        blocks: list[Graph],
    ) -> None:
        """Replace op, inputs, attrs and blocks of a node, and update the indices."""
        self._check_present(node)
        expected, inferred = self.output_types(node), self._infer(op, inputs, attrs, blocks)
        if [*inferred] != expected:
            raise InternalError(
                f"{node.output!r}: expected a new definition of {_types_text(expected)}, "
                f"got {op} of {_types_text(inferred)}"
            )
        self._unlink(node)
        node.define(op, inputs, attrs, blocks)
        self._link(node)
        if op in MOVES and node.output in self.stands_for:
            self.means(node.output, self.stands_for.pop(node.output))

    def _replace_in(self, consumer: Node, old: str, new: str) -> None:
        inputs = [new if name == old else name for name in consumer.inputs]
        self._set_definition(consumer, consumer.op, inputs, consumer.attrs, consumer.blocks)

    def _reroute(self, old: str, new: str) -> bool:
        """Replace ``old`` by ``new`` in all nodes; return whether any of them read it."""
        if old in self.stands_for:
            self.means(new, self.stands_for[old])
        consumers = self.consumers(old)
        for consumer in consumers:
            self._replace_in(consumer, old, new)
        return bool(consumers)

    def _move_origins(self, old: str, new: str) -> None:
        """Make each size that is an element of ``old`` an element of ``new``."""
        if self.is_origin(old):
            for size, (name, element) in self.origins.items():
                if name == old:
                    self.origins[size] = new, element
            self._ends_changed()

    def _is_bound(self, tensor: str) -> bool:
        """Return whether a node must make ``tensor``, because the caller or a size reads it."""
        return self.is_output(tensor) or self.is_origin(tensor)

    def _may_rename(self, tensor: str) -> bool:
        """Return whether a node makes ``tensor`` and it is not an output."""
        return tensor in self._producers and not self.is_output(tensor)

    def _hand_over(self, node: Node, pairs: Sequence[tuple[str, str]]) -> None:
        """Remove ``node``; tensors take over the names of its outputs that are the graph's.

        If a tensor cannot be renamed, the output becomes a COPY of it.
        """
        old, kept = node.reads, {tensor for _, tensor in pairs}
        self._drop_node(node)
        renamed: dict[str, str] = {}
        for name, tensor in pairs:
            tensor = renamed.get(tensor, tensor)
            if not self._is_bound(name):
                self.remove_tensor(name)
            elif self._may_rename(tensor):
                self._rename(tensor, name)
                renamed[tensor] = name
            else:
                self._insert(Node("COPY", [tensor], [name], source=node.source))
        self.prune(name for name in old if name not in kept)

    def _rename(self, old: str, name: str) -> None:
        """Rename a node's output to the name of a tensor whose node was removed before."""
        node = self._producers.pop(old)
        self._unlink(node)
        del self._nodes[node.output]
        self.listener.replaced(old, name)
        node.name_outputs([name if output == old else output for output in node.outputs])
        self._insert(node)
        self._reroute(old, name)
        self._move_origins(old, name)
        self.remove_tensor(old)


def _types_text(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))
