"""Call CUDA's driver, cuBLAS and NVRTC through ctypes: one device, one stream.

The libraries are opened when the device is first asked for. The names, types and numbers here are
those of cuda.h, cublas_api.h and nvrtc.h, of CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

#: The file names of each library, the best one first.
_LIBRARIES = {
    "driver": ("libcuda.so.1",),
    "cublas": ("libcublas.so.13", "libcublas.so.12"),
    "nvrtc": ("libnvrtc.so.13", "libnvrtc.so.12"),
}

_HANDLES = POINTER(c_void_p)
_INTS = POINTER(c_int)
_TEXTS = POINTER(c_char_p)

#: The types of the parameters of each function; CUdeviceptr is a 64-bit number.
_DRIVER = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_INTS,),
    "cuDeviceGet": (_INTS, c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (_INTS, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLES, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuStreamCreate": (_HANDLES, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _HANDLES),
    "cuGraphInstantiateWithFlags": (_HANDLES, c_void_p, c_uint64),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphDestroy": (c_void_p,),
    "cuGraphExecDestroy": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (_HANDLES, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuModuleLoadData": (_HANDLES, c_char_p),
    "cuModuleGetFunction": (_HANDLES, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, _HANDLES, _HANDLES),
    "cuGetErrorName": (c_int, _TEXTS),
    "cuGetErrorString": (c_int, _TEXTS),
}
_CUBLAS = {
    "cublasCreate_v2": (_HANDLES,),
    "cublasGetVersion_v2": (c_void_p, _INTS),
    "cublasSetStream_v2": (c_void_p, c_void_p),
    "cublasSetWorkspace_v2": (c_void_p, c_uint64, c_size_t),
    "cublasSetMathMode": (c_void_p, c_int),
    "cublasSgemm_v2": (
        *(c_void_p, c_int, c_int, c_int, c_int, c_int),
        *(POINTER(c_float), c_uint64, c_int, c_uint64, c_int, POINTER(c_float), c_uint64, c_int),
    ),
}
_NVRTC = {
    "nvrtcCreateProgram": (_HANDLES, c_char_p, c_char_p, c_int, _TEXTS, _TEXTS),
    "nvrtcCompileProgram": (c_void_p, c_int, _TEXTS),
    "nvrtcGetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetProgramLog": (c_void_p, c_char_p),
    "nvrtcGetCUBINSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetCUBIN": (c_void_p, c_char_p),
    "nvrtcDestroyProgram": (_HANDLES,),
}

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it does not wait for streams of others
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may use the device
_DEFAULT_MATH = 0  # CUBLAS_DEFAULT_MATH: float32 products are of float32, not of TF32
_AS_STORED, _TRANSPOSED = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_WORKSPACE = 32 << 20  # bytes: what cuBLAS's manual recommends for Hopper
_THREADS, _MOST_BLOCKS = 256, 4096
_MOST = 2**31 - 1  # of a C int

_SOURCE = b"""
extern "C" __global__ void epilogue(float *output, const float *x, const float *other, float number,
                                    size_t count, size_t columns, size_t row_step,
                                    size_t column_step, int has_relu) {
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float value = x[i];
        value += other ? other[i / columns * row_step + i % columns * column_step] : number;
        output[i] = has_relu && value < 0.0f ? 0.0f : value;
    }
}
"""


class CudaError(RuntimeError):
    """A library or device that is not there, or a call that failed: its name, code and meaning."""


class Library:
    """A shared library whose functions return 0, or the code of an error."""

    def __init__(
        self,
        key: str,
        functions: Mapping[str, tuple[Any, ...]],
        told: Callable[[Library, int], str],
    ) -> None:
        self._library, self._told = _open(_LIBRARIES[key]), told
        for name, types in functions.items():
            try:
                function = getattr(self._library, name)
            except AttributeError:
                raise CudaError(f"{self._library._name}: expected a function {name}") from None
            function.argtypes, function.restype = types, c_int

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises
        ------
        CudaError
            If it fails.
        """
        code = self.code(name, *arguments)
        if code:
            raise CudaError(f"{name}: {self._told(self, code)}")

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function and return its code."""
        return int(getattr(self._library, name)(*arguments))

    def text(self, name: str, code: int) -> str:
        """Call a function that returns a text about a code."""
        function = getattr(self._library, name)
        function.argtypes, function.restype = (c_int,), c_char_p
        return (function(code) or b"unknown").decode()


def _open(names: tuple[str, ...]) -> ctypes.CDLL:
    """Open the first of these libraries that the system finds, or NVIDIA's wheels have."""
    spec = find_spec("nvidia")
    folders = spec.submodule_search_locations or () if spec else ()
    wheels = [str(path) for f in folders for n in names for path in Path(f).glob(f"*/lib/{n}")]
    reasons = []
    for name in (*names, *wheels):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise CudaError(f"expected one of {', '.join(names)}, got: {'; '.join(reasons)}")


def _told_by_driver(driver: Library, code: int) -> str:
    name, text = c_char_p(), c_char_p()
    driver.code("cuGetErrorName", code, byref(name))
    driver.code("cuGetErrorString", code, byref(text))
    unknown = b"unknown"
    return f"{(name.value or unknown).decode()} ({code}): {(text.value or unknown).decode()}"


def _told_by_cublas(cublas: Library, code: int) -> str:
    return f"{cublas.text('cublasGetStatusName', code)} ({code})"


def _told_by_nvrtc(nvrtc: Library, code: int) -> str:
    return f"{nvrtc.text('nvrtcGetErrorString', code)} ({code})"


class Memory:
    """Memory of the device, freed with this object.

    Attributes
    ----------
    address : int
        On the device.
    nbytes : int
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        address = c_uint64()
        device.driver("cuMemAlloc_v2", byref(address), nbytes)
        self.address, self.nbytes = address.value, nbytes
        device.free_with(self, "cuMemFree_v2", self.address)


class Staging:
    """Page-locked memory of the host, which the device copies from and to, freed with this object.

    Attributes
    ----------
    address : int
    array : numpy.ndarray
        float32 of the given shape, over the memory: not to be kept longer than this object.
    """

    def __init__(self, device: Device, shape: tuple[int, ...]) -> None:
        address, size = c_void_p(), int(np.prod(shape))
        device.driver("cuMemHostAlloc", byref(address), 4 * size, 0)
        self.address = address.value or 0
        self.array = np.ctypeslib.as_array((c_float * size).from_address(self.address))
        self.array = self.array.reshape(shape)
        device.free_with(self, "cuMemFreeHost", self.address)


class CapturedGraph:
    """What was enqueued while a function ran: one launch repeats it. Freed with this object.

    Parameters
    ----------
    device : Device
    enqueue : callable
        Enqueues copies and kernels, and waits for none.
    """

    def __init__(self, device: Device, enqueue: Callable[[], None]) -> None:
        driver = device.driver
        graph, program = c_void_p(), c_void_p()
        driver("cuStreamBeginCapture_v2", device.stream, _THREAD_LOCAL)
        try:
            enqueue()
        except BaseException:
            driver.code("cuStreamEndCapture", device.stream, byref(graph))  # the first error counts
            raise
        driver("cuStreamEndCapture", device.stream, byref(graph))
        try:
            driver("cuGraphInstantiateWithFlags", byref(program), graph, 0)
        finally:
            driver.code("cuGraphDestroy", graph)
        self._program = program.value
        device.free_with(self, "cuGraphExecDestroy", self._program)

    def launch(self, device: Device) -> None:
        """Enqueue what was captured."""
        device.driver("cuGraphLaunch", self._program, device.stream)


class Device:
    """The first device that the driver shows, with a stream and what computes on it.

    All methods but :meth:`entered` are called inside of it.

    Attributes
    ----------
    name : str
        With the versions of the driver and of cuBLAS.
    driver : Library
    stream : ctypes.c_void_p

    Raises
    ------
    CudaError
        If a library, a function of it or a device is missing, or a call fails.
    """

    def __init__(self) -> None:
        self.driver = driver = Library("driver", _DRIVER, _told_by_driver)
        driver("cuInit", 0)
        device, version = c_int(), c_int()
        driver("cuDeviceGet", byref(device), 0)
        self._cublas = Library("cublas", _CUBLAS, _told_by_cublas)
        self._lock = threading.Lock()
        self._unused: list[tuple[str, int]] = []
        self._context, self.stream, self._handle = c_void_p(), c_void_p(), c_void_p()
        driver("cuDevicePrimaryCtxRetain", byref(self._context), device)
        with self.entered():
            driver("cuStreamCreate", byref(self.stream), _NON_BLOCKING)
            self._function = self._load(_compile(f"sm_{self._capability(device)}"))
            self._cublas("cublasCreate_v2", byref(self._handle))
            self._cublas("cublasSetStream_v2", self._handle, self.stream)
            # of its own: a captured product may not allocate
            self._workspace = Memory(self, _WORKSPACE)
            space = self._workspace.address, self._workspace.nbytes
            self._cublas("cublasSetWorkspace_v2", self._handle, *space)
            self._cublas("cublasSetMathMode", self._handle, _DEFAULT_MATH)
            name = ctypes.create_string_buffer(100)
            driver("cuDeviceGetName", name, len(name), device)
            driver("cuDriverGetVersion", byref(version))
            self.name = f"{name.value.decode()}, CUDA {version.value // 1000}"
            self._cublas("cublasGetVersion_v2", self._handle, byref(version))
            self.name += f", cuBLAS {version.value}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let this thread alone use the device; afterwards free what is used no more."""
        with self._lock:
            self.driver("cuCtxSetCurrent", self._context)
            yield
        self._free_unused()

    def free_with(self, owner: object, function: str, address: int | None) -> None:
        """Free something by a function of the driver when its owner is gone."""
        weakref.finalize(owner, self._free, function, address or 0).atexit = False

    def _free(self, function: str, address: int) -> None:
        self._unused.append((function, address))
        self._free_unused()

    def _free_unused(self) -> None:
        """Free what is used no more, unless a thread is using the device, which does it later.

        An owner may go while this thread captures, when nothing may be freed.
        """
        while self._unused and self._lock.acquire(blocking=False):
            try:
                self.driver.code("cuCtxSetCurrent", self._context)
                while self._unused:
                    # nobody is there to get an error
                    function, address = self._unused.pop()
                    self.driver.code(function, address)
            finally:
                self._lock.release()

    def synchronize(self) -> None:
        """Wait until all that was enqueued is done."""
        self.driver("cuStreamSynchronize", self.stream)

    def upload(self, array: np.ndarray) -> Memory:
        """Return memory with the numbers of a C-contiguous array."""
        memory = Memory(self, array.nbytes)
        self.copy_to_device(memory, array.ctypes.data)
        self.synchronize()
        return memory

    def copy_to_device(self, memory: Memory, address: int) -> None:
        """Enqueue a copy of the host's memory."""
        nbytes = memory.nbytes
        self.driver("cuMemcpyHtoDAsync_v2", memory.address, address, nbytes, self.stream)

    def copy_to_host(self, address: int, memory: Memory) -> None:
        """Enqueue a copy to the host's memory."""
        nbytes = memory.nbytes
        self.driver("cuMemcpyDtoHAsync_v2", address, memory.address, nbytes, self.stream)

    def multiply(
        self, output: Memory, a: Memory, b: Memory, sizes: tuple[int, int, int],
        *, alpha: float, transpose_b: bool,
    ) -> None:  # fmt: skip
        """Enqueue ``output = alpha * (a @ b)``, with ``sizes`` m, k and n: a is [m, k].

        cuBLAS has its matrices by columns. Read so, the memory of [m, n] is the transpose, [n, m]:
        what is computed is ``b.T @ a.T``.
        """
        m, k, n = sizes
        if max(sizes) > _MOST:
            raise CudaError(f"cublasSgemm_v2: expected sizes up to {_MOST}, got {max(sizes)}")
        self._cublas(
            "cublasSgemm_v2", self._handle, _TRANSPOSED if transpose_b else _AS_STORED, _AS_STORED,
            n, m, k, byref(c_float(alpha)), b.address, k if transpose_b else n, a.address, k,
            byref(c_float(0.0)), output.address, n,
        )  # fmt: skip

    def finish(
        self, output: Memory, x: Memory, other: Memory | None, number: float,
        shape: tuple[int, int], steps: tuple[int, int], *, has_relu: bool,
    ) -> None:  # fmt: skip
        """Enqueue ``output = x + other`` or ``x + number``, and a ReLU, of a matrix of this shape.

        ``steps`` are the elements from one row of ``other`` to the next, and from one column.
        """
        rows, columns = shape
        arguments: tuple[Any, ...] = (
            *(c_uint64(output.address), c_uint64(x.address)),
            *(c_uint64(other.address if other else 0), c_float(number)),
            *map(c_size_t, (rows * columns, columns, *steps)),
            c_int(has_relu),
        )
        pointers = (c_void_p * len(arguments))(*[ctypes.addressof(each) for each in arguments])
        blocks = min(-(-rows * columns // _THREADS), _MOST_BLOCKS)
        self.driver(
            "cuLaunchKernel", self._function, blocks, 1, 1, _THREADS, 1, 1, 0, self.stream,
            pointers, None,
        )  # fmt: skip

    def _capability(self, device: c_int) -> int:
        major, minor = c_int(), c_int()
        self.driver("cuDeviceGetAttribute", byref(major), _MAJOR, device)
        self.driver("cuDeviceGetAttribute", byref(minor), _MINOR, device)
        return 10 * major.value + minor.value

    def _load(self, cubin: bytes) -> c_void_p:
        module, function = c_void_p(), c_void_p()
        self.driver("cuModuleLoadData", byref(module), cubin)
        self.driver("cuModuleGetFunction", byref(function), module, b"epilogue")
        return function


def _compile(architecture: str) -> bytes:
    """Return machine code of the kernel for an architecture, such as sm_90."""
    nvrtc = Library("nvrtc", _NVRTC, _told_by_nvrtc)
    program, size = c_void_p(), c_size_t()
    nvrtc("nvrtcCreateProgram", byref(program), _SOURCE, b"epilogue.cu", 0, None, None)
    try:
        options = (c_char_p * 1)(f"--gpu-architecture={architecture}".encode())
        if nvrtc.code("nvrtcCompileProgram", program, len(options), options):
            nvrtc("nvrtcGetProgramLogSize", program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            nvrtc("nvrtcGetProgramLog", program, log)
            raise CudaError(f"nvrtcCompileProgram: {log.value.decode(errors='replace')}")
        nvrtc("nvrtcGetCUBINSize", program, byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc("nvrtcGetCUBIN", program, cubin)
        return cubin.raw
    finally:
        nvrtc.code("nvrtcDestroyProgram", byref(program))


_OPENING = threading.Lock()
_device = cache(Device)


def open_device() -> Device:
    """Return the process's device, which stays open; see :class:`Device` for the errors."""
    with _OPENING:
        return _device()
