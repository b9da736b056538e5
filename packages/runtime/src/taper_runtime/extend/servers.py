"""Define a server: Python code that computes a node where no kernel in C does.

numpy, a user's kernel and a delegate are servers. All have one life: made once for each node of a
session, told the weights among their inputs, bound to each set of sizes, then run; told of new
weights in two steps, so that all of them may refuse before any uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from taper_runtime.base.buffers import read_only
from taper_runtime.base.errors import InputError, KernelError, NodeInputError, TaperError
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.ops.opdef import BlockFunction, OpDef, TensorType
    from taper_runtime.plan.plan import Block, Plan, PlanNode

#: ``(inputs, outputs)``: writes the outputs; an input that is absent is None.
Compute = Callable[[Sequence["np.ndarray | None"], Sequence["np.ndarray"]], None]


class Region(NamedTuple):
    """The node, or the part of a graph, that a server computes.

    Attributes
    ----------
    name : str
        The node's.
    blob : numpy.ndarray
        uint8 [n]: what a delegate's backend has made of the region at export; empty for a kernel. A
        stranger may have written it: check what you read.
    inputs, outputs : tuple of TensorType
        Their dims may be size expressions. None is an input that is absent.
    weights : tuple of int
        Which of the inputs are constants of the plan.
    block : Block or None
        The region as a graph: of a delegate, and of an ATen call that an export was told to keep.
    attrs : mapping of str to Any
        The op's, all of them, or a call's arguments that are no tensors. Values may be size
        expressions; :meth:`Server.bind` is given their numbers.
    op : str
        The node's.
    names : tuple of str
        What the plan calls the inputs. None is an input that is absent.
    server : str
        What profiles and errors call the server: the kernel's name, or the delegate's backend.
    """

    name: str
    blob: np.ndarray
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    weights: tuple[int, ...]
    block: Block | None
    attrs: Mapping[str, Any] = {}
    op: str = ""
    names: tuple[str | None, ...] = ()
    server: str = ""


class Server:
    """Computes one region; a subclass overrides :meth:`run` or :meth:`bind`.

    :func:`taper_runtime.register_kernel` takes a subclass, of which each session makes an object
    for each node. :class:`taper_runtime.Delegate` is the subclass for what an export gives away.

    Attributes
    ----------
    kind : str
        "user", "delegate" or "numpy": what profiles and ``session.kernel_kinds()`` call it.
    region : Region
        What it computes.

    Parameters
    ----------
    region : Region
    """

    kind: ClassVar[str] = "user"
    region: Region

    def __init__(self, region: Region) -> None:
        self.region = region

    def prepare_weights(self, weights: Mapping[int, np.ndarray]) -> None:
        """Check weights and prepare what is made of them; runs go on with those before.

        It is called when the session is opened, and whenever some of the weights are replaced. What
        it raises stops the replacement: the session keeps its weights, and no server is told to
        commit. What was prepared is then to be forgotten when this is called again.

        Parameters
        ----------
        weights : mapping of int to numpy.ndarray
            All weights among the inputs, by their positions there: read-only, C-contiguous.
        """

    def commit_weights(self) -> None:
        """Let runs that begin from now on use what :meth:`prepare_weights` has prepared.

        The session has its new weights already, so this must not fail: what can fail belongs into
        :meth:`prepare_weights`.
        """

    def bind(
        self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]
    ) -> Callable[[tuple[Any, ...], tuple[np.ndarray, ...]], None]:
        """Return what computes the region for one set of sizes; by default :meth:`run`.

        It is called before the first run with these sizes.

        Parameters
        ----------
        attrs : mapping of str to Any
            The region's, with numbers for size expressions.
        types : sequence of TensorType or None
            Of the inputs, then of the outputs, with numbers for their dims.
        """
        return self.run

    def run(self, inputs: tuple[Any, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """Write every element of ``outputs``; return nothing.

        An input is a read-only array, None where it is absent. Several threads may call this at
        once. The arrays must not be kept. The weights among the inputs are those of the run: one
        that began before a replacement ends with the old ones, perhaps after
        :meth:`commit_weights`, and one may begin with the new ones just before it. A server that
        keeps something made of weights tells the sets apart by the addresses of all of them, which
        are those that :meth:`prepare_weights` saw.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither run nor bind")


class FunctionServer(Server):
    """Calls a user's function ``(inputs, outputs, attrs)``."""

    def __init__(self, region: Region, function: Callable[..., object]) -> None:
        super().__init__(region)
        self._function: Any = function

    def bind(self, attrs: Mapping[str, Any], types: Sequence[TensorType | None]) -> Compute:
        """See :meth:`Server.bind`."""
        function = self._function
        return lambda inputs, outputs: function(inputs, outputs, attrs)


class NumpyServer(Server):
    """Calls an op's own evaluator.

    Nearly every node has one behind its kernels, so it makes no :class:`Region`.

    Parameters
    ----------
    op : OpDef
    label : str
        What errors call the node.
    blocks : sequence of callable
        Each gives a block of the node as the evaluator calls it.
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
    """Return what errors call a node."""
    return f"{node.output} ({node.op})"


def naming(label: str, op: OpDef, compute: Compute) -> Compute:
    """Return ``compute``, which says of which node an input that the op refuses is."""

    def named(inputs: Sequence[np.ndarray | None], outputs: Sequence[np.ndarray]) -> None:
        try:
            compute(inputs, outputs)
        except NodeInputError:
            raise  # of a node in a block
        except InputError as error:
            reason = str(error).removeprefix(f"{op.name}: ")
            raise NodeInputError(label, reason) from None

    return named


# -- the life of a server --------------------------------------------------------------------------


def make_server(make: Callable[[Region], Server], name: str, plan: Plan, node: PlanNode) -> Server:
    """Return a server of a node, which has its first weights.

    Parameters
    ----------
    make : callable
        A class of servers, or what makes one of a region.
    name : str
        The kernel's, or the delegate's backend.
    plan : Plan
    node : PlanNode

    Raises
    ------
    InputError
        If a delegate's blob is no constant.
    KernelError
        If the server's code raises; an error of Taper's that it is made with stays as it is.
    """
    region = make_region(plan, node, name)
    try:
        server = make(region)
    except TaperError:
        raise  # a file that is refused, say
    except Exception as error:
        raise _broken(region, "__init__", error) from error
    server.region = region  # also where __init__ does not call that of Server
    if region.weights:
        prepare(server, plan.constants)
        _calling(region, "commit_weights", server.commit_weights)
    return server


def make_region(plan: Plan, node: PlanNode, server: str) -> Region:
    """Return a node of a plan as what a server computes."""
    import numpy as np

    from taper_runtime.ops import REGISTRY
    from taper_runtime.ops.call import arguments  # which most plans do not need

    names, attrs, blob = node.inputs, REGISTRY[node.op].fill(node.attrs), np.empty(0, np.uint8)
    if node.op == "CALL":
        attrs = arguments(attrs)
    elif node.op == "CALL_DELEGATE":
        first, *_ = node.reads
        names, attrs = names[1:], {}
        if first not in plan.constants:
            raise InputError(f"node {node.output!r}: expected a constant as the delegate's blob")
        blob = plan.constants[first]
    return Region(
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
    )


def bind_server(
    server: Server, attrs: Mapping[str, Any], types: Sequence[TensorType | None]
) -> Compute:
    """Return what computes a server's node for one set of sizes.

    Foreign code is called with the checks that its contract allows.

    Parameters
    ----------
    server : Server
    attrs : mapping of str to Any
        The node's, complete, with numbers for size expressions.
    types : sequence of TensorType or None
        Of the node's inputs and outputs.

    Raises
    ------
    KernelError
        If the server's code raises, or gives no function.
    """
    if isinstance(server, NumpyServer):
        return server.bind(attrs, types)
    region = server.region
    first = len(types) - len(region.inputs) - len(region.outputs)  # behind a delegate's blob
    given = dict(attrs) if region.block is None else region.attrs
    compute = _calling(region, "bind", lambda: server.bind(given, types[first:]))
    if not callable(compute):
        got = type(compute).__name__
        raise KernelError(f"{_title(region)}: expected bind to return a function, got {got}")
    return partial(_checked, _title(region), compute, first)


def is_told(
    server: Server, before: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
) -> bool:
    """Whether any of a server's weights is another array than before."""
    region = server.region
    return any(
        constants[name] is not before[name] for i in region.weights if (name := region.names[i])
    )


def prepare(server: Server, constants: Mapping[str, np.ndarray]) -> None:
    """Have a server prepare its weights among a plan's constants.

    Raises
    ------
    KernelError
        If it does not take them.
    """
    names = server.region.names
    given = {i: read_only(constants[name]) for i in server.region.weights if (name := names[i])}
    _calling(server.region, "prepare_weights", lambda: server.prepare_weights(given))


def commit(servers: Sequence[Server]) -> KernelError | None:
    """Have servers commit what they have prepared; return what the first raised that must not."""
    first = None
    for server in servers:
        try:
            _calling(server.region, "commit_weights", server.commit_weights)
        except KernelError as error:
            first = first or KernelError(f"{error}; it must not, for the weights are replaced")
    return first


def _title(region: Region) -> str:
    """Return what errors call a server."""
    what = "delegate" if region.op == "CALL_DELEGATE" else "kernel"
    return f"node {region.name} ({region.op}): {what} {region.server!r}"


def _calling(region: Region, method: str, call: Callable[[], Any]) -> Any:
    """Call a method of a server's.

    Raises
    ------
    KernelError
        If it raises.
    """
    try:
        return call()
    except Exception as error:
        raise _broken(region, method, error) from error


def _broken(region: Region, method: str, error: Exception) -> KernelError:
    return KernelError(f"{_title(region)}: {method} raised {type(error).__name__}: {error}")


def _checked(
    what: str,
    function: Callable[..., object],
    first: int,
    inputs: Sequence[np.ndarray | None],
    outputs: Sequence[np.ndarray],
) -> None:
    """Call somebody else's function with the inputs from ``first`` on, and check what it does.

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
        raise KernelError(f"{what} raised {type(error).__name__}: {error}") from error
    if result is not None:
        raise KernelError(
            f"{what}: expected it to write its outputs and return nothing, got "
            f"{type(result).__name__}"
        )
    for array, before in zip(outputs, shapes, strict=True):
        after = (array.shape, array.dtype, array.strides)
        if after != before:
            raise KernelError(f"{what}: expected an output of shape {before[0]}, got {after[0]}")
