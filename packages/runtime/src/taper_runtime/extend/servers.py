"""Define a server: Python code that computes a node if no C kernel does.

numpy, users' kernels and delegates are servers. All have the same life cycle. A session makes one
for each node, passes it the weights among its inputs, binds it to each set of sizes, and runs it.
New weights are passed in two steps, so that every server can refuse them before any uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from taper_runtime.base.buffers import read_only
from taper_runtime.base.errors import InputError, KernelError, NodeInputError, TaperError
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.text import printable, with_end

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.ops.opdef import BlockFunction, OpDef, TensorType
    from taper_runtime.plan.plan import Plan, PlanBlock, PlanNode

#: The ops whose attrs are not what their servers get.
_CALLS = frozenset({"CALL", "CALL_DELEGATE"})

#: A function of ``(inputs, outputs)`` that writes the outputs; an absent input is None.
Compute = Callable[[Sequence["np.ndarray | None"], Sequence["np.ndarray"]], None]


class ServedNode(NamedTuple):
    """The node of a plan that a server computes: for a delegate, the node is a subgraph.

    Attributes
    ----------
    name : str
        The node's name.
    blob : numpy.ndarray
        uint8 [n]: what a delegate's backend made of the subgraph at export; empty for a kernel. Do
        not trust its contents: the plan file may be hostile.
    inputs, outputs : tuple of TensorType
        The types, whose dims may be size expressions; None for an absent input.
    weights : tuple of int
        The indices of the inputs that are constants of the plan.
    block : PlanBlock or None
        The nodes that compute a delegate's subgraph, or an ATen call that the export kept.
    attrs : mapping of str to Any
        All attrs of the op, or a call's arguments that are not tensors. Values may be size
        expressions; :meth:`Server.bind` gets their numbers.
    op : str
        The node's op.
    names : tuple of str
        The inputs' names in the plan; None for an absent input.
    server : str
        The server's name in profiles and errors: the kernel's name, or the delegate's backend.
    overwritten : tuple of int
        The indices of the inputs in whose memory the plan computes an output of an ATen call. The
        server gets copies of these.
    """

    name: str
    blob: np.ndarray
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    weights: tuple[int, ...]
    block: PlanBlock | None
    attrs: Mapping[str, Any] = {}
    op: str = ""
    names: tuple[str | None, ...] = ()
    server: str = ""
    overwritten: tuple[int, ...] = ()


class Server:
    """Computes one node; a subclass overrides :meth:`run` or :meth:`bind`.

    :func:`taper_runtime.register_kernel` accepts a subclass; each session makes an object of it for
    each node. :class:`taper_runtime.Delegate` is the subclass for delegated subgraphs.

    Attributes
    ----------
    kind : str
        "user", "delegate" or "numpy": its kind in profiles and ``session.kernel_kinds()``.
    node : ServedNode
        The node that it computes.

    Parameters
    ----------
    node : ServedNode
    """

    kind: ClassVar[str] = "user"
    node: ServedNode

    def __init__(self, node: ServedNode) -> None:
        self.node = node

    def prepare_weights(self, weights: Mapping[int, np.ndarray]) -> None:
        """Check new weights and prepare data from them; runs still use the previous ones.

        This is called when the session is opened, and whenever some of the weights are replaced. An
        exception stops the replacement: the session keeps its weights, and no server commits. The
        next call must then replace the data that were prepared.

        Parameters
        ----------
        weights : mapping of int to numpy.ndarray
            All weights among the inputs, by their indices: read-only, C-contiguous.
        """

    def commit_weights(self) -> None:
        """Switch to the data that :meth:`prepare_weights` has prepared, for runs from now on.

        The session already has its new weights, so this must not fail; do everything that can fail
        in :meth:`prepare_weights`.
        """

    def bind(
        self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]
    ) -> Callable[[tuple[Any, ...], tuple[np.ndarray, ...]], None]:
        """Return a function that computes the node for one set of sizes; by default :meth:`run`.

        This is called before the first run with these sizes.

        Parameters
        ----------
        attrs : mapping of str to Any
            The node's attrs, with numbers for size expressions.
        types : sequence of TensorType or None
            The types of the inputs, then of the outputs, with numbers for their dims.
        """
        return self.run

    def run(self, inputs: tuple[Any, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Write every element of ``outputs``; return nothing.

        An input is a read-only array, or None if it is absent. Several threads may call this at
        once. The arrays must not be kept. The weights among the inputs are those of the run. A run
        that began before a replacement uses the old ones, perhaps even after
        :meth:`commit_weights`; a run may use the new ones shortly before it. A server with data
        derived from weights must choose the data by the addresses of all weights, which are those
        that :meth:`prepare_weights` got.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: expected a method run or bind, got neither"
        )

    def close(self) -> None:
        """Free what runs need: the session is closed, and no further run begins.

        Runs that have begun may call :meth:`bind` and :meth:`run` afterwards. A session that is
        dropped without being closed does not call this.
        """


class FunctionServer(Server):
    """Calls a user's function ``(inputs, outputs, attrs)``."""

    def __init__(self, node: ServedNode, function: Callable[..., object]) -> None:
        super().__init__(node)
        self._function: Any = function

    def bind(self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]) -> Compute:
        """See :meth:`Server.bind`."""
        function = self._function
        return lambda inputs, outputs: function(inputs, outputs, attrs)


class NumpyServer(Server):
    """Calls an op's evaluator.

    Nearly every node has one as its fallback, so it needs no :class:`ServedNode`.

    Parameters
    ----------
    op : OpDef
    label : str
        The node's name in errors.
    blocks : sequence of callable
        Each returns a block of the node in the form that the evaluator calls.
    """

    kind: ClassVar[str] = "numpy"

    def __init__(
        self, op: OpDef, label: str, blocks: Sequence[Callable[[], BlockFunction]] = ()
    ) -> None:
        self._op, self._label, self._blocks = op, label, blocks

    def bind(self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]) -> Compute:
        """See :meth:`Server.bind`."""
        op, blocks = self._op, self._blocks

        def compute(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
            op.compute(inputs, attrs, outputs, types, [block() for block in blocks])

        return naming(self._label, op, compute)


def label_of(node: PlanNode) -> str:
    """Return the name of a node in errors."""
    return f"{node.output} ({node.op})"


def naming(label: str, op: OpDef, compute: Compute) -> Compute:
    """Return ``compute`` with errors about refused inputs that name the node."""

    def named(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        try:
            compute(inputs, outputs)
        except NodeInputError:
            raise  # raised by a node in a block
        except InputError as error:
            reason = str(error).removeprefix(f"{op.name}: ")
            raise NodeInputError(label, reason) from None

    return named


# -- the life of a server --------------------------------------------------------------------------


def make_server(
    make: Callable[[ServedNode], Server], name: str, plan: Plan, node: PlanNode
) -> Server:
    """Make the server of a node and pass it its first weights.

    Parameters
    ----------
    make : callable
        A class of servers, or a function that makes one from a served node.
    name : str
        The kernel's name, or the delegate's backend.
    plan : Plan
    node : PlanNode

    Raises
    ------
    InputError
        If a delegate's blob is not a constant.
    KernelError
        If the server's code raises; a TaperError of its constructor is not changed.
    """
    served = make_served_node(plan, node, name)
    try:
        server = make(served)
    except TaperError:
        raise  # for example because a file is refused
    except Exception as error:
        raise _broken(served, "__init__", error) from error
    server.node = served  # set here because a subclass's __init__ may not call Server's
    if served.weights:
        prepare(server, plan.constants)
        _calling(served, "commit_weights", server.commit_weights)
    return server


def make_served_node(plan: Plan, node: PlanNode, server: str) -> ServedNode:
    """Return a node of a plan as its server gets it."""
    import numpy as np

    from taper_runtime.ops import REGISTRY
    from taper_runtime.ops.call import arguments  # imported here because most plans do not need it

    overwritten: tuple[int, ...] = ()
    names, attrs, blob = node.inputs, REGISTRY[node.op].fill(node.attrs), np.empty(0, np.uint8)
    if node.op == "CALL":
        attrs = arguments(attrs)
        written = {plan.placements[name].root for name in node.outputs}
        overwritten = tuple(
            [i for i, name in enumerate(names) if name and plan.placements[name].root in written]
        )
    elif node.op == "CALL_DELEGATE":
        first, *_ = node.reads
        names, attrs = names[1:], {}
        if first not in plan.constants:
            raise InputError(
                f"node {node.output!r}: expected a constant with the delegate's bytes as the first "
                f"input, got {first!r}"
            )
        blob = plan.constants[first]
    return ServedNode(
        name=node.output,
        blob=blob,
        inputs=tuple([None if each is None else plan.tensors[each].type for each in names]),
        outputs=tuple([plan.tensors[each].type for each in node.outputs]),
        weights=tuple(
            [i for i, each in enumerate(names) if each in plan.constants.keys() - plan.states]
        ),
        block=node.blocks[0] if node.blocks else None,
        attrs=attrs,
        op=node.op,
        names=tuple(names),
        server=server,
        overwritten=overwritten,
    )


def bind_server(
    server: Server, attrs: Mapping[str, Any], types: Sequence[TensorType | None]
) -> Compute:
    """Return a function that computes a server's node for one set of sizes.

    External code is called with checks of its contract.

    Parameters
    ----------
    server : Server
    attrs : mapping of str to Any
        The node's attrs, complete, with numbers for size expressions.
    types : sequence of TensorType or None
        The types of the node's inputs and outputs.

    Raises
    ------
    KernelError
        If the server's code raises, or does not return a function.
    """
    if isinstance(server, NumpyServer):
        return server.bind(attrs, types)
    node = server.node
    first = len(types) - len(node.inputs) - len(node.outputs)  # after a delegate's blob
    given = node.attrs if node.op in _CALLS else dict(attrs)
    compute = _calling(node, "bind", lambda: server.bind(given, types[first:]))
    if not callable(compute):
        got = type(compute).__name__
        raise KernelError(f"{_title(node)}: expected bind to return a function, got {got}")
    if node.overwritten:
        compute = partial(_on_copies, compute, node.overwritten)
    return partial(_checked, _title(node), compute, first)


def _on_copies(
    compute: Callable[..., object],
    places: Sequence[int],
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[np.ndarray],
) -> object:
    """Call external code on copies of the inputs at these places."""
    given = list(inputs)
    for place in places:
        if (array := given[place]) is not None:
            given[place] = array.copy()
    return compute(tuple(given), outputs)


def is_told(
    server: Server, before: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
) -> bool:
    """Return whether one of a server's weights is another array than before."""
    node = server.node
    return any(constants[name] is not before[name] for i in node.weights if (name := node.names[i]))


def prepare(server: Server, constants: Mapping[str, np.ndarray]) -> None:
    """Call a server's ``prepare_weights`` with its weights among a plan's constants.

    Raises
    ------
    KernelError
        If it refuses them.
    """
    names = server.node.names
    given = {i: read_only(constants[name]) for i in server.node.weights if (name := names[i])}
    _calling(server.node, "prepare_weights", lambda: server.prepare_weights(given))


def commit(servers: Sequence[Server]) -> KernelError | None:
    """Call ``commit_weights`` of all servers; return the first error, which must not happen."""
    first = None
    for server in servers:
        try:
            _calling(server.node, "commit_weights", server.commit_weights)
        except KernelError as error:
            first = first or KernelError(
                f"{error}; expected no error, because the weights are already replaced"
            )
    return first


def close(servers: Sequence[Server]) -> KernelError | None:
    """Call ``close`` of all servers; return the first error."""
    first = None
    for server in servers:
        try:
            _calling(server.node, "close", server.close)
        except KernelError as error:
            first = first or error
    return first


def _title(node: ServedNode) -> str:
    """Return the name of a server in errors."""
    what = "delegate" if node.op == "CALL_DELEGATE" else "kernel"
    return f"node {node.name} ({node.op}): {what} {node.server!r}"


def _calling(node: ServedNode, method: str, call: Callable[[], Any]) -> Any:
    """Call a method of a server.

    Raises
    ------
    KernelError
        If it raises.
    """
    try:
        return call()
    except Exception as error:
        raise _broken(node, method, error) from error


def _broken(node: ServedNode, method: str, error: Exception) -> KernelError:
    return KernelError(f"{_title(node)}: {method} raised {told_error(error)}")


def told_error(error: Exception) -> str:
    """Return the type and the message of what external code raised: one line of bounded length."""
    try:
        text = str(error)
    except Exception:  # of any kind: __str__ is external code too
        text = "its message cannot be made"
    return with_end(printable(f"{type(error).__name__}: {text}"))


def _checked(
    what: str,
    function: Callable[..., object],
    first: int,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[np.ndarray],
) -> None:
    """Call external code with the inputs from ``first`` on, and check its contract.

    Raises
    ------
    KernelError
        If it raises, returns something, or changes the shape of an output.
    """
    for array in inputs:
        if array is not None:
            array.flags.writeable = False
    shapes = [(array.shape, array.dtype, array.strides) for array in outputs]
    try:
        result = function(tuple(inputs[first:]), tuple(outputs))
    except Exception as error:
        raise KernelError(f"{what} raised {told_error(error)}") from error
    if result is not None:
        raise KernelError(
            f"{what}: expected it to write its outputs and return nothing, got "
            f"{type(result).__name__}"
        )
    for array, before in zip(outputs, shapes, strict=True):
        after = (array.shape, array.dtype, array.strides)
        if after != before:
            raise KernelError(f"{what}: expected an output of shape {before[0]}, got {after[0]}")
