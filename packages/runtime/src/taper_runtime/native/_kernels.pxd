"""The kernel library; see _kernels.pyx."""
from libc.stdint cimport int32_t, int64_t

from taper_runtime.native.taper cimport (
    taper_kernel, taper_level, taper_run_args, taper_status, taper_step, taper_tensor
)


cdef class Buffer:
    cdef char *data
    cdef readonly size_t size
    cdef void *block
    cdef size_t mapped  # bytes of the block, where it is mapped memory; else 0


cdef class Level:
    cdef const taper_level *level
    cdef str name
    cdef dict kernels  # by op: list of Kernel that this CPU can run, in order of preference


cdef class Kernel:
    cdef taper_kernel kernel
    cdef object library  # of a user, with the kernel's code; None for this library


cdef class KernelAttrs:
    cdef Buffer struct
    cdef list owners  # of the memory that it points to


cdef class Selection:
    cdef list candidates    # Kernel
    cdef Kernel chosen      # None where none serves the step
    cdef KernelAttrs attrs  # of the chosen kernel
    cdef list reasons       # str: why the candidates before the chosen one do not serve
    cdef int32_t number     # number of its variant, from 1 on; 0 where it has none
    cdef int32_t threads    # the most threads that compute the step; 0 for any number
    cdef object server      # Server: it computes the step where no kernel does


cdef class PreparedNode:
    cdef object op
    cdef object attrs
    cdef tuple types     # of the inputs, then of the outputs
    cdef Selection selection
    cdef Buffer state
    cdef Buffer tensors  # taper_tensor: the inputs, then the outputs
    cdef list owners     # of the memory that tensors point to
    cdef taper_step step


cdef object storage_of(type_)
cdef bint is_served(type_, storage) except -1
cdef int set_type(taper_tensor *tensor, type_, storage, list owners) except -1
cdef int set_table(taper_step *step, op, types, attrs, list owners) except -1
cdef list find_candidates(kernels, op)
cdef Selection select_kernel(
    list candidates, dict attrs, dict made, taper_step *step, char *state, choice=*, node=*
)
cdef size_t max_state_bytes() noexcept
cdef int64_t now() noexcept nogil
cdef str status_text(taper_status status)
cdef taper_status run_steps(const taper_run_args *args, int64_t *failed) noexcept nogil
cdef bint has_begun(const taper_run_args *args, int64_t step) noexcept
cdef size_t schedule_bytes(int64_t count, int32_t workers, int32_t leaders) noexcept
