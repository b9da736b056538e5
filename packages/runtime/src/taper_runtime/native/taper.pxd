"""C API of the kernel library, as packages/kernels/include/taper/*.h declares it."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t


cdef extern from "taper/status.h" nogil:
    ctypedef enum taper_status:
        TAPER_OK
        TAPER_UNSUPPORTED
        TAPER_BAD_INDEX
        TAPER_STOPPED
        TAPER_CALL_FAILED

    const char *taper_status_string(taper_status status)


cdef extern from "taper/kernels.h" nogil:
    ctypedef bint c_bool "bool"

    enum: TAPER_MAX_RANK
    enum: TAPER_ALIGNMENT
    enum: TAPER_ABSENT

    const char *taper_dtype_name(int dtype)
    const char *taper_format_name(int format)

    ctypedef struct taper_tensor:
        void *data
        int64_t *shape
        int64_t *strides
        int32_t rank
        int32_t dtype
        int32_t format
        const int64_t *logical

    ctypedef enum taper_attr_type:
        TAPER_ATTR_INT
        TAPER_ATTR_FLOAT
        TAPER_ATTR_BOOL
        TAPER_ATTR_STRING
        TAPER_ATTR_SCALAR
        TAPER_ATTR_INTS
        TAPER_ATTR_STRINGS
        TAPER_ATTR_SCALARS

    const char *taper_attr_type_name(int type)

    ctypedef struct taper_scalar:
        double f
        int64_t i

    ctypedef struct taper_ints:
        const int64_t *data
        int64_t count

    ctypedef struct taper_strings:
        const char *const *data
        int64_t count

    ctypedef struct taper_scalars:
        const taper_scalar *data
        int64_t count

    ctypedef struct taper_attr:
        const char *name
        taper_attr_type type
        size_t offset

    ctypedef struct taper_kernel

    ctypedef struct taper_call:
        const taper_kernel *kernel
        const taper_tensor *inputs
        const taper_tensor *output
        const taper_tensor *table
        const void *attrs
        void *state
        int32_t n_inputs
        int32_t n_outputs
        int32_t variant

    ctypedef struct taper_work:
        int64_t tasks
        size_t scratch_bytes
        int64_t phases
        int32_t variant
        int64_t extra_flops
        int64_t scratch_traffic

    ctypedef struct taper_variant:
        const char *name
        c_bool other_bits
        int32_t rows
        int32_t columns

    ctypedef struct taper_kernel:
        const char *name
        const char *op
        const char *needs
        const taper_variant *variants
        uint64_t output
        uint64_t *inputs
        int32_t n_operands
        const taper_attr *attrs
        size_t n_attrs
        size_t attrs_bytes
        size_t state_bytes
        taper_status (*prepare)(const taper_call *call, taper_work *work)
        taper_status (*run)(
            const taper_call *call, int64_t begin, int64_t end, void *scratch) noexcept nogil

    enum: TAPER_KERNEL_OPERANDS
    enum: TAPER_ABI_VERSION

    ctypedef struct taper_library:
        int32_t abi_version
        int32_t kernel_bytes
        int32_t tensor_bytes
        int32_t call_bytes
        int32_t n_kernels
        const taper_kernel *kernels

    enum: TAPER_FUNCTION_WIDTHS

    ctypedef struct taper_function:
        const char *name
        int32_t dtype
        int32_t *time

    bint taper_function_at(size_t i, taper_function *function)
    const char *taper_feature_name(size_t i)
    bint taper_kernel_runs(const taper_kernel *kernel)

    ctypedef struct taper_level:
        pass

    const taper_level *taper_level_at(size_t i)
    const char *taper_level_name(const taper_level *level)
    taper_status taper_level_find(const char *name, const taper_level **level)
    bint taper_kernel_at(const taper_level *level, size_t i, taper_kernel *kernel)
    bint taper_kernel_next(
        const taper_level *level, const char *op, size_t *position, taper_kernel *kernel)
    bint taper_kernel_takes(const taper_kernel *kernel, const taper_call *call)
    size_t taper_max_state_bytes(const taper_level *level)


cdef extern from "taper/run.h" nogil:
    ctypedef struct taper_block:
        int64_t first
        int64_t count

    ctypedef struct taper_copy:
        void *to
        const void *from_ "from"
        size_t bytes

    ctypedef struct taper_slice:
        void **pointer
        char *first
        int64_t stride

    ctypedef enum taper_control_kind:
        TAPER_IF
        TAPER_WHILE
        TAPER_SCAN

    ctypedef struct taper_control:
        taper_control_kind kind
        taper_block blocks[2]
        const uint8_t *predicate
        int64_t trips
        const taper_copy *enter
        int64_t n_enter
        const taper_copy *next
        int64_t n_next
        const taper_slice *slices
        int64_t n_slices

    ctypedef struct taper_step:
        taper_call call
        taper_work work
        void *scratch
        int32_t workers
        bint on_caller
        const taper_control *control

    ctypedef struct taper_order:
        const int32_t *producers
        const int32_t *first_user
        const int32_t *users

    ctypedef struct taper_span:
        int64_t begin
        int64_t end
        int64_t times

    ctypedef struct taper_run_args:
        const taper_step *steps
        int64_t count
        int32_t workers
        char *worker_scratch
        size_t worker_scratch_bytes
        taper_span *spans
        const int32_t *stop
        c_bool (*poll)(void *poll_context) noexcept nogil
        void *poll_context
        const taper_order *order
        int32_t leaders
        void *schedule

    size_t taper_schedule_bytes(int64_t count, int32_t workers, int32_t leaders)
    bint taper_has_begun(const taper_run_args *args, int64_t step)
    taper_status taper_run(const taper_run_args *args, int64_t *failed)
    int32_t taper_cpu_count()
    int64_t taper_now()


cdef extern from "taper/machine.h" nogil:
    ctypedef struct taper_probe:
        const char *name

    ctypedef struct taper_measurement:
        double work
        int64_t ns

    int64_t taper_cache_bytes(int32_t level)
    int64_t taper_memory_bytes()
    double taper_cpu_limit(const char *root, char *file, size_t bytes)
    void *taper_map_memory(size_t bytes)
    void taper_unmap_memory(void *memory, size_t bytes)
    const taper_probe *taper_probe_find(const taper_level *level, const char *name)
    taper_status taper_measure(
        const taper_probe *probe, int32_t workers, void *memory, size_t bytes, int64_t passes,
        taper_measurement *result)
