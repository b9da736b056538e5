# cython: language_level=3, auto_pickle=False
"""Hold a plan's steps and the memory of their operands: for all sizes, and for those of a run.

- :class:`Program`: the steps, from which an image is made: the structs that C runs for one set of
  sizes, with pointers that each frame patches.
- :class:`StepOrder`: which of the run's own steps may run at the same time.
- :class:`Weights`: the arrays of the constants, in one version.

Each other job has a file of its own, which is compiled as a part of this module. As an extension
module, each would add 8 kB or more to the wheel and 0.4 ms to the import.
"""
from cpython.buffer cimport PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t

from taper_runtime.native._kernels cimport Buffer
from taper_runtime.native.taper cimport *

from taper_runtime.base.loading import look
from taper_runtime.executor.size_table import SizeTable

# Steps, or live ranges of an arena, that a load prepares between two checks whether it must end.
cdef Py_ssize_t _BETWEEN_LOOKS = 64

include "_size_code.pxi"
include "_steps.pxi"
include "_offsets.pxi"
include "_server_calls.pxi"
include "_instance.pxi"


# -- weights ---------------------------------------------------------------------------------------

cdef void *_first_byte(array) except? NULL:
    """Return the address of an array's first element."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_STRIDES)
    cdef void *data = view.buf
    PyBuffer_Release(&view)
    return data


cdef class Weights:
    """One version of a program's constants; it never changes, but another may replace it.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        C-contiguous, of exactly the types that the program was made for; kept alive.
    generation : int
        The version's number.
    """

    def __cinit__(self, arrays, generation=0):
        cdef Py_ssize_t i
        self.arrays, self.generation = tuple(arrays), generation
        self.addresses = Buffer(len(self.arrays) * sizeof(void *))
        for i in range(len(self.arrays)):
            (<void **>self.addresses.data)[i] = _first_byte(self.arrays[i])


# -- the program -----------------------------------------------------------------------------------

cdef class StepOrder:
    """Partial order of the run's own steps: it says which may run at the same time.

    Parameters
    ----------
    producers : sequence of sequence of int
        Per step, the earlier steps that it waits for.
    before : sequence of int
        For the memory of each root of the body, then of each step, as bits: the memory that is
        dead when it is first needed.
    leaders : int
        The most steps that run at the same time.
    """

    def __cinit__(self, producers, before, leaders):
        cdef Py_ssize_t i
        cdef Py_ssize_t count = len(producers)
        users = [[] for _ in range(count)]
        for i, waits_for in enumerate(producers):
            for step in waits_for:
                users[step].append(i)
        self.leaders, self.precedence = leaders, Precedence(before)
        self.producers = Buffer(count * sizeof(int32_t))
        self.first_user = Buffer((count + 1) * sizeof(int32_t))
        self.users = Buffer(sum(map(len, users)) * sizeof(int32_t))
        self.native.producers = <int32_t *>self.producers.data
        self.native.first_user = <int32_t *>self.first_user.data
        self.native.users = <int32_t *>self.users.data
        cdef int32_t *user = <int32_t *>self.users.data
        for i in range(count):
            (<int32_t *>self.producers.data)[i] = len(producers[i])
            (<int32_t *>self.first_user.data)[i] = <int32_t>(user - <int32_t *>self.users.data)
            for step in users[i]:
                user[0] = step
                user += 1
        (<int32_t *>self.first_user.data)[count] = <int32_t>(user - <int32_t *>self.users.data)


cdef class Program:
    """A plan's executed nodes and the memory of their operands.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The caller's arrays: the numbers of EXTERNAL operands count the inputs, then the outputs.
    n_constants : int
        How many arrays :class:`Weights` have; CONSTANT operands are numbers of these.
    steps : list of Step
        The steps of all bodies, one body after the other.
    bodies : list of Body
        The run's own body, then the inner ones, each after the one that contains it. The numbers
        of ARENA operands count the roots of all bodies.
    restores : list of (int, Step)
        The step that saves an input's memory, and a step that restores it where a run fails.
    threads : int
        The most threads of one step, the caller's included.
    short_threads, short_work : int
        The same of a run without control flow whose steps' ``threads`` add up to at most
        ``short_work``.
    variables : Variables
    tensor_bytes : sequence of size
        Bytes of the tensors whose sizes vary; they are checked for each set of sizes.
    refuse : callable
        Raises an error about steps, given by index, that nothing serves.
    order : StepOrder, optional
        Without it steps run one after the other.
    memory_budget : int
        The most bytes of memory for a run; 0 for no limit.
    """

    def __cinit__(
        self, *, inputs, outputs, n_constants, steps, bodies, restores, threads, short_threads,
        short_work, variables, tensor_bytes, refuse, StepOrder order=None, int64_t memory_budget=0
    ):
        self.inputs, self.outputs, self.n_constants = tuple(inputs), tuple(outputs), n_constants
        self.n_inputs = len(self.inputs)
        self.n_external = len(self.inputs) + len(self.outputs)
        self.arena_base = self.n_external
        self.image_base, self.raised_base = self.arena_base + 1, self.arena_base + 2
        self.constants_base = self.raised_base + 1
        self.n_bases = self.constants_base + n_constants
        self.steps, self.bodies = steps + [step for _, step in restores], bodies
        self.saved_by = [index for index, _ in restores]
        self.n_run = len(steps)
        self.overwritten = {self._overwritten(step) for _, step in restores}
        self.threads, self.variables, self.order = threads, variables, order
        self.short_threads, self.short_work = short_threads, short_work
        self.workers = max(threads, short_threads, 1 if order is None else order.leaders)
        self.refuse, self.memory_budget = refuse, memory_budget
        self.dynamic = bool(variables.names)
        self.table = SizeTable(variables.names)
        self._bind(tensor_bytes)
        self._lay_out_images()

    cdef object _overwritten(self, Step step):
        return (<Operand>step.operands[step.n_inputs]).index

    cdef int _bind(self, tensor_bytes) except -1:
        """Give each size a slot."""
        cdef Step step
        cdef Body body
        for body in self.bodies:
            body.first_root = self.n_roots
            self.n_roots += len(body.roots)
            body.roots = [(birth, death, _slot(self.table, n)) for birth, death, n in body.roots]
        for i, step in enumerate(self.steps):
            if i % _BETWEEN_LOOKS == 0:
                look()
            step.bind(self.table)
            for inner in () if step.control is None else step.control.bodies:
                body = self.bodies[inner]
                body.owner = i
        slots = [_slot(self.table, size) for size in tensor_bytes]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                _slot(self.table, size)
        self.sizes = SizeCode(self.table, slots)
        return 0

    cdef int _lay_out_images(self) except -1:
        """Compute the counts and offsets of the parts of an image."""
        cdef Step step
        cdef Operand operand
        cdef Copy copy
        cdef Py_ssize_t n_tensors = 0
        cdef Py_ssize_t n_controls = 0
        cdef Py_ssize_t n_copies = 0
        cdef Py_ssize_t n_slices = 0
        cdef Py_ssize_t i
        self.control_of, self.first_copy, self.first_slice = [], [], []
        self.slice_counts = [0] * len(self.steps)
        for step in self.steps:
            self.control_of.append(n_controls)
            self.first_copy.append(n_copies)
            n_tensors += len(step.operands)
            operands = [operand for operand in step.operands if operand is not None]
            if step.control is not None:
                n_controls += 1
                if step.control.predicate is not None:
                    operands.append(step.control.predicate)
                for copy in step.control.enter + step.control.next:
                    n_copies += 1
                    operands += [copy.target, copy.source]
            for operand in operands:
                for scan, _ in operand.along:
                    self.slice_counts[scan] += 1
        for i in range(len(self.steps)):
            self.first_slice.append(n_slices)
            n_slices += self.slice_counts[i]
        self.tensors_at = len(self.steps) * sizeof(taper_step)
        self.controls_at = self.tensors_at + n_tensors * sizeof(taper_tensor)
        self.copies_at = self.controls_at + n_controls * sizeof(taper_control)
        self.slices_at = self.copies_at + n_copies * sizeof(taper_copy)
        self.image_bytes = self.slices_at + n_slices * sizeof(taper_slice)
        self.n_pointers = (
            4 * len(self.steps) + n_tensors + 5 * n_controls + 2 * n_copies + 2 * n_slices
        )
        return 0

    cdef Py_ssize_t outermost(self, Py_ssize_t index) except -1:
        """Return the step of the run's own body that is, or contains, step ``index``."""
        cdef Body body
        for body in reversed(self.bodies[1:]):  # each comes after the one that contains it
            if body.first <= index < body.first + body.count:
                index = body.owner
        return index
