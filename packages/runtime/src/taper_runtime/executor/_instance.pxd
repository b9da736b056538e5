"""A program for one set of sizes; see _instance.pyx."""
from libc.stdint cimport int64_t

from taper_runtime.executor._kernels cimport Buffer, Selection
from taper_runtime.executor._program cimport Body, Control, Copy, Operand, Program, Step
from taper_runtime.executor.taper cimport taper_call, taper_step, taper_tensor

cdef struct Patch:
    int64_t at      # bytes into the image: a pointer
    int64_t offset  # bytes into what it points into
    Py_ssize_t base


cdef class Raised:
    cdef object error


cdef class ArrayView:
    cdef object storage     # numpy dtype
    cdef tuple shape
    cdef list strides       # bytes
    cdef Py_ssize_t low     # bytes from the first element to the begin of the memory
    cdef Py_ssize_t nbytes  # of the memory

    cdef object over(self, void *data)


cdef class HostCall:
    cdef object function  # Compute
    cdef dict attrs
    cdef Py_ssize_t n_inputs
    cdef list arrays  # ArrayView or None: the inputs, then the outputs
    cdef list types   # TensorType or None

    cdef list operands(self, const taper_call *call)
    cdef int compute(self, const taper_call *call) except -1


cdef class External:
    cdef object spec     # TensorSpec
    cdef object storage  # numpy dtype
    cdef tuple shape


cdef class Instance:
    cdef Program program
    cdef Buffer values        # int64 per slot
    cdef Buffer image
    cdef Buffer patches       # Patch, by base
    cdef Buffer patch_ends    # int64 per base
    cdef Py_ssize_t n_patches
    cdef Buffer state         # of kernels
    cdef list selections      # Selection per step; None for control
    cdef list host_calls      # HostCall per step that Python computes, else None
    cdef Buffer slices_made   # int64 per step: how many of a scan's slices there are already
    cdef Buffer root_offsets  # int64
    cdef list inputs          # External
    cdef list outputs
    cdef list body_bytes
    cdef list body_offsets    # per body: where its roots and each step's own memory lie in it
    cdef int64_t arena_bytes
    cdef int64_t scratch_at   # bytes into a frame's memory: the scratch of workers 1..
    cdef size_t worker_scratch_bytes

    cdef tuple shapes(self)
    cdef int64_t value(self, Py_ssize_t slot) noexcept
    cdef External _external(self, spec)
    cdef int _prepare(self) except -1
    cdef int _choose(
        self, Py_ssize_t i, taper_step *native, taper_tensor *tensor, char *state) except -1
    cdef int _set_workers(self, Step step, taper_step *native, Py_ssize_t i) except -1
    cdef void _fill(self, Step step, taper_tensor *tensor) noexcept
    cdef HostCall host_call(self, Step step)
    cdef dict _attrs(self, Step step)
    cdef list blocks(self, Body body)
    cdef int _lay_out(self) except -1
    cdef int _share_scratch(self) except -1
    cdef int _place(self, Py_ssize_t index, int64_t base) except -1
    cdef int _point(self) except -1
    cdef int64_t _at(self, const void *place) noexcept
    cdef int _patch(self, int64_t at, Py_ssize_t base, int64_t offset) except -1
    cdef int _set_pointer(self, int64_t at, Operand operand, Py_ssize_t depth) except -1
    cdef int _set_control(self, Control control, Py_ssize_t i) except -1
    cdef int _set_copy(self, int64_t at, Copy copy) except -1
    cdef int _lead(self, int64_t at, Operand operand) except -1
    cdef int _sort_patches(self) except -1
