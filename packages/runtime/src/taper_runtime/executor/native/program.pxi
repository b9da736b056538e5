# A plan's executed nodes, run as a whole.
cimport cython
from libc.stdint cimport int32_t, int64_t

import numpy as np

from taper_runtime.errors import InputError
from taper_runtime.executor.inputs import check_output
from taper_runtime.executor.size_table import SizeTable

# Sets of sizes whose layouts a program keeps.
cdef int MAX_LAYOUTS = 32


cdef class Program:
    """A plan's executed nodes and where their operands lie, run as a whole.

    Steps are added in order; the program is then made ready by :meth:`finish`.

    Parameters
    ----------
    inputs, outputs : sequence of TensorSpec
        The caller's arrays, in order; their bound indices are 0.. and then len(inputs)...
    constants : sequence of numpy.ndarray
        Kept alive; operands of kind CONSTANT point into them.
    blocks : sequence of Block
        The memory of the arena's roots and the steps that need it.
    offsets : sequence of int
        Where the plan puts them in the arena; all 0 where it has size variables.
    arena_bytes : int
        The bytes of the arena in the plan; 0 where it has size variables.
    workers : int
        Threads a run may use, the caller's among them.
    sizes : sequence of str
        The size variables.
    bind : callable
        From input arrays to the size variables' values, in order; raises InputError.
    empty : callable
        From values of which one is 0 to the program for them, without variables; raises InputError.
    """

    cdef list steps           # Step
    cdef list blocks          # (birth, death, slot of nbytes) of each root in the arena
    cdef list offsets         # where a plan without size variables puts them
    cdef object table         # SizeTable
    cdef SizeCode sizes       # what `table` is once all steps are added
    cdef Py_ssize_t n_tensors
    cdef tuple constant_arrays
    cdef list constants       # addresses
    cdef tuple inputs
    cdef tuple outputs
    cdef int64_t arena_bytes
    cdef int32_t workers
    cdef Py_ssize_t n_inputs
    cdef Py_ssize_t n_bound
    cdef bint dynamic
    cdef object bind
    cdef object empty
    cdef Layout last           # the layout used last; the only one of a static plan
    cdef dict layouts          # by the inputs' shapes, the one used last at the end
    cdef list arenas           # Buffer, free ones

    def __init__(
        self, inputs, outputs, constants, blocks, offsets, arena_bytes, workers, sizes, bind, empty
    ):
        active_isa()
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.n_inputs = len(self.inputs)
        self.n_bound = len(self.inputs) + len(self.outputs) + 1
        self.constant_arrays = tuple(constants)
        self.constants = [c.__array_interface__["data"][0] for c in constants]
        self.arena_bytes = arena_bytes
        self.workers = workers
        self.dynamic = bool(sizes)
        self.bind, self.empty = bind, empty
        self.table = SizeTable(sizes)
        self.blocks = [(birth, death, self.table.slot(size)) for birth, death, size in blocks]
        self.offsets = list(offsets)
        self.steps, self.layouts, self.arenas = [], {}, []

    def add(self, op, attrs, operands, scratch, label, threads):
        """Append a node.

        Parameters
        ----------
        op : OpDef
        attrs : dict
            Complete.
        operands : sequence of (kind, index, offset, TensorType, strides)
            The inputs, then the output. ``index`` counts arena roots, constants or bound arrays.
        scratch : tuple of int
            Where the plan puts it: offset and bytes.
        label : str
            What to call the node in an error.
        threads : int
            How many threads it keeps busy.
        """
        self.steps.append(Step(self.table, op, attrs, operands, scratch, label, threads))
        self.n_tensors += len(operands)

    def finish(self, sizes, tensor_bytes):
        """Make the program ready, with a layout for these values of the size variables.

        tensor_bytes : sequence of int
            What no set of sizes may make larger than a plan's tensor: bytes of those that vary.
        """
        slots = [self.table.slot(size) for size in tensor_bytes]
        for spec in (*self.inputs, *self.outputs):
            for size in spec.shape:
                self.table.slot(size)
        self.sizes = SizeCode(self.table, slots)
        self.last = Layout(self, sizes)
        if self.dynamic:
            self.layouts[tuple([shape for _, _, shape in self.last.inputs])] = self.last

    def kernels(self):
        """Per step the name of its kernel in the layout used last, None where numpy computes it."""
        names = [None] * len(self.steps)
        cdef Candidate candidate
        cdef Layout layout
        with cython.critical_section(self):
            layout = self.last
        for index, candidate in layout.native:
            names[index] = candidate.kernel.name.decode()
        return names

    def run(self, arrays, out=None):
        """One inference.

        Parameters
        ----------
        arrays : sequence of numpy.ndarray
            In the order of ``inputs``.
        out : sequence of numpy.ndarray or None, optional
            Per output the array to write, None for a fresh one.

        Returns
        -------
        list of numpy.ndarray
            In the order of ``outputs``.

        Raises
        ------
        InputError
            If an array's type, dtype or shape is not the input's, or an index is out of range.
        """
        return self._run(arrays, out, None)

    def profile(self, arrays, out=None):
        """One inference as :meth:`run`; returns (outputs, spans).

        spans : per step, native or not, per worker: (begin, end) in nanoseconds of a monotonic
        clock, zeros where that worker had no part in the step.
        """
        cdef list spans = []
        outputs = self._run(arrays, out, spans)
        return outputs, spans

    cdef Layout _layout(self, arrays):
        """The layout for the shapes of ``arrays``; of those kept, it becomes the latest."""
        cdef Layout layout = None
        key = None
        try:
            key = tuple([array.shape for array in arrays])
            layout = self.layouts.get(key)
        except (AttributeError, TypeError):
            pass  # no arrays
        if layout is None:
            sizes = self.bind(arrays)  # which says what is wrong with the arrays
            layout = (<Program>self.empty(sizes)).last if 0 in sizes else Layout(self, sizes)
            key = tuple([shape for _, _, shape in layout.inputs])
        with cython.critical_section(self):
            if layout is not self.last:
                self.layouts.pop(key, None)
                self.layouts[key] = self.last = layout
                if len(self.layouts) > MAX_LAYOUTS:
                    del self.layouts[next(iter(self.layouts))]
        return layout

    cdef Buffer _arena(self, Layout layout):
        """Memory for a run: what a run before has left, if it is large enough."""
        cdef Buffer arena
        cdef size_t need = layout.arena_bytes + (self.workers - 1) * layout.worker_scratch_bytes
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

    cdef list _run(self, arrays, out, list spans):
        cdef Frame frame
        cdef Py_ssize_t i
        if len(arrays) != self.n_inputs:
            raise InputError(f"expected {self.n_inputs} inputs, got {len(arrays)}")
        if out is not None and len(out) != len(self.outputs):
            raise InputError(f"out: expected {len(self.outputs)} arrays, got {len(out)}")
        cdef Layout layout = self._layout(arrays) if self.dynamic else self.last
        cdef Buffer arena = self._arena(layout)
        try:
            frame = layout.frames.pop()
        except IndexError:
            frame = Frame(layout)
        cdef void **bound = <void **>frame.bound.data
        cdef list outputs = []
        cdef list held = []  # copies made of inputs that are not contiguous
        try:
            for i in range(self.n_inputs):
                bound[i] = _input_address(layout.inputs[i], arrays[i], held)
            for i in range(self.n_inputs, self.n_bound - 1):
                spec = layout.outputs[i - self.n_inputs]
                if out is None or out[i - self.n_inputs] is None:
                    array = np.empty((<tuple>spec)[2], (<tuple>spec)[1])
                else:
                    given = out[i - self.n_inputs]
                    array = check_output((<tuple>spec)[0], given, [*arrays, *outputs])
                bound[i] = _address(array)
                outputs.append(array)
            bound[self.n_bound - 1] = arena.data
            frame.bind()
            for begin, end, node in layout.segments:
                if node is None:
                    self._run_native(frame, arena, begin, end, spans)
                    continue
                start = 0 if spans is None else taper_now()
                frame.run_numpy(node)
                if spans is not None:
                    spans.append([(start, taper_now())])
        finally:
            layout.frames.append(frame)
            self.arenas.append(arena)
        return outputs

    cdef int _run_native(
        self, Frame frame, Buffer arena, int64_t begin, int64_t end, list spans
    ) except -1:
        cdef Layout layout = frame.layout
        cdef taper_run_args args
        cdef int64_t failed = 0
        cdef taper_status status
        cdef Step step
        args.steps = <taper_step *>frame.steps.data + begin
        args.count = end - begin
        args.workers = self.workers
        args.worker_scratch = arena.data + layout.arena_bytes
        args.worker_scratch_bytes = layout.worker_scratch_bytes
        cdef Buffer record = None
        cdef taper_span *span = NULL
        if spans is not None:
            record = Buffer(args.count * self.workers * sizeof(taper_span))
            span = <taper_span *>record.data
        args.spans = span
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            step = layout.program.steps[layout.native[begin + failed][0]]
            raise frame.failure(step, status)
        if spans is not None:
            for i in range(args.count):
                at = i * self.workers
                spans.append([(span[w].begin, span[w].end) for w in range(at, at + self.workers)])
        return 0
