"""Read and check the kernels of users' libraries; a part of ``_kernels.pyx``."""
from libc.stdint cimport int32_t, uintptr_t

from taper_runtime.native.taper cimport *

from taper_runtime.base.errors import InputError, KernelError
from taper_runtime.base.text import unknown

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char *text, size_t most)


# Bytes that the state of any external kernel needs.
cdef size_t _external_state_bytes = 0


def read_library(uintptr_t table, library, path):
    """Return the kernels of a user's library that this CPU can run.

    Parameters
    ----------
    table : int
        Address of its ``taper_library``; 0 if it has none.
    library : object
        Object that keeps it loaded.
    path : str
        Its name in errors.

    Returns
    -------
    list of Kernel

    Raises
    ------
    InputError
        If it was built for another version of the interface, or a kernel lacks a part.
    """
    global _external_state_bytes
    cdef const taper_library *found = <const taper_library *>table
    cdef Kernel kernel
    cdef int32_t i
    if found == NULL:
        raise InputError(f"{path}: expected taper_kernels to return a table, got NULL")
    if found.abi_version != TAPER_ABI_VERSION:
        raise InputError(
            f"{path}: expected version {TAPER_ABI_VERSION} of the interface of kernels, "
            f"got {found.abi_version}: build it again with this taper_runtime's headers"
        )
    sizes = (found.kernel_bytes, found.tensor_bytes, found.call_bytes)
    expected = (sizeof(taper_kernel), sizeof(taper_tensor), sizeof(taper_call))
    if sizes != expected:
        raise InputError(f"{path}: expected structs of {expected} bytes, got {sizes}")
    if not 0 <= found.n_kernels <= MAX_EXTERNAL_KERNELS:
        raise InputError(
            f"{path}: expected 0 to {MAX_EXTERNAL_KERNELS} kernels, got {found.n_kernels}"
        )
    if found.n_kernels > 0 and found.kernels == NULL:
        raise InputError(f"{path}: expected {found.n_kernels} kernels, got no array of them")
    kernels = []
    for i in range(found.n_kernels):
        kernel = Kernel.__new__(Kernel, _KEY)
        kernel.kernel, kernel.library = found.kernels[i], library
        _check_external(&kernel.kernel, f"{path}: kernel {i}")
        if taper_kernel_runs(&kernel.kernel):
            kernels.append(kernel)
    for kernel in kernels:
        _external_state_bytes = max(_external_state_bytes, kernel.kernel.state_bytes)
    return kernels


# Limits of a user's table: larger numbers are taken for garbage.
cdef int32_t MAX_EXTERNAL_KERNELS = 1 << 12
cdef size_t MAX_EXTERNAL_ATTRS = 64
cdef size_t MAX_EXTERNAL_NAME = 256
cdef size_t MAX_EXTERNAL_VARIANTS = 64
cdef size_t MAX_EXTERNAL_BYTES = 1 << 20  # of a state, and of attrs
cdef size_t MAX_SCRATCH_BYTES = 1 << 40  # of a worker


cdef str _external_text(const char *text, what):
    """Return a name in a user's table."""
    if text == NULL:
        raise InputError(f"{what}: expected a name, got none")
    cdef size_t length = strnlen(text, MAX_EXTERNAL_NAME)
    name = text[:length].decode(errors="replace")
    if length == MAX_EXTERNAL_NAME or not name.isprintable() or "\ufffd" in name:
        raise InputError(
            f"{what}: expected printable UTF-8 of fewer than {MAX_EXTERNAL_NAME} bytes, got "
            f"{name[:40]!r}"
        )
    return name


cdef int _check_external(const taper_kernel *kernel, what) except -1:
    """Check the fields of a user's kernel that later code trusts."""
    name = _external_text(kernel.name, f"{what}: name")
    what = f"{what}, {name!r}"
    _external_text(kernel.op, f"{what}: op")
    if kernel.needs != NULL:
        known = feature_names()
        for feature in _external_text(kernel.needs, f"{what}: needs").split(" "):
            if feature not in known:
                raise InputError(f"{what}: needs: {unknown('feature', feature, known)}")
    cdef const taper_variant *variant = kernel.variants
    names = set()
    while variant != NULL and variant.name != NULL:
        if len(names) == MAX_EXTERNAL_VARIANTS:
            raise InputError(
                f"{what}: expected at most {MAX_EXTERNAL_VARIANTS} variants before one without a "
                "name, got more"
            )
        name = _external_text(variant.name, f"{what}: variant {len(names)}")
        if name in names:
            raise InputError(f"{what}: expected variants of different names, got {name!r} twice")
        names.add(name)
        variant += 1
    if kernel.prepare == NULL or kernel.run == NULL:
        raise InputError(f"{what}: expected the functions prepare and run")
    if not 0 <= kernel.n_operands <= TAPER_KERNEL_OPERANDS:
        raise InputError(
            f"{what}: expected 0 to {TAPER_KERNEL_OPERANDS} operands, got {kernel.n_operands}"
        )
    if kernel.n_attrs > MAX_EXTERNAL_ATTRS or (kernel.n_attrs > 0 and kernel.attrs == NULL):
        raise InputError(
            f"{what}: expected 0 to {MAX_EXTERNAL_ATTRS} attrs with descriptors, got "
            f"{kernel.n_attrs} {'without' if kernel.attrs == NULL else 'with'} descriptors"
        )
    if max(kernel.attrs_bytes, kernel.state_bytes) > MAX_EXTERNAL_BYTES:
        raise InputError(
            f"{what}: expected attrs and a state of at most {MAX_EXTERNAL_BYTES} bytes, got "
            f"{kernel.attrs_bytes} and {kernel.state_bytes}"
        )
    cdef size_t a, offset, size
    for a in range(kernel.n_attrs):
        name = _external_text(kernel.attrs[a].name, f"{what}: attr {a}")
        if taper_attr_type_name(kernel.attrs[a].type) == NULL:
            raise InputError(f"{what}: attr {name!r}: expected a type, got {kernel.attrs[a].type}")
        offset, size = kernel.attrs[a].offset, _attr_bytes(kernel.attrs[a].type)
        if offset > kernel.attrs_bytes or size > kernel.attrs_bytes - offset:
            raise InputError(
                f"{what}: attr {name!r}: expected it inside the struct, got offset {offset}"
            )
        if offset % min(size, <size_t>8):
            raise InputError(f"{what}: attr {name!r}: expected it aligned, got offset {offset}")
    return 0


cdef int _check_work(Kernel kernel, const taper_work *work) except -1:
    """Check the results of the prepare() of a user's kernel."""
    if (
        work.tasks < 0 or work.phases < 0 or work.tasks % max(1, work.phases)
        or work.scratch_bytes > MAX_SCRATCH_BYTES
    ):
        raise KernelError(
            f"kernel {kernel.name!r}: expected tasks of at least 0, phases that divide them and "
            f"at most {MAX_SCRATCH_BYTES} bytes of scratch, got {work.tasks} tasks, "
            f"{work.phases} phases and {work.scratch_bytes} bytes"
        )
    count = len(_variants_of(&kernel.kernel))
    if not 0 <= work.variant <= count or min(work.extra_flops, work.scratch_traffic) < 0:
        raise KernelError(
            f"kernel {kernel.name!r}: expected one of its {count} variants, and work of at least 0 "
            f"beyond the op's, got variant {work.variant}, {work.extra_flops} operations and "
            f"{work.scratch_traffic} bytes"
        )
    return 0


cdef size_t _attr_bytes(int type) noexcept:
    """Return the bytes of an attr's value in a kernel's struct."""
    if type == TAPER_ATTR_BOOL:
        return 1
    if type == TAPER_ATTR_INT or type == TAPER_ATTR_FLOAT or type == TAPER_ATTR_STRING:
        return 8
    return 16
