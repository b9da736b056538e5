"""Programs and their instances; see _program.pyx."""
from libc.stdint cimport int32_t, int64_t, uint64_t

from taper_runtime.native._kernels cimport Buffer, Selection
from taper_runtime.native.taper cimport (
    taper_control_kind, taper_order, taper_call, taper_step, taper_tensor
)


cdef enum:
    _ARENA = 0     # a root in the arena
    _CONSTANT = 1  # a constant array
    _EXTERNAL = 2  # an array of the caller's: an input or output of the run


cdef class SizeCode:
    cdef Py_ssize_t n_slots
    cdef Py_ssize_t n_instructions
    cdef Py_ssize_t n_tensor_bytes
    cdef Buffer start         # int64 [n_slots]
    cdef Buffer instructions  # Instruction [n_instructions]
    cdef Buffer tensor_bytes  # int32 [n_tensor_bytes]

    cdef Buffer evaluate(self, sizes)


cdef class Operand:
    cdef int kind
    cdef Py_ssize_t index
    cdef object offset
    cdef Py_ssize_t offset_slot  # in the program's size table
    cdef object type
    cdef object storage          # type of its storage
    cdef tuple strides
    cdef tuple along
    cdef list along_slots        # slots of the bytes; None where it goes along no scan

    cdef int bind(self, table) except -1


cdef class Copy:
    cdef Operand target
    cdef Operand source
    cdef Py_ssize_t nbytes  # slot

    cdef int bind(self, table) except -1


cdef class Control:
    cdef taper_control_kind kind
    cdef tuple bodies
    cdef Operand predicate
    cdef object trips
    cdef Py_ssize_t trips_slot
    cdef list enter
    cdef list next

    cdef int bind(self, table) except -1


cdef class Body:
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef Py_ssize_t owner       # the step that contains it
    cdef Py_ssize_t first_root  # number of its first root among the program's
    cdef list roots             # (birth, death, slot of the bytes)


cdef class Step:
    cdef object op
    cdef object label
    cdef dict attrs
    cdef bint sized         # whether some attr is a size expression
    cdef object kernels     # Kernel; None for those of this library
    cdef object server      # Server
    cdef object choice      # Choice; None: the first kernel that serves the step
    cdef list candidates    # empty where no kernel can serve it
    cdef dict kernel_attrs  # KernelAttrs by Kernel, for a step that is not sized
    cdef list operands      # Operand or None: the inputs, then the outputs
    cdef Py_ssize_t n_inputs
    cdef Control control
    cdef object threads
    cdef Py_ssize_t threads_slot
    cdef Buffer slots       # int32 [n_operands][2][TAPER_MAX_RANK]: of shape and strides
    cdef Buffer tensors     # taper_tensor [n_operands]: rank, dtype and format
    cdef list owners        # of the memory that `tensors` point to

    cdef int bind(self, table) except -1
    cdef int _describe_operands(self, table) except -1


cdef class Weights:
    cdef tuple arrays
    cdef readonly uint64_t generation
    cdef Buffer addresses  # void *


cdef class Precedence:
    cdef Py_ssize_t row_bytes
    cdef Buffer bits  # [ranges][row_bytes]

    cdef bint has(self, Py_ssize_t earlier, Py_ssize_t later) noexcept


cdef int64_t aligned(int64_t size) noexcept


cdef class StepOrder:
    cdef taper_order native
    cdef Buffer producers   # int32 [steps]
    cdef Buffer first_user  # int32 [steps + 1]
    cdef Buffer users       # int32
    cdef Precedence precedence
    cdef int32_t leaders


cdef class Program:
    cdef list steps            # Step: those of bodies, then those that restore
    cdef Py_ssize_t n_run      # how many of them are of bodies
    cdef list saved_by         # per step that restores, the step that saves
    cdef set overwritten       # numbers of inputs to whose memory a run writes
    cdef list bodies           # Body
    cdef object table          # SizeTable
    cdef SizeCode sizes        # made from `table` when that is complete
    cdef object variables      # Variables
    cdef int64_t memory_budget  # of a run, in bytes; 0: none
    cdef object refuse         # called with the steps that nothing serves
    cdef bint dynamic
    cdef tuple inputs
    cdef tuple outputs
    cdef int32_t threads       # that one step may use
    cdef int32_t short_threads  # that one step of a short run may use
    cdef int64_t short_work    # the most that its steps are worth, in threads
    cdef int32_t workers       # of a run
    cdef StepOrder order       # of the run's own body; None: its steps run one after the other
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_external
    cdef Py_ssize_t n_constants
    cdef Py_ssize_t n_roots
    # Numbers of the bases of an image's pointers: the external arrays, then these.
    cdef Py_ssize_t arena_base
    cdef Py_ssize_t image_base
    cdef Py_ssize_t raised_base    # exceptions that servers raised
    cdef Py_ssize_t constants_base
    cdef Py_ssize_t n_bases
    cdef Py_ssize_t n_pointers  # the most pointers of an image
    cdef list control_of        # per step: its number among the controls
    cdef list first_copy        # per step: number of its first copy
    cdef list first_slice
    cdef list slice_counts
    cdef Py_ssize_t tensors_at  # bytes into an image, which begins with the steps
    cdef Py_ssize_t controls_at
    cdef Py_ssize_t copies_at
    cdef Py_ssize_t slices_at
    cdef Py_ssize_t image_bytes

    cdef object _overwritten(self, Step step)
    cdef int _bind(self, tensor_bytes) except -1
    cdef int _lay_out_images(self) except -1
    cdef Py_ssize_t outermost(self, Py_ssize_t index) except -1


cdef struct Patch:
    int64_t at      # bytes into the image: a pointer
    int64_t offset  # bytes from its base
    Py_ssize_t base


cdef class Raised:
    cdef object error


cdef class ArrayView:
    cdef object storage     # numpy dtype
    cdef tuple shape
    cdef list strides       # bytes
    cdef Py_ssize_t low     # bytes from the first element to the beginning of the memory
    cdef Py_ssize_t nbytes  # of the memory

    cdef object over(self, void *data)


cdef class ServerCall:
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
    cdef Py_ssize_t nbytes


cdef class Instance:
    cdef Program program
    cdef Buffer values        # int64 per slot
    cdef Buffer image
    cdef Buffer patches       # Patch, by base
    cdef Buffer patch_ends    # int64 per base
    cdef Py_ssize_t n_patches
    cdef Buffer state         # of kernels
    cdef list owners          # of further memory that kernels read
    cdef list selections      # Selection per step; None for control
    cdef list server_calls    # ServerCall per step that Python computes, else None
    cdef bint native          # whether this library's kernels compute every step
    cdef Buffer slices_made   # int64 per step: how many slices of a scan are made so far
    cdef Buffer root_offsets  # int64
    cdef list inputs          # External
    cdef list outputs
    cdef list body_bytes
    cdef list body_offsets    # per body: offsets of its roots and of each step's own memory
    cdef int64_t arena_bytes
    cdef int64_t scratch_at   # bytes into a frame's memory: the scratch of workers 1..
    cdef size_t worker_scratch_bytes

    cdef tuple shapes(self)
    cdef int64_t value(self, Py_ssize_t slot) noexcept
    cdef External _external(self, spec)
    cdef int _prepare(self) except -1
    cdef int _choose(
        self, Py_ssize_t i, taper_step *native, taper_tensor *tensor, char *state) except -1
    cdef object _chosen_node(self, Step step, const taper_tensor *tensor)
    cdef bint _is_short(self) except -1
    cdef int _set_workers(
        self, Step step, taper_step *native, Py_ssize_t i, int32_t threads
    ) except -1
    cdef void _fill(self, Step step, taper_tensor *tensor) noexcept
    cdef ServerCall server_call(self, Step step)
    cdef list _types(self, Step step)
    cdef dict _attrs(self, Step step)
    cdef list ranges(self, Body body)
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
