"""Implement the delegate "c": run subgraphs compiled to a shared library at export.

The library is machine code. It runs only on the kind of machine and system that exported the plan,
and with all rights of the process.
"""

from __future__ import annotations

import ctypes
import os
import struct
import tempfile
from typing import TYPE_CHECKING, ClassVar

from taper_runtime.base.errors import InputError
from taper_runtime.extend.delegates import Delegate
from taper_runtime.extend.servers import ServedNode

if TYPE_CHECKING:
    import numpy as np

#: The offsets and types of e_shoff, e_shentsize and e_shnum in the header of a 64-bit ELF file.
_ELF64 = struct.Struct("<40xQ10xHH2x")


class CDelegate(Delegate):
    """Runs a subgraph that ``export(..., delegate="c")`` has compiled.

    Raises
    ------
    InputError
        If the library is truncated, cannot be loaded here, or lacks the function.
    """

    runs_machine_code: ClassVar[bool] = True

    def __init__(self, node: ServedNode) -> None:
        """Write the blob to a temporary file, load it as a library, and find its function."""
        if not isinstance(node, ServedNode):
            raise InputError(f"node: expected a ServedNode, got {type(node).__name__}")
        super().__init__(node)
        blob = node.blob.tobytes()
        if len(blob) < _whole_bytes(blob):
            raise InputError(
                f"node {node.name!r}: its library does not load: expected {_whole_bytes(blob)} "
                f"bytes, got {len(blob)}"
            )
        handle, path = tempfile.mkstemp(prefix="taper-", suffix=".so")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blob)
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise InputError(f"node {node.name!r}: its library does not load: {error}") from error
        finally:
            os.unlink(path)  # a loaded library stays loaded
        try:
            self._function = self._library.taper_subgraph
        except AttributeError:
            raise InputError(f"node {node.name!r}: its library has no taper_subgraph") from None
        self._function.restype = None

    def run(self, inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...]) -> None:
        """See :meth:`taper_runtime.Server.run`."""
        sizes: list[int] = []
        for array in (*inputs, outputs[0]):
            sizes += [array.ndim, *array.shape]
        self._function(
            (ctypes.c_void_p * len(inputs))(*(array.ctypes.data for array in inputs)),
            (ctypes.c_void_p * len(outputs))(*(array.ctypes.data for array in outputs)),
            (ctypes.c_int64 * len(sizes))(*sizes),
        )


def _whole_bytes(blob: bytes) -> int:
    """Return the size that a library's header declares: the end of an ELF file's section table.

    Compilers write the table last. The system's loader does not check the size, and crashes the
    process if the file is truncated. Return 0 if the file does not declare it.
    """
    if len(blob) < _ELF64.size or not blob.startswith(b"\x7fELF\x02\x01"):
        return 0
    start, size, count = _ELF64.unpack_from(blob)
    return int(start + size * count)
