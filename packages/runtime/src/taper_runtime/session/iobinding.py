"""Bind inputs and outputs to memory before a run, as ONNX Runtime's IOBinding does."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.session.ortvalue import (
    OrtValue,
    arrays_of,
    check_device,
    checked_shape,
    element_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from taper_runtime.session.inference_session import InferenceSession
    from taper_runtime.session.options import RunOptions
    from taper_runtime.session.state import State

_LAST_ADDRESS = 2 * sys.maxsize + 1


class IOBinding:
    """Inputs and outputs of a session's next runs, by name; ``session.io_binding()`` makes one.

    The memory bound to an input is read when ``session.run_with_iobinding`` runs. An output bound
    to the caller's memory is written there without a copy; every other bound output gets a fresh
    array in each run. Outputs that are not bound are computed too, but not kept.
    """

    def __init__(self, session: InferenceSession) -> None:
        from taper_runtime.session.inference_session import InferenceSession

        if not isinstance(session, InferenceSession):
            raise InputError(f"session: expected a session, got {type(session).__name__}")
        self._session = session
        self._input_names = {item.name for item in session.get_inputs()}
        self._output_names = {item.name for item in session.get_outputs()}
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: dict[str, np.ndarray] = {}
        self._written: set[str] = set()  # outputs that the last run wrote to bound memory

    def bind_cpu_input(self, name: str, arr_on_cpu: np.ndarray) -> None:
        """Bind an input to an array, without a copy.

        Raises
        ------
        InputError
            If the session has no such input, or this is no numpy array.
        """
        _check_name("input", name, self._input_names)
        self._inputs[name] = OrtValue(arr_on_cpu).numpy()

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value.

        Raises
        ------
        InputError
            If the session has no such input, or this is no OrtValue.
        """
        _check_name("input", name, self._input_names)
        self._inputs[name] = arrays_of({name: ortvalue})[name]

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: npt.DTypeLike | int,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory at an address.

        The caller must ensure that C-contiguous elements of that type and shape stay at the address
        as long as runs read them.

        Raises
        ------
        InputError
            If the session has no such input, there is no such type or shape, the device is not
            "cpu", or nothing can lie at the address.
        """
        check_device(device_type)
        self.bind_cpu_input(name, _array_at(name, element_type, shape, buffer_ptr))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: npt.DTypeLike | int | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Bind an output to a fresh array, or to memory at an address.

        The caller must ensure that the address is valid, as for :meth:`bind_input`.

        Raises
        ------
        InputError
            If the session has no such output, there is no such type or shape, the device is not
            "cpu", nothing can lie at the address, or it is given without a type and shape.
        """
        check_device(device_type)
        _check_name("output", name, self._output_names)
        array = None
        if buffer_ptr is not None:
            if element_type is None or shape is None:
                raise InputError(f"output {name!r}: expected element_type and shape of buffer_ptr")
            array = _array_at(name, element_type, shape, buffer_ptr)
        self._outputs[name] = array

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a value; runs write to its memory.

        Raises
        ------
        InputError
            If the session has no such output, or this is no OrtValue.
        """
        _check_name("output", name, self._output_names)
        self._outputs[name] = arrays_of({name: ortvalue})[name]

    def clear_binding_inputs(self) -> None:
        """Remove the bindings of all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Remove the bindings of all outputs, and the results of the last run."""
        self._outputs.clear()
        self._results.clear()

    def synchronize_inputs(self) -> None:
        """Do nothing: everything lies in the CPU's memory."""

    def synchronize_outputs(self) -> None:
        """Do nothing: everything lies in the CPU's memory."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the last run's outputs in the order in which they were bound."""
        return [OrtValue(array) for array in self._results.values()]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return the last run's outputs as arrays that no later run writes."""
        return [
            array.copy() if name in self._written else array
            for name, array in self._results.items()
        ]

    def run(
        self,
        session: InferenceSession,
        run_options: RunOptions | None,
        state: State | Sequence[State] | None = None,
    ) -> None:
        """Run on the bound inputs; ``session.run_with_iobinding`` calls this."""
        if session is not self._session:
            raise InputError("run_with_iobinding: expected a binding that this session has made")
        if not self._outputs:
            raise InputError("run_with_iobinding: expected a bound output, got none")
        names = list(self._outputs)
        out = {name: array for name, array in self._outputs.items() if array is not None}
        arrays = self._session.run(names, self._inputs, run_options, out=out, state=state)
        self._results = dict(zip(names, arrays, strict=True))
        self._written = set(out)


def _check_name(what: str, name: object, names: set[str]) -> None:
    if not isinstance(name, str) or name not in names:
        raise InputError(f"unknown {what} {name!r}; expected one of {sorted(names)}")


class _Memory:
    """Memory at an address, as numpy's array interface describes it."""

    def __init__(self, address: int, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address, False), "typestr": dtype.str, "shape": shape,
        }  # fmt: skip


def _array_at(
    name: str, element_type: npt.DTypeLike | int, shape: Sequence[int], address: int
) -> np.ndarray:
    dtype = element_dtype(element_type)
    sizes = checked_shape(shape, dtype)
    nbytes = math.prod(sizes) * dtype.itemsize
    if nbytes == 0:
        return np.empty(sizes, dtype)
    if type(address) is not int or not 0 < address <= _LAST_ADDRESS - nbytes:
        raise InputError(f"{name!r}: expected an address, got {describe(address)}")
    return np.asarray(_Memory(address, dtype, sizes))
