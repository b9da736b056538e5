"""Call functions with arguments of wrong types and values, and list errors that none documents."""

import io

import numpy as np

import taper_runtime as t
from taper_runtime import RunOptions, SessionOptions
from taper_runtime.base.errors import TaperError
from taper_runtime.base.option_values import MemoryPlanning
from taper_runtime.extend.kernels import _KERNELS

#: What no parameter, or few, can be.
WRONG = [
    None, True, -1, 0, 3, 2**70, -(2**70), 1.5, float("nan"), 1j, "", "x", "a\0b", "\ud800", b"x",
    bytearray(b"x"), [], [None], ["x", 3], (2**62, 4), (5, -12), (1.5, 12), {}, {1: 2}, {"x": None},
    {"x": "y"}, {"x": np.zeros(3)}, [{}], [("x", {})], object(), int, len, set(),
    io.BytesIO(b"x"), np.zeros(()), np.zeros((2, 4)), np.zeros((2, 4), np.float32)[::-1],
    np.array(["x"]),
    np.array([None]), np.zeros(3, [("a", "f4")]), np.zeros((2, 4), ">f4"), np.float32(1),
    np.int64(2), np.dtype("float32"), t.Limits(), t.Limits(nodes=None), RunOptions(),
    SessionOptions(),
    MemoryPlanning(), slice(None), range(3), Ellipsis, NotImplemented, "float32", "cpu", "cuda:9",
]  # fmt: skip

#: Of files: what the operating system says of them.
DOCUMENTED = (TaperError, OSError, MemoryError)


def undocumented_errors(doors):
    """Give each argument of each function everything in turn that it can hardly be.

    `doors` has, by name, functions with arguments that are right.
    """
    found = []
    for name, (function, arguments) in doors.items():
        for argument in arguments:
            for value in WRONG:
                if argument in ("source", "callback") and callable(value):
                    continue  # what a function raises is its own
                before = dict(_KERNELS)
                try:
                    function(**{**arguments, argument: value})
                except DOCUMENTED:
                    pass
                except BaseException as error:
                    found.append(
                        f"{name}({argument}={value!r:.60}): {type(error).__name__}: {error!s:.90}"
                    )
                finally:
                    _KERNELS.clear()
                    _KERNELS.update(before)
    t.set_default_logger_severity(2)
    return found
