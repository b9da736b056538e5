"""Write tensors and attrs as C has them; a part of ``_kernels.pyx``.

There is no per-op code here: attr structs are filled by the kernels' own descriptors.
"""
from libc.stdint cimport int32_t, int64_t, uintptr_t

from taper_runtime.native.taper cimport *

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InternalError
from taper_runtime.formats import PLAIN
from taper_runtime.ops.opdef import TensorType


cdef dict _dtype_codes():
    cdef dict codes = {}
    cdef int code = 0
    while taper_dtype_name(code) != NULL:
        codes[taper_dtype_name(code).decode()] = code
        code += 1
    if codes.keys() != DTYPES.keys():
        raise InternalError(f"kernel library and runtime disagree on dtypes: {sorted(codes)}")
    return codes


cdef dict DTYPE_CODES = _dtype_codes()


cdef dict _format_codes():
    cdef dict codes = {}
    cdef int code = 0
    while taper_format_name(code) != NULL:
        codes[taper_format_name(code).decode()] = code
        code += 1
    return codes


# By name, or by family where kernels find the parameters from the storage's shape.
cdef dict FORMAT_CODES = _format_codes()


cdef int _format_code(str name) except -2:
    """Return the library's code of a format; -1 if it does not know the format."""
    while name not in FORMAT_CODES and "." in name:  # the shape gives this parameter
        name = name.rpartition(".")[0]
    return FORMAT_CODES.get(name, -1)


cdef object storage_of(type_):
    """Return ``type_.storage``, without a call where the type is plain."""
    return type_ if type_.format == PLAIN else type_.storage


cdef bint is_served(type_, storage) except -1:
    """Return whether kernels know the rank and the format of a tensor; None is an absent one."""
    return type_ is None or (len(storage[1]) <= TAPER_MAX_RANK and _format_code(type_.format) >= 0)


cdef int set_type(taper_tensor *tensor, type_, storage, list owners) except -1:
    """Write all fields of a tensor except data, shape and strides; add its memory to `owners`.

    ``storage`` is the type of the storage. The type of an absent input is None.
    """
    cdef Buffer logical
    cdef Py_ssize_t i
    tensor.data = NULL
    if type_ is None:
        tensor.rank, tensor.dtype, tensor.format, tensor.logical = 0, TAPER_ABSENT, 0, NULL
        return 0
    dtype, shape, _ = storage
    tensor.rank = <int32_t>len(shape)
    tensor.dtype = DTYPE_CODES[dtype]
    tensor.format = _format_code(type_.format)
    tensor.logical = NULL
    if type_.format != PLAIN:
        logical = Buffer(len(type_.shape) * sizeof(int64_t))
        for i in range(len(type_.shape)):
            (<int64_t *>logical.data)[i] = type_.shape[i]
        tensor.logical = <int64_t *>logical.data
        owners.append(logical)
    return 0


cdef int set_table(taper_step *step, op, types, attrs, list owners) except -1:
    """Give a step the table that its op computes from its sizes; add the memory to `owners`."""
    cdef Buffer place
    cdef taper_tensor *tensor
    cdef int k
    table = None if op.table is None else op.table(types, attrs)
    if table is None:
        return 0
    place = Buffer(sizeof(taper_tensor))
    tensor = <taper_tensor *>place.data
    type_ = TensorType(table.dtype.name, table.shape)
    set_type(tensor, type_, type_, owners)
    for k in range(tensor.rank):
        tensor.shape[k] = table.shape[k]
        tensor.strides[k] = table.strides[k] // table.itemsize
    tensor.data = <void *><uintptr_t>table.ctypes.data
    owners += [place, table]
    step.call.table = tensor
    return 0


cdef class KernelAttrs:
    """A node's attrs, in the struct that a kernel takes."""


cdef KernelAttrs _kernel_attrs(const taper_kernel *kernel, dict values):
    """Return a node's attrs as a kernel takes them."""
    cdef KernelAttrs attrs = KernelAttrs.__new__(KernelAttrs)
    cdef size_t a
    attrs.struct, attrs.owners = Buffer(kernel.attrs_bytes), []
    for a in range(kernel.n_attrs):
        _set_attr(
            attrs.struct.data + kernel.attrs[a].offset, kernel.attrs[a].type,
            values[kernel.attrs[a].name.decode()], attrs.owners,
        )
    return attrs


cdef int _set_attr(char *at, taper_attr_type type, value, list owners) except -1:
    """Write one attr's value at its descriptor's offset; add memory it needs to `owners`."""
    cdef Buffer buffer
    cdef Py_ssize_t i
    if type == TAPER_ATTR_INT:
        (<int64_t *>at)[0] = value
    elif type == TAPER_ATTR_FLOAT:
        (<double *>at)[0] = value
    elif type == TAPER_ATTR_BOOL:
        at[0] = 1 if value else 0
    elif type == TAPER_ATTR_SCALAR:
        _set_scalar(<taper_scalar *>at, value)
    elif type == TAPER_ATTR_STRING:
        encoded = value.encode()
        owners.append(encoded)
        (<const char **>at)[0] = <const char *>encoded
    elif type == TAPER_ATTR_INTS:
        buffer = Buffer(len(value) * sizeof(int64_t))
        owners.append(buffer)
        for i in range(len(value)):
            (<int64_t *>buffer.data)[i] = value[i]
        (<taper_ints *>at).data = <int64_t *>buffer.data
        (<taper_ints *>at).count = len(value)
    elif type == TAPER_ATTR_STRINGS:
        buffer = Buffer(len(value) * sizeof(char *))
        owners.append(buffer)
        for i in range(len(value)):
            encoded = value[i].encode()
            owners.append(encoded)
            (<const char **>buffer.data)[i] = <const char *>encoded
        (<taper_strings *>at).data = <const char *const *>buffer.data
        (<taper_strings *>at).count = len(value)
    elif type == TAPER_ATTR_SCALARS:
        buffer = Buffer(len(value) * sizeof(taper_scalar))
        owners.append(buffer)
        for i in range(len(value)):
            _set_scalar(&(<taper_scalar *>buffer.data)[i], value[i])
        (<taper_scalars *>at).data = <taper_scalar *>buffer.data
        (<taper_scalars *>at).count = len(value)
    else:
        raise InternalError(f"unknown attr type {type} in a kernel descriptor")
    return 0


cdef int _set_scalar(taper_scalar *scalar, value) except -1:
    scalar.f = float(value)
    if isinstance(value, int):
        scalar.i = value
    elif -9.2e18 < value < 9.2e18:  # False for NaN too: `i` then stays 0
        scalar.i = <int64_t>scalar.f
    return 0
