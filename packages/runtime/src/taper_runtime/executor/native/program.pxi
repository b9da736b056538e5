# A plan's executed nodes, run as a whole.
cimport cython
from libc.stdint cimport int32_t, int64_t

import numpy as np

from taper_runtime.errors import InputError
from taper_runtime.executor.inputs import check_output
from taper_runtime.executor.size_table import SizeTable

# Sets of sizes whose instances a program keeps.
cdef int MAX_INSTANCES = 32


cdef class Program:
    """A plan's executed nodes and where their operands lie, run as a whole.

    Steps are added in order; the program is then made ready by :meth:`finish`.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The external arrays, which are the caller's: EXTERNAL operands count the inputs, then the
        outputs.
    constants : sequence of numpy.ndarray
        Kept alive; operands of kind CONSTANT point into them.
    blocks : sequence of liveness.Block
        The memory of each root in the arena, and the steps that need it.
    workers : int
        Threads a run may use, the caller's among them.
    variables : Variables
    """

    cdef list steps           # Step
    cdef list restores        # (number of the step that saves, Step that puts back)
    cdef set overwritten      # of inputs, by number: a run writes to their memory
    cdef list blocks          # (birth, death, slot of nbytes) of each root in the arena
    cdef object table         # SizeTable
    cdef SizeCode sizes       # what `table` is once all steps are added
    cdef Py_ssize_t n_tensors
    cdef tuple constant_arrays
    cdef list constants       # addresses
    cdef tuple inputs
    cdef tuple outputs
    cdef int32_t workers
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_external
    cdef bint dynamic
    cdef object variables      # Variables
    cdef Instance last         # the instance used last; the only one of a static plan
    cdef dict instances        # by the inputs' shapes, the one used last at the end
    cdef list arenas           # Buffer, free ones

    def __init__(self, inputs, outputs, constants, blocks, workers, variables):
        active_isa()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.n_inputs = len(self.inputs)
        self.n_external = len(self.inputs) + len(self.outputs)
        self.constant_arrays = tuple(constants)
        self.constants = [c.__array_interface__["data"][0] for c in constants]
        self.workers = workers
        self.dynamic = bool(variables.names)
        self.variables = variables
        self.table = SizeTable(variables.names)
        self.blocks = [
            (birth, death, self.table.slot(nbytes)) for birth, death, nbytes in blocks
        ]
        self.steps, self.instances, self.arenas = [], {}, []
        self.restores, self.overwritten = [], set()

    def add(self, op, attrs, operands, label, threads):
        """Append a node.

        Parameters
        ----------
        op : OpDef
        attrs : dict
            Complete.
        operands : list of Operand
            The inputs, then the output.
        label : str
            What to call the node in an error.
        threads : int
            How many threads it keeps busy.
        """
        self.steps.append(Step(self.table, op, attrs, operands, label, threads))
        self.n_tensors += len(operands)

    def add_restore(self, saved_by, op, attrs, operands):
        """Append a node that runs where a run fails.

        Parameters
        ----------
        saved_by : int
            The step that saves what the node puts back; it runs where that has been done.
        op, attrs, operands
            As :meth:`add` takes them; the output lies in the memory of an input of the program.
        """
        cdef Operand output = operands[len(operands) - 1]
        self.restores.append((saved_by, Step(self.table, op, attrs, operands, "", 1)))
        self.overwritten.add(output.index)

    def finish(self, sizes, tensor_bytes):
        """Make the program ready, with an instance for these values of the size variables.

        tensor_bytes : sequence of int
            What no set of sizes may make larger than a plan's tensor: bytes of those that vary.
        """
        slots = [self.table.slot(size) for size in tensor_bytes]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                self.table.slot(size)
        self.sizes = SizeCode(self.table, slots)
        self.last = Instance(self, sizes)
        if self.dynamic:
            self.instances[self.last.shapes()] = self.last

    def kernels(self):
        """Return the name of each step's kernel in the instance used last, None for numpy's."""
        names = [None] * len(self.steps)
        cdef Candidate candidate
        cdef Instance instance
        with cython.critical_section(self):
            instance = self.last
        for index, candidate in instance.native:
            names[index] = candidate.kernel.name.decode()
        return names

    def arena(self):
        """Return the arena of the instance used last.

        Returns
        -------
        blocks : list of tuple of int
            First step, last step and bytes: of each root, then of each native step's scratch.
        offsets : list of int
            Where each lies.
        nbytes : int
            Bytes in all.
        """
        cdef Instance instance
        with cython.critical_section(self):
            instance = self.last
        return instance.blocks(), instance.offsets(), instance.arena_bytes

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

        spans : per step, native or not, per worker: (begin, end) in nanoseconds of a monotonic
        clock, zeros where that worker had no part in the step.
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

    cdef Buffer _arena(self, Instance instance):
        """Memory for a run: what a run before has left, if it is large enough."""
        cdef Buffer arena
        cdef size_t need = instance.arena_bytes + (self.workers - 1) * instance.worker_scratch_bytes
        try:
            arena = self.arenas.pop()
            if arena.size >= need:
                return arena
            arena = None  # free it first
        except IndexError:
            pass
        try:
            return Buffer(need)
        except MemoryError as error:
            raise InputError(f"no memory for the {need} bytes that a run needs") from error

    cdef list _run(self, arrays, out, sizes, list spans):
        cdef Frame frame
        cdef Py_ssize_t i
        if len(arrays) != self.n_inputs:
            raise InputError(f"expected {self.n_inputs} inputs, got {len(arrays)}")
        if out is not None and len(out) != len(self.outputs):
            raise InputError(f"out: expected {len(self.outputs)} arrays, got {len(out)}")
        cdef External external
        cdef Segment segment
        cdef Instance instance = self._instance(arrays, sizes) if self.dynamic else self.last
        cdef Buffer arena = self._arena(instance)
        try:
            frame = instance.frames.pop()
        except IndexError:
            frame = Frame(instance)
        cdef void **bases = <void **>frame.bases.data
        cdef list outputs = []
        cdef list held = []  # copies made of inputs that are not contiguous
        frame.reached = 0
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
            bases[self.n_external] = arena.data
            frame.bind()
            for segment in instance.segments:
                if segment.node is None:
                    self._run_native(frame, arena, segment, spans)
                    continue
                frame.reached = segment.index
                start = 0 if spans is None else taper_now()
                frame.run_numpy(segment.node)
                if spans is not None:
                    spans.append([(start, taper_now())])
        except BaseException:
            frame.restore()
            raise
        finally:
            instance.frames.append(frame)
            self.arenas.append(arena)
        return outputs

    cdef int _run_native(self, Frame frame, Buffer arena, Segment segment, list spans) except -1:
        cdef Instance instance = frame.instance
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef taper_status status
        cdef Step step
        memset(&args, 0, sizeof(args))
        args.steps = <taper_step *>frame.steps.data + segment.first
        args.count = segment.end - segment.first
        args.workers = self.workers
        args.worker_scratch = arena.data + instance.arena_bytes
        args.worker_scratch_bytes = instance.worker_scratch_bytes
        cdef Buffer record = None
        cdef taper_span *span = NULL
        if spans is not None:
            record = Buffer(args.count * self.workers * sizeof(taper_span))
            span = <taper_span *>record.data
        args.spans = span
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            frame.reached = instance.native[segment.first + failed][0]
            step = instance.program.steps[frame.reached]
            raise frame.failure(step, status)
        if spans is not None:
            for i in range(args.count):
                at = i * self.workers
                spans.append([(span[w].begin, span[w].end) for w in range(at, at + self.workers)])
        return 0
