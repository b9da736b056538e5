# One node: its attrs as C structs, the kernel that takes it, one run of it alone.
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy, memset

from taper_runtime.errors import InputError, InternalError
from taper_runtime.formats import PLAIN, decode


cdef int _set_scalar(taper_scalar *scalar, value) except -1:
    scalar.f = float(value)
    if isinstance(value, int):
        scalar.i = value
    elif -9.2e18 < value < 9.2e18:  # False for NaN too: `i` then stays 0
        scalar.i = <int64_t>scalar.f
    return 0


cdef int _set_attr(char *at, taper_attr_type type, value, list owners) except -1:
    """Write one attr's value where its descriptor says; memory it points to joins `owners`."""
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


cdef int _set_type(taper_tensor *tensor, type_, list owners) except -1:
    """Write all of a tensor but data, shape and strides; memory it points to joins `owners`.

    None is the type of an input that is absent.
    """
    cdef Buffer logical
    cdef Py_ssize_t i
    tensor.data = NULL
    if type_ is None:
        tensor.rank, tensor.dtype, tensor.format, tensor.logical = 0, TAPER_ABSENT, 0, NULL
        return 0
    dtype, shape, _ = type_.storage
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


cdef bint _is_served(types) except -1:
    """Whether kernels know the ranks and the formats of these tensors."""
    for type_ in types:
        if type_ is None:
            continue
        if len(type_.storage.shape) > TAPER_MAX_RANK or _format_code(type_.format) < 0:
            return False
    return True


cdef class Candidate:
    """A kernel that may serve a node, with the node's attrs as it takes them."""

    cdef const taper_kernel *kernel
    cdef Buffer attrs
    cdef list owners  # of what attrs point to


cdef list _candidates(op, attrs):
    """The active level's kernels for a node of ``op``, in order of preference.

    Raises
    ------
    InternalError
        If a kernel's attr descriptors differ from the op's definition.
    """
    cdef list candidates = []
    cdef Candidate candidate
    cdef bytes name = op.name.encode()
    cdef const taper_kernel *kernel
    cdef size_t position = 0
    cdef size_t a
    while True:
        kernel = taper_kernel_next(name, &position)
        if kernel == NULL:
            return candidates
        described = _describe(kernel)
        defined = {key: attr.type for key, attr in op.attrs.items()}
        if described != defined:
            raise InternalError(
                f"attrs of {op.name}: kernel {kernel.name.decode()} has {described}, "
                f"the op has {defined}"
            )
        candidate = Candidate.__new__(Candidate)
        candidate.kernel = kernel
        candidate.attrs = Buffer(kernel.attrs_bytes)
        candidate.owners = []
        for a in range(kernel.n_attrs):
            _set_attr(
                candidate.attrs.data + kernel.attrs[a].offset, kernel.attrs[a].type,
                attrs[kernel.attrs[a].name.decode()], candidate.owners,
            )
        candidates.append(candidate)


cdef Candidate _select(list candidates, taper_step *step, char *state):
    """Prepare the first candidate that takes the step's tensors; None if there is none."""
    cdef Candidate candidate
    for candidate in candidates:
        if not taper_kernel_takes(candidate.kernel, &step.call):
            continue
        memset(state, 0, candidate.kernel.state_bytes)
        step.kernel = candidate.kernel
        step.call.attrs = candidate.attrs.data
        step.call.state = state
        step.work.phases = 1
        if candidate.kernel.prepare(&step.call, &step.work) == TAPER_OK:
            return candidate
    return None


cdef class PreparedNode:
    """A node some kernel accepted, with everything that does not depend on data pointers.

    Attributes
    ----------
    kernel_name : str
    tasks : int
        Independent units of work.
    scratch_bytes : int
        Per worker.
    """

    cdef object op
    cdef object attrs
    cdef tuple types     # of the inputs, then of the outputs
    cdef Candidate candidate
    cdef Buffer state
    cdef Buffer tensors  # taper_tensor: the inputs, then the outputs
    cdef list owners     # of what tensors point to
    cdef taper_step step

    @property
    def kernel_name(self):
        return self.step.kernel.name.decode()

    @property
    def tasks(self):
        return self.step.work.tasks

    @property
    def scratch_bytes(self):
        return self.step.work.scratch_bytes

    def run(self, inputs, outputs):
        """Compute ``outputs`` from ``inputs``: arrays of the prepared strides, None if absent."""
        cdef Py_ssize_t count = len(self.types)
        cdef Buffer tensors = Buffer(count * sizeof(taper_tensor))
        cdef Buffer scratch = Buffer(self.step.work.scratch_bytes)
        cdef taper_step step = self.step
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef Py_ssize_t i
        memcpy(tensors.data, self.tensors.data, count * sizeof(taper_tensor))
        for i, array in enumerate((*inputs, *outputs)):
            if array is not None:
                (<taper_tensor *>tensors.data)[i].data = <void *><uintptr_t>array.ctypes.data
        step.call.inputs = <taper_tensor *>tensors.data
        step.call.output = step.call.inputs + step.call.n_inputs
        step.scratch = scratch.data
        memset(&args, 0, sizeof(args))
        args.steps = &step
        args.count = args.workers = 1
        cdef taper_status status
        with nogil:
            status = taper_run(&args, &failed)
        if status == TAPER_BAD_INDEX and self.op.check is not None:
            decoded = [None if a is None else decode(a, t) for a, t in zip(inputs, self.types)]
            self.op.check(decoded, self.attrs)
        if status != TAPER_OK:
            what = step.kernel.op.decode()
            raise InputError(f"{what}: {taper_status_string(status).decode()}")


def prepare(op, attrs, inputs, outputs):
    """Find the kernel for one node.

    Parameters
    ----------
    op : OpDef
    attrs : mapping
        Complete: every attr of the op.
    inputs : sequence of (TensorType, strides) or None
        Strides in elements of what stores the tensor; None where an optional input is absent.
    outputs : sequence of (TensorType, strides)

    Returns
    -------
    PreparedNode or None
        None where no kernel of the active level serves the node.

    Raises
    ------
    InternalError
        If a kernel's attr descriptors differ from the op's definition.
    """
    active_isa()
    cdef PreparedNode node = PreparedNode.__new__(PreparedNode)
    operands = [(None, ()) if operand is None else operand for operand in (*inputs, *outputs)]
    types = tuple([type_ for type_, _ in operands])
    if not _is_served(types):
        return None
    node.op, node.attrs, node.types, node.owners = op, attrs, types, []
    node.tensors = Buffer(len(operands) * sizeof(taper_tensor))
    cdef taper_tensor *tensors = <taper_tensor *>node.tensors.data
    cdef Py_ssize_t i, k
    for i, (type_, strides) in enumerate(operands):
        _set_type(&tensors[i], type_, node.owners)
        shape = () if type_ is None else type_.storage.shape
        for k in range(tensors[i].rank):
            tensors[i].shape[k] = shape[k]
            tensors[i].strides[k] = strides[k]
    node.step.call.inputs = tensors
    node.step.call.output = tensors + len(inputs)
    node.step.call.n_inputs = <int32_t>len(inputs)
    node.step.call.n_outputs = <int32_t>len(outputs)
    node.step.scratch = NULL
    node.step.workers = 1
    node.state = Buffer(taper_max_state_bytes())
    node.candidate = _select(_candidates(op, attrs), &node.step, node.state.data)
    return None if node.candidate is None else node
