"""The session: ONNX Runtime's interface, name for name, over a plan."""

from __future__ import annotations

import os
from json import dumps
from typing import TYPE_CHECKING, NamedTuple

from taper_runtime.errors import InputError
from taper_runtime.executor import _native
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.format.reader import load
from taper_runtime.generator import check_seed
from taper_runtime.plan.plan import Plan, TensorSpec
from taper_runtime.sizes import Size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from taper_runtime.executor.executor import Executor
    from taper_runtime.state import State

#: ONNX Runtime's spelling of element types where it differs from numpy's.
_ONNX_TYPES = {"float32": "float", "float64": "double"}
_EXECUTORS: dict[str, type[Executor]] = {
    "compiled": CompiledExecutor,
    "interpreted": InterpretedExecutor,
}


class NodeArg(NamedTuple):
    """One input or output of a session.

    Attributes
    ----------
    name : str
    shape : list of int or str
        A dim that varies is its size variable's name, or an expression of several.
    type : str
        As ONNX Runtime spells it: ``"tensor(float)"``, ``"tensor(int64)"``.
    """

    name: str
    shape: list[int | str]
    type: str


class ModelMeta(NamedTuple):
    """What a plan says about itself.

    Attributes
    ----------
    producer_name : str
        The packages that exported it, with their versions.
    custom_metadata_map : dict of str to str
        The export report; values that are not text stand as JSON.
    """

    producer_name: str
    custom_metadata_map: dict[str, str]


class SessionOptions:
    """Options of a session.

    Attributes
    ----------
    intra_op_num_threads : int
        Threads one run may use, the caller's among them. 0 takes ``TAPER_NUM_THREADS``, or where
        that is not set the CPUs this process may use. The bits do not depend on it.
    strict_native : bool
        Refuse plans with nodes that only numpy can compute.
    executor : str
        ``"compiled"``, or ``"interpreted"`` for debugging.
    seed : int or None
        Where a plan draws random numbers: the runs of the session, one after the other, draw what
        the module's calls draw after one ``torch.manual_seed(seed)``. With None every run draws
        from a generator of its own, seeded by the operating system.
    """

    def __init__(self) -> None:
        self.intra_op_num_threads = 0
        self.strict_native = False
        self.executor = "compiled"
        self.seed: int | None = None


class RunOptions:
    """Options of one run.

    Attributes
    ----------
    seed : int or None
        Draw what the module draws after ``torch.manual_seed(seed)``; the session's own generator
        stays as it is. None draws from the session's.
    """

    def __init__(self) -> None:
        self.seed: int | None = None


class InferenceSession:
    """A plan, ready to run.

    Parameters
    ----------
    path_or_plan : path or Plan
        A ``.taper`` file, or a plan just exported.
    sess_options : SessionOptions, optional

    Raises
    ------
    PlanFormatError
        If the file is not a valid plan.
    UnsupportedOpError
        With ``strict_native``, if a node has no native kernel.
    """

    def __init__(
        self,
        path_or_plan: str | os.PathLike[str] | Plan,
        sess_options: SessionOptions | None = None,
    ) -> None:
        options = sess_options or SessionOptions()
        if options.executor not in _EXECUTORS:
            raise InputError(
                f"executor: expected one of {sorted(_EXECUTORS)}, got {options.executor!r}"
            )
        self.plan = path_or_plan if isinstance(path_or_plan, Plan) else load(path_or_plan)
        self._executor = _EXECUTORS[options.executor].compile(
            self.plan,
            strict_native=options.strict_native,
            threads=thread_count(options.intra_op_num_threads),
        )
        self._state: State | None = None
        seed = check_seed(options.seed)
        if self.plan.states:
            from taper_runtime.state import State  # imports threading, which most plans do not need

            self._state = State(self.plan, seed)
        self._inputs = self.plan.inputs
        self._output_index = {name: i for i, name in enumerate(self.plan.outputs)}

    def get_inputs(self) -> list[NodeArg]:
        """Inputs in the order of the module's flattened arguments."""
        return [_describe(self.plan.tensors[name]) for name in self.plan.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Outputs in the order of the module's flattened results."""
        return [_describe(self.plan.tensors[name]) for name in self.plan.outputs]

    @property
    def state_names(self) -> list[str]:
        """Names of the tensors that live across runs: buffers that the module writes to."""
        return [] if self._state is None else list(self._state.names)

    def get_state(self, name: str) -> np.ndarray:
        """Return a copy of a state tensor.

        Raises
        ------
        InputError
            If there is none of this name.
        """
        return self._states().get(name)

    def set_state(self, name: str, array: np.ndarray) -> None:
        """Give a state tensor a value, of exactly its dtype and shape; it is copied.

        Raises
        ------
        InputError
            If there is none of this name, or the array does not fit.
        """
        self._states().set(name, array)

    def reset_state(self, name: str | None = None) -> None:
        """Give a state tensor, or all of them, the value it was exported with.

        Raises
        ------
        InputError
            If there is none of this name.
        """
        if name is not None or self._state is not None:
            self._states().reset(name)

    def _states(self) -> State:
        if self._state is None:
            raise InputError("the plan has no state")
        return self._state

    def get_modelmeta(self) -> ModelMeta:
        """Who made the plan and what the export reported."""
        metadata = self.plan.metadata
        return ModelMeta(
            str(metadata.get("producer", "")),
            {
                key: value if isinstance(value, str) else dumps(value)
                for key, value in metadata.items()
            },
        )

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray],
        run_options: RunOptions | None = None,
        *,
        out: Mapping[str, np.ndarray] | None = None,
    ) -> list[np.ndarray]:
        """One inference. Safe to call from many threads at once; the GIL is released.

        Where the plan has state, a run begins with what the last one left, and runs take turns. A
        run that raises leaves the state as it was.

        Parameters
        ----------
        output_names : sequence of str or None
            Which outputs to return, None for all in order.
        input_feed : mapping of str to numpy.ndarray
            One array per input, of exactly its dtype and shape; dims that vary have any size in
            their variable's range, the same in all inputs. Arrays that are not C-contiguous
            are copied; nothing is converted.
        run_options : RunOptions, optional
        out : mapping of str to numpy.ndarray, optional
            Arrays to write outputs into, by output name, without a copy: C-contiguous, writable, of
            exactly the output's dtype and shape, apart from every input.

        Returns
        -------
        list of numpy.ndarray
            Fresh arrays, or those of ``out``.

        Raises
        ------
        InputError
            On a missing, unknown or unfit input or ``out``, an unknown output name, or a bad seed.
        """
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise InputError(f"run_options: expected RunOptions or None, got {run_options!r}")
        seed = None if run_options is None else check_seed(run_options.seed)
        try:
            arrays = [input_feed[name] for name in self._inputs]
        except KeyError as error:
            raise InputError(
                f"missing input {error.args[0]!r}; expected {list(self._inputs)}, "
                f"got {sorted(input_feed)}"
            ) from None
        if len(input_feed) != len(arrays):
            unknown = sorted(input_feed.keys() - set(self._inputs))
            raise InputError(f"unknown inputs {unknown}; expected {list(self._inputs)}")
        mine = None
        if out:
            unknown = sorted(out.keys() - self._output_index.keys())
            if unknown:
                raise InputError(f"out: unknown outputs {unknown}; expected {self.plan.outputs}")
            mine = [out.get(name) for name in self.plan.outputs]
        if self._state is None:
            outputs = self._executor.run(arrays, mine)
        else:
            outputs = self._state.run(self._executor, arrays, mine, seed)
        if output_names is None:
            return outputs
        try:
            return [outputs[self._output_index[name]] for name in output_names]
        except KeyError as error:
            raise InputError(
                f"unknown output {error.args[0]!r}; expected some of {list(self.plan.outputs)}"
            ) from None


def thread_count(wanted: int = 0) -> int:
    """Threads a run may use: ``wanted``, else ``TAPER_NUM_THREADS``, else the CPUs at hand."""
    what, value = "intra_op_num_threads", str(wanted)
    if wanted == 0:
        what = "TAPER_NUM_THREADS"
        value = os.environ.get(what) or str(_native.cpu_count())
    if not (value.isascii() and value.isdigit() and int(value) > 0):
        raise InputError(f"{what}: expected a number of threads of at least 1, got {value!r}")
    return int(value)


def _describe(spec: TensorSpec) -> NodeArg:
    shape = [str(size) if isinstance(size, Size) else size for size in spec.shape]
    return NodeArg(spec.name, shape, f"tensor({_ONNX_TYPES.get(spec.dtype, spec.dtype)})")
