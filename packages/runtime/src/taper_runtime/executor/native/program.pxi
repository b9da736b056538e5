# A plan's executed nodes, run as a whole.
cimport cython
from libc.stdint cimport int32_t, int64_t

import numpy as np

from taper_runtime.errors import InputError
from taper_runtime.executor.inputs import check_output
from taper_runtime.executor.size_table import SizeTable

# Sets of sizes whose instances a program keeps.
cdef int MAX_INSTANCES = 32


cdef class Weights:
    """A plan's constants.

    Parameters
    ----------
    arrays : sequence of numpy.ndarray
        C-contiguous; kept alive.
    """

    cdef tuple arrays
    cdef list addresses

    def __init__(self, arrays):
        self.arrays = tuple(arrays)
        self.addresses = [array.__array_interface__["data"][0] for array in self.arrays]


cdef class Program:
    """A plan's executed nodes and where their operands lie, run as a whole.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The external arrays, which are the caller's: EXTERNAL operands count the inputs, then the
        outputs.
    weights : Weights
        Operands of kind CONSTANT point into them.
    steps : list of Step
        Of all bodies, one after the other.
    bodies : list of Body
        The run's own, then those inside: each behind the one around it. ARENA operands count the
        roots of all.
    restores : list of (int, Step)
        What puts back an input's memory where a run fails, and the step that saves it.
    workers : int
        Threads a run may use, the caller's among them.
    variables : Variables
    sizes : sequence of int
        Values of the size variables: the program has an instance for them from the start.
    tensor_bytes : sequence of size
        What no set of sizes may make larger than a plan's tensor: bytes of those that vary.

    Raises
    ------
    InputError
        If the arena for these sizes would be larger than one may be.
    """

    cdef list steps            # Step, behind those of bodies what puts back
    cdef Py_ssize_t n_run      # of them, the bodies'
    cdef list saved_by         # per step that puts back, the one that saves
    cdef set overwritten       # of inputs, by number: a run writes to their memory
    cdef list bodies           # Body
    cdef object table          # SizeTable
    cdef SizeCode sizes        # what `table` is once it has all
    cdef Weights weights
    cdef tuple inputs
    cdef tuple outputs
    cdef int32_t workers
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_external
    cdef Py_ssize_t n_roots
    cdef Py_ssize_t n_pointers  # at most, of an image
    cdef list control_of        # per step: which of the controls it is
    cdef list first_copy        # per step: its own among all
    cdef list first_slice
    cdef list slice_counts
    cdef Py_ssize_t tensors_at  # bytes into an image, the steps come first
    cdef Py_ssize_t controls_at
    cdef Py_ssize_t copies_at
    cdef Py_ssize_t slices_at
    cdef Py_ssize_t image_bytes
    cdef bint dynamic
    cdef object variables       # Variables
    cdef Instance last          # the instance used last; the only one of a static plan
    cdef dict instances         # by the inputs' shapes, the one used last at the end
    cdef list frames            # Frame, free ones
    cdef int max_frames

    def __init__(
        self, inputs, outputs, weights, steps, bodies, restores,
        workers, variables, sizes, tensor_bytes
    ):
        active_isa()
        self.inputs, self.outputs, self.weights = tuple(inputs), tuple(outputs), weights
        self.n_inputs = len(self.inputs)
        self.n_external = len(self.inputs) + len(self.outputs)
        self.steps, self.bodies = steps + [step for _, step in restores], bodies
        self.saved_by = [index for index, _ in restores]
        self.n_run = len(steps)
        self.overwritten = {self._overwritten(step) for _, step in restores}
        self.workers, self.variables = workers, variables
        self.dynamic = bool(variables.names)
        self.instances, self.frames = {}, []
        self.max_frames = taper_cpu_count()
        self.table = SizeTable(variables.names)
        self._bind(tensor_bytes)
        self._lay_out_images()
        self.last = Instance(self, sizes)
        if self.dynamic:
            self.instances[self.last.shapes()] = self.last

    cdef object _overwritten(self, Step step):
        return (<Operand>step.operands[step.n_inputs]).index

    cdef int _bind(self, tensor_bytes) except -1:
        """Give all sizes a slot."""
        cdef Step step
        cdef Body body
        for body in self.bodies:
            body.first_root = self.n_roots
            self.n_roots += len(body.roots)
            body.roots = [(birth, death, self.table.slot(n)) for birth, death, n in body.roots]
        for i, step in enumerate(self.steps):
            step.bind(self.table, i < self.n_run)
            for inner in () if step.control is None else step.control.bodies:
                body = self.bodies[inner]
                body.owner = i
        slots = [self.table.slot(size) for size in tensor_bytes]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                self.table.slot(size)
        self.sizes = SizeCode(self.table, slots)
        return 0

    cdef int _lay_out_images(self) except -1:
        """Find out how many of everything an image has, and where."""
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
            3 * len(self.steps) + n_tensors + 5 * n_controls + 2 * n_copies + 2 * n_slices
        )
        return 0

    def kernels(self):
        """Return the name of each step's kernel in the instance used last, None for numpy's.

        A step of control flow has the name of what it does.
        """
        cdef Instance instance
        cdef Step step
        with cython.critical_section(self):
            instance = self.last
        names = []
        for step, chosen in zip(self.steps[:self.n_run], instance.chosen):
            if type(chosen) is Candidate:
                names.append((<Candidate>chosen).kernel.name.decode())
            else:
                names.append(None if step.control is None else step.op.name.lower())
        return names

    def arena(self):
        """Return the arena of the instance used last.

        Returns
        -------
        blocks : list of tuple of int
            First step, last step and bytes: of each root, then of each step's own memory. That is
            a kernel's scratch, or what the bodies of control flow need.
        offsets : list of int
            Where each lies.
        nbytes : int
            Bytes in all.
        """
        cdef Instance instance
        with cython.critical_section(self):
            instance = self.last
        return instance.blocks(self.bodies[0]), instance.body_offsets[0], instance.arena_bytes

    def run(self, arrays, out=None, sizes=None):
        """One inference.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray
            In the order of ``inputs``.
        out : sequence of numpy.ndarray or None, optional
            Per output the array to write, None for a fresh one.
        sizes : sequence of int, optional
            Values of the size variables, where the inputs' shapes do not give them.

        Returns
        -------
        list of numpy.ndarray
            In the order of ``outputs``.

        Raises
        ------
        InputError
            If an array's type, dtype or shape is not the input's, or an index is out of range.
        """
        return self._run(arrays, out, sizes, None)

    def profile(self, arrays, out=None, sizes=None):
        """One inference as :meth:`run`; returns (outputs, spans).

        spans : per step, per worker: (begin, end, times) in nanoseconds of a monotonic clock, zeros
        where that worker had no part in the step; of a step inside a loop, all its times in one.
        """
        cdef list spans = []
        outputs = self._run(arrays, out, sizes, spans)
        return outputs, spans

    cdef Instance _instance(self, arrays, sizes):
        """The instance for ``sizes``, else for the shapes of ``arrays``; of those kept, it becomes
        the latest."""
        cdef Instance instance = None
        key = None
        try:
            key = tuple([array.shape for array in arrays]) if sizes is None else tuple(sizes)
            instance = self.instances.get(key)
        except (AttributeError, TypeError):
            pass  # no arrays
        if instance is None:
            if sizes is None:
                # which says what is wrong with the arrays
                instance = Instance(self, self.variables.read(arrays))
                key = instance.shapes()
            else:
                instance = Instance(self, sizes)
        with cython.critical_section(self):
            if instance is not self.last:
                self.instances.pop(key, None)
                self.instances[key] = self.last = instance
                if len(self.instances) > MAX_INSTANCES:
                    del self.instances[next(iter(self.instances))]
        return instance

    cdef Py_ssize_t outermost(self, Py_ssize_t index) except -1:
        """The step of the run's own body that step ``index`` is, or lies in."""
        cdef Body body
        for body in reversed(self.bodies[1:]):  # each behind the one around it
            if body.first <= index < body.first + body.count:
                index = body.owner
        return index

    cdef Frame _frame(self, Instance instance):
        """A frame for a run: one that a run before has left, if there is one."""
        cdef Frame frame
        try:
            frame = self.frames.pop()
        except IndexError:
            frame = Frame.__new__(Frame)
        if frame.instance is not instance:
            frame.adopt(instance)
        return frame

    cdef int _keep(self, Frame frame) except -1:
        """Leave a frame to later runs. Those beyond the limit go: so many at once are rare."""
        if len(self.frames) < self.max_frames:
            self.frames.append(frame)
        return 0

    cdef list _run(self, arrays, out, sizes, list spans):
        cdef Frame frame
        cdef Py_ssize_t i
        cdef External external
        if len(arrays) != self.n_inputs:
            raise InputError(f"expected {self.n_inputs} inputs, got {len(arrays)}")
        if out is not None and len(out) != len(self.outputs):
            raise InputError(f"out: expected {len(self.outputs)} arrays, got {len(out)}")
        cdef Instance instance = self._instance(arrays, sizes) if self.dynamic else self.last
        frame = instance.program._frame(instance)
        cdef void **bases = <void **>frame.bases.data
        cdef list outputs = []
        cdef list held = []  # copies made of inputs that are not contiguous
        try:
            for i in range(self.n_inputs):
                bases[i] = _input_address(instance.inputs[i], arrays[i], held)
                if i in self.overwritten and not _is_writable(arrays[i], bases[i]):
                    raise InputError(f"state {self.inputs[i].name!r}: expected to write its memory")
            for i in range(self.n_external - self.n_inputs):
                external = instance.outputs[i]
                if out is None or out[i] is None:
                    array = np.empty(external.shape, external.storage)
                else:
                    array = check_output(external.spec, out[i], [*arrays, *outputs])
                bases[self.n_inputs + i] = _address(array)
                outputs.append(array)
            frame.bind()
            if spans is None:
                frame.run(NULL)
            else:
                self._record(frame, spans)
        finally:
            instance.program._keep(frame)
        return outputs

    cdef int _record(self, Frame frame, list spans) except -1:
        """Run with times, which join ``spans``: per step, per worker, begin and end."""
        cdef Py_ssize_t i
        cdef Py_ssize_t workers = self.workers
        cdef Py_ssize_t count = len(self.steps)
        cdef Buffer record = Buffer(count * workers * sizeof(taper_span))
        cdef taper_span *span = <taper_span *>record.data
        frame.run(span)
        for i in range(0, count * workers, workers):
            spans.append(
                [(span[w].begin, span[w].end, span[w].times) for w in range(i, i + workers)]
            )
        return 0
