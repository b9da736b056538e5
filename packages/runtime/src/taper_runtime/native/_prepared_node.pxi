"""Prepare and run a single node; a part of ``_kernels.pyx``.

:class:`PreparedNode` is a node that a kernel accepted. Its shapes and attrs are fixed; data
pointers are not part of it.
"""
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memcpy, memset

from taper_runtime.native.taper cimport *

from taper_runtime.base.errors import InputError
from taper_runtime.formats import decode


cdef class PreparedNode:
    """A node that a kernel has accepted, with everything that does not depend on data pointers.

    Attributes
    ----------
    kernel_name : str
    variant : str or None
        The kernel's variant; None where it has one way only.
    kind : str
        "native", or "user" for a user's kernel.
    tasks : int
        Independent units of work.
    scratch_bytes : int
        Per worker.
    """

    @property
    def kernel_name(self):
        return self.selection.kernel_name

    @property
    def kind(self):
        return self.selection.kind

    @property
    def variant(self):
        return self.selection.variant

    @property
    def tasks(self):
        return self.step.work.tasks

    @property
    def scratch_bytes(self):
        return self.step.work.scratch_bytes

    def run(self, inputs, outputs, threads=1):
        """Compute ``outputs`` from ``inputs``: arrays of the prepared strides, None if absent."""
        cdef Py_ssize_t count = len(self.types)
        cdef Buffer tensors = Buffer(count * sizeof(taper_tensor))
        cdef size_t scratch_bytes = self.step.work.scratch_bytes
        cdef size_t each = (scratch_bytes + TAPER_ALIGNMENT - 1) & -TAPER_ALIGNMENT
        cdef Buffer scratch = Buffer(scratch_bytes)
        cdef Buffer others = Buffer((threads - 1) * each)
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
        args.count = 1
        args.workers = step.workers = threads
        args.worker_scratch, args.worker_scratch_bytes = others.data, each
        cdef taper_status status
        with nogil:
            status = taper_run(&args, &failed)
        if status == TAPER_BAD_INDEX and self.op.check is not None:
            decoded = [None if a is None else decode(a, t) for a, t in zip(inputs, self.types)]
            self.op.check(decoded, self.attrs)
        if status != TAPER_OK:
            what = step.call.kernel.op.decode()
            raise InputError(f"{what}: {taper_status_string(status).decode()}")


def prepare(op, attrs, inputs, outputs, kernels=(None,), choice=None, chosen_node=None):
    """Find the kernel for one node.

    Parameters
    ----------
    op : OpDef
    attrs : mapping
        Every attr of the op.
    inputs : sequence of (TensorType, strides) or None
        Strides are in elements of the storage; None where an optional input is absent.
    outputs : sequence of (TensorType, strides)
    kernels : sequence of Kernel, str or None
        In order of preference; a str stands for those of this library at that ISA level, None for
        those of the default level.
    choice : Choice, optional
        Choice among those that serve the node; without it the first is taken.
    chosen_node : ChosenNode, optional
        Description of the node for the choice.

    Returns
    -------
    PreparedNode or None
        None where no kernel serves the node.
    """
    cdef PreparedNode node = PreparedNode.__new__(PreparedNode)
    operands = [(None, ()) if operand is None else operand for operand in (*inputs, *outputs)]
    types = tuple([type_ for type_, _ in operands])
    storages = [None if type_ is None else storage_of(type_) for type_ in types]
    for type_, storage in zip(types, storages):
        if not is_served(type_, storage):
            if choice is not None:
                choice.choose(chosen_node, [], [])
            return None
    node.op, node.attrs, node.types, node.owners = op, attrs, types, []
    node.tensors = Buffer(len(operands) * sizeof(taper_tensor))
    cdef taper_tensor *tensors = <taper_tensor *>node.tensors.data
    cdef Py_ssize_t i, k
    for i, (type_, strides) in enumerate(operands):
        set_type(&tensors[i], type_, storages[i], node.owners)
        shape = () if type_ is None else storages[i][1]
        for k in range(tensors[i].rank):
            tensors[i].shape[k] = shape[k]
            tensors[i].strides[k] = strides[k]
    node.step.call.inputs = tensors
    node.step.call.output = tensors + len(inputs)
    node.step.call.n_inputs = <int32_t>len(inputs)
    node.step.call.n_outputs = <int32_t>len(outputs)
    node.step.scratch = NULL
    node.step.workers = 1
    node.state = Buffer(max_state_bytes())
    candidates = find_candidates(kernels, op)
    if candidates:
        set_table(&node.step, op, types[:len(inputs)], attrs, node.owners)
    node.selection = select_kernel(
        candidates, dict(attrs), {}, &node.step, node.state.data, choice, chosen_node
    )
    return None if node.selection.chosen is None else node
