# cython: language_level=3, auto_pickle=False
"""Run programs with the arrays of their callers.

- :class:`Runner`: runs a program, with an instance for each set of sizes it meets.
- ``Frame``: everything that one run needs: an arena, the scratch of workers 1 and on behind it,
  and a copy of the instance's image with its own pointers. A pool keeps it between runs.
- :class:`RunLog`: how many runs there were, and how long the latest took.
- :func:`in_order`: the arrays of a feed.
"""
cimport cython
from cpython.buffer cimport (
    Py_buffer, PyBUF_C_CONTIGUOUS, PyBUF_STRIDED_RO, PyBUF_WRITABLE, PyBuffer_IsContiguous,
    PyBuffer_Release, PyObject_GetBuffer
)
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy, memset

from taper_runtime.executor._pool cimport FramePool, Job, PooledFrame
from taper_runtime.executor._program cimport (
    Body, External, Instance, Patch, Program, Raised, ServerCall, Step, Weights
)
from taper_runtime.executor._stop cimport Poll, Stop, poll
from taper_runtime.native._kernels cimport (
    Buffer, has_begun, now, run_steps, schedule_bytes, status_text
)
from taper_runtime.native.taper cimport *

import numpy as np

from taper_runtime.base.buffers import aligned_bytes
from taper_runtime.base.errors import (
    InputError, NodeInputError, OptionError, StoppedError, TaperError
)
from taper_runtime.executor.inputs import check_input, check_output
from taper_runtime.formats import decode

# Results of at least this many bytes are in memory that a frame keeps.
cdef Py_ssize_t LARGE_RESULT_BYTES = 1 << 16

# Those of at least this many bytes are mapped from the system, in large pages.
cdef Py_ssize_t MAPPED_RESULT_BYTES = 1 << 22

# How many results per output a frame keeps memory for: `y = session.run(...)` in a loop holds one
# result while the next is computed.
cdef int RESULTS_KEPT = 2

# How many sets of sizes have an instance that is kept.
cdef int MAX_INSTANCES = 32

cdef int64_t _NEVER = 0

include "_run_log.pxi"


def in_order(names, feed):
    """Return the arrays of a feed in the order of the inputs.

    Parameters
    ----------
    names : sequence of str
        Of the inputs.
    feed : mapping of str to numpy.ndarray

    Raises
    ------
    InputError
        If the feed lacks one, or has another.
    """
    cdef list arrays = []
    try:
        for name in names:
            arrays.append(feed[name])
    except KeyError as error:
        raise InputError(
            f"missing input {error.args[0]!r}; expected {list(names)}, "
            f"got {sorted(map(str, feed))}"
        ) from None
    if len(feed) != len(arrays):
        unknown = sorted(map(str, feed.keys() - set(names)))
        raise InputError(f"unknown inputs {unknown}; expected {list(names)}")
    return arrays


cdef size_t _memory_for(Instance instance) except? 0:
    """Return the bytes that a run needs: the arena, and scratch of each further worker.

    Raises
    ------
    OptionError
        If it is more than the program's memory budget.
    """
    cdef Program program = instance.program
    cdef size_t need = (
        instance.scratch_at + (program.workers - 1) * instance.worker_scratch_bytes
    )
    if program.memory_budget and need > <size_t>program.memory_budget:
        sizes = instance.shapes() if program.dynamic else ()
        at = f", for inputs of {sizes}" if sizes else ""
        raise OptionError(
            f"memory_budget: expected a run of at most {program.memory_budget} bytes, got one "
            f"that needs {need} on {program.workers} threads{at}; export the model with "
            "memory_budget, or use fewer threads"
        )
    return need


cdef class Frame(PooledFrame):
    """Memory for one run at a time: an arena, and an instance's image with its own pointers.

    It serves any instance of any program, but costs least for the one it served last.
    """

    cdef int adopt(self, Instance instance) except -1:
        """Prepare the frame for an instance; the caller must then bind weights.

        Raises
        ------
        InputError
            If there is no memory for the arena.
        OptionError
            If the arena is larger than the program's memory budget.
        """
        cdef Program program = instance.program
        cdef size_t need = _memory_for(instance)
        if self.instance is None or self.instance.program is not program:
            self.results, self.result_bytes = None, 0
            self.bases = Buffer(program.n_bases * sizeof(void *))
            self.image = Buffer(program.image_bytes)
            self.raised = Raised()
            self._add_schedule(program)
        self.instance, self.generation = None, -1
        if self.arena is None or self.arena.size < need:
            self.arena = None  # free it first
            try:
                self.arena = Buffer(need)
            except MemoryError as error:
                raise InputError(f"expected {need} bytes of memory for a run, got none") from error
        memcpy(self.image.data, instance.image.data, program.image_bytes)
        cdef void **bases = <void **>self.bases.data
        bases[program.arena_base] = self.arena.data
        bases[program.image_base] = self.image.data
        bases[program.raised_base] = <void *>self.raised
        self.instance = instance
        self._patch(program.arena_base, program.constants_base)
        self.need = need
        return 0

    cdef int _add_schedule(self, Program program) except -1:
        """Allocate what a run needs whose steps may run at the same time."""
        cdef Py_ssize_t count = (<Body>program.bodies[0]).count
        if program.order is not None:
            self.schedule = Buffer(schedule_bytes(count, program.workers, program.order.leaders))
        return 0

    cdef object fresh(self, Py_ssize_t i, External external):
        """Return an array for output ``i``, in the memory of an earlier result without references.

        Otherwise each run would get the pages of large results from the system and give them back.
        """
        if external.nbytes < LARGE_RESULT_BYTES:
            return np.empty(external.shape, external.storage)
        if self.results is None:
            self.results = [[] for _ in self.instance.outputs]
        cdef list kept = self.results[i]
        for memory in kept:
            if (
                Py_REFCNT(memory) == 2  # the list's and this function's
                and external.nbytes <= memory.nbytes <= 2 * external.nbytes
            ):
                break
        else:
            memory = self.add_memory(kept, external.nbytes)
        return memory[: external.nbytes].view(external.storage).reshape(external.shape)

    cdef object add_memory(self, list kept, Py_ssize_t nbytes):
        """Return new memory for an output, and keep it in place of the oldest."""
        if len(kept) == RESULTS_KEPT:
            self.result_bytes -= <size_t>kept[0].nbytes
            del kept[0]
        # numpy's own memory is not aligned to lines of the cache, and has large pages by chance.
        # Memory of a Buffer goes back to the system, so it serves only where pages are large.
        cdef bint is_mapped = nbytes >= MAPPED_RESULT_BYTES
        source = Buffer(nbytes) if is_mapped else memoryview(aligned_bytes(nbytes))
        memory = np.frombuffer(source, np.uint8)
        kept.append(memory)
        self.result_bytes += nbytes
        return memory

    cdef int bind_weights(self, Weights weights) except -1:
        """Let the image point to a version of the constants, which the runner keeps alive."""
        cdef Program program = self.instance.program
        memcpy(
            self.bases.data + program.constants_base * sizeof(void *), weights.addresses.data,
            program.n_constants * sizeof(void *),
        )
        self._patch(program.constants_base, program.n_bases)
        self.generation = weights.generation
        return 0

    cdef void bind(self) noexcept:
        """Write the external arrays' addresses into the image."""
        self._patch(0, self.instance.program.n_external)

    cdef void _patch(self, Py_ssize_t first, Py_ssize_t end) noexcept:
        """Write pointers into the bases [first, end)."""
        cdef int64_t *ends = <int64_t *>self.instance.patch_ends.data
        cdef Patch *patch = <Patch *>self.instance.patches.data
        cdef char **bases = <char **>self.bases.data
        cdef int64_t i
        for i in range(ends[first - 1] if first else 0, ends[end - 1] if end else 0):
            (<char **>(self.image.data + patch[i].at))[0] = bases[patch[i].base] + patch[i].offset

    cdef int run(self, taper_span *spans, Stop stop) except -1:
        """Run all steps; spans may be NULL."""
        cdef Program program = self.instance.program
        cdef taper_run_args args
        cdef taper_status status
        cdef int64_t failed = 0
        cdef Poll state
        memset(&args, 0, sizeof(args))
        args.steps = <taper_step *>self.image.data
        args.count = (<Body>program.bodies[0]).count
        args.workers = program.workers
        args.worker_scratch = self.arena.data + self.instance.scratch_at
        args.worker_scratch_bytes = self.instance.worker_scratch_bytes
        args.spans = spans
        state.raised, state.elsewhere = <void *>self.raised, False
        state.deadline = &_NEVER if stop is None else &stop.deadline
        if stop is not None and stop.flag is not None:
            args.stop = &stop.flag.value
        args.poll = poll
        args.poll_context = &state
        if program.order is not None:
            args.order, args.leaders = &program.order.native, program.order.leaders
            args.schedule = self.schedule.data
        with nogil:
            status = run_steps(&args, &failed)
        if status != TAPER_OK:
            error = self.failure(failed, status, stop)
            self._restore(&args, program.outermost(failed))
            raise error
        return 0

    cdef int _restore(self, const taper_run_args *args, Py_ssize_t reached) except -1:
        """Restore the states that a run which got to step ``reached`` has overwritten."""
        cdef Program program = self.instance.program
        cdef taper_step *step = <taper_step *>self.image.data
        cdef Py_ssize_t i
        for i in range(len(program.saved_by) - 1, -1, -1):
            overwriting = program.saved_by[i] + 1
            if overwriting <= reached if args.order == NULL else has_begun(args, overwriting):
                (<ServerCall>self.instance.server_calls[program.n_run + i]).compute(
                    &step[program.n_run + i].call
                )
        return 0

    cdef object failure(self, int64_t index, taper_status status, Stop stop):
        """Return the error for step ``index``: Python's exception, or one with the op's message."""
        cdef Step step = self.instance.program.steps[index]
        cdef ServerCall call
        error, self.raised.error = self.raised.error, None
        if error is not None and status in (TAPER_CALL_FAILED, TAPER_STOPPED):
            return error  # the exception of another step is less important
        if status == TAPER_STOPPED and stop is not None:
            return stop.reason() or StoppedError("the run was ended")  # a cleared flag
        reason = status_text(status)
        if status == TAPER_BAD_INDEX and step.op.check is not None:
            call = self.instance.server_call(step)
            arrays = call.operands(&(<taper_step *>self.image.data)[index].call)
            try:
                step.op.check(
                    [
                        None if type_ is None else decode(array, type_)
                        for array, type_ in zip(arrays[:call.n_inputs], call.types)
                    ],
                    call.attrs,
                )
            except InputError as found:
                reason = str(found).removeprefix(f"{step.op.name}: ")
        return NodeInputError(step.label, reason)


cdef void *_address(array) except NULL:
    """Return the address of a new contiguous array; never NULL: numpy allocates at least one."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
    cdef void *data = view.buf
    PyBuffer_Release(&view)
    return data


cdef void *_input_address(External external, array, bint written, list held) except NULL:
    """Check an input against its spec, and return the address of its elements.

    ``written`` says that the run writes to it: it must be the caller's own memory then.
    """
    cdef Py_buffer view
    cdef void *data = NULL
    cdef bint good = False
    cdef bint writable = False
    if (
        type(array) is np.ndarray
        and array.dtype is external.storage
        and array.shape == external.shape
    ):
        PyObject_GetBuffer(array, &view, PyBUF_STRIDED_RO)
        data, writable = view.buf, not view.readonly
        good = PyBuffer_IsContiguous(&view, b"C") and <uintptr_t>data % view.itemsize == 0
        PyBuffer_Release(&view)
    if not good:
        checked = check_input(external.spec, array)  # raises an error, or returns a copy
        held.append(checked)
        data = <void *><uintptr_t>checked.__array_interface__["data"][0]
        writable = checked is array and array.flags.writeable
    if written and not writable:
        raise InputError(f"state {external.spec.name!r}: expected writable memory")
    return data


cdef class RunJob(Job):
    """A run of a program that any thread may compute.

    The parameters are those of :meth:`Runner._compute`.
    """

    cdef Runner runner
    cdef Instance instance
    cdef object arrays
    cdef object out
    cdef list spans
    cdef list outputs

    def __cinit__(
        self, Runner runner not None, Instance instance not None, arrays, out, Stop stop,
        list spans, list outputs not None
    ):
        self.owner, self.runner, self.instance = runner.program, runner, instance
        self.arrays, self.out, self.spans, self.outputs = arrays, out, spans, outputs
        self.stop = Stop(None) if stop is None else stop  # for an interrupt of the caller

    cdef int compute(self) except -1:
        """Run the job with its frame."""
        cdef Frame frame = _as_frame(self.frame)
        self.frame = frame
        self.runner._make_ready(frame, self.instance)
        return self.runner._compute(
            frame, self.arrays, self.out, self.stop, self.spans, self.outputs
        )


cdef class Runner:
    """Runner of a program; many threads may call its methods at once.

    Parameters
    ----------
    program : Program
    weights : Weights
    sizes : sequence of int
        Values of the size variables for which an instance is made at once.
    pool : FramePool, optional
        It may serve other programs too.
    like : Runner, optional
        Runner of the same program, with which this one shares its instances; ``sizes`` is then
        not used.

    Raises
    ------
    InputError
        If the arena for these sizes would be larger than one may be.
    """

    def __cinit__(
        self, Program program not None, Weights weights not None, sizes, FramePool pool=None,
        Runner like=None
    ):
        self.program, self.weights = program, weights
        self.pool = FramePool() if pool is None else pool
        if like is not None:
            self.instances, self.last = like.instances, like._latest()
            return
        self.instances = {}
        self.last = Instance(program, sizes)
        if program.dynamic:
            self.instances[self.last.shapes()] = self.last

    cdef Instance _latest(self):
        """Return the instance used last."""
        with cython.critical_section(self.instances):
            return self.last

    def with_weights(self, Weights weights not None):
        """Return a runner of the program with other constants; both share instances and frames.

        Parameters
        ----------
        weights : Weights
            The weights of another generation.
        """
        return Runner(self.program, weights, (), self.pool, self)

    def kernels(self):
        """Return the name of each step's kernel in the instance used last, None for numpy's.

        For a step of control flow it is the name of the construct.
        """
        cdef Step step
        names = []
        for step, selection in zip(self.program.steps, self.selections()):
            names.append(step.op.name.lower() if selection is None else selection.kernel_name)
        return names

    def servers(self):
        """Return the Server of each step that has one, whether or not a kernel serves the step."""
        cdef Step step
        servers = []
        for step in self.program.steps:
            if step.server is not None:
                servers.append(step.server)
        return servers

    @property
    def weights_version(self):
        """Return the generation of the weights that the next run reads."""
        return self.weights.generation

    def selections(self):
        """Return the Selection of each step in the instance used last, None for control flow."""
        return self._latest().selections[:self.program.n_run]

    def shapes(self):
        """Return the shapes of the inputs of the instance used last."""
        return self._latest().shapes()

    def check_memory(self):
        """Check that a run of the instance used last fits in the program's memory budget.

        Raises
        ------
        OptionError
            If it does not.
        """
        _memory_for(self._latest())

    def arena(self):
        """Return the arena of the instance used last.

        Returns
        -------
        ranges : list of tuple of int
            First step, last step and bytes of each root, then of each step's own memory. That is
            a kernel's scratch, or the memory of the bodies of control flow.
        offsets : list of int
            The offset of each in the arena.
        nbytes : int
            Bytes in all, with the scratch of a run's first worker.
        """
        cdef Instance instance = self._latest()
        ranges = instance.ranges(self.program.bodies[0])
        return ranges, instance.body_offsets[0], instance.scratch_at

    def run(self, inputs, out=None, sizes=None, stop=None):
        """Run the program once.

        Parameters
        ----------
        inputs : sequence of numpy.ndarray
            In the order of the program's.
        out : sequence of numpy.ndarray or None, optional
            Per output the array to write, None for a new one.
        sizes : sequence of int, optional
            Values of the size variables, where the inputs' shapes do not give them.
        stop : Stop, optional

        Returns
        -------
        list of numpy.ndarray
            In the order of the program's.

        Raises
        ------
        InputError
            If an array's type, dtype or shape is not the input's, or an index is out of range.
        StoppedError
            If ``stop`` has ended the run.
        """
        return self._run(inputs, out, sizes, stop, None)

    def profile(self, inputs, out=None, sizes=None, stop=None):
        """Run the program once, as :meth:`run` does; return (outputs, spans).

        spans : per step, per worker: (begin, end, times) in nanoseconds of a monotonic clock, zeros
        where that worker had no part in the step; of a step inside a loop, all its times in one.
        """
        cdef list spans = []
        outputs = self._run(inputs, out, sizes, stop, spans)
        return outputs, spans

    cdef Instance _instance(self, arrays, sizes):
        """Return the instance for ``sizes``, else for the shapes of ``arrays``, and mark it as used
        last."""
        cdef Instance instance = None
        key = None
        try:
            key = tuple([array.shape for array in arrays]) if sizes is None else tuple(sizes)
            instance = self.instances.get(key)
        except (AttributeError, TypeError):
            pass  # no arrays
        if instance is None:
            if sizes is None:
                # it raises an error about the arrays
                instance = Instance(self.program, self.program.variables.read(arrays))
                key = instance.shapes()
            else:
                instance = Instance(self.program, sizes)
        with cython.critical_section(self.instances):
            if instance is not self.last:
                self.instances.pop(key, None)
                self.instances[key] = self.last = instance
                if len(self.instances) > MAX_INSTANCES:
                    del self.instances[next(iter(self.instances))]
        return instance

    cdef Frame _take(self, Instance instance, Stop stop):
        """Return a frame for a run; the caller must give it back."""
        cdef Frame frame = _as_frame(self.pool.take(self.program, stop))
        try:
            self._make_ready(frame, instance)
        except BaseException:
            self.pool.give_back(frame)
            raise
        return frame

    cdef int _make_ready(self, Frame frame, Instance instance) except -1:
        if frame.instance is not instance or frame.arena is None:
            try:
                frame.adopt(instance)
            finally:
                self.pool.count(frame)
        if frame.generation != <int64_t>self.weights.generation:
            frame.bind_weights(self.weights)
        if frame.need > frame.most:
            frame.most = frame.need
        return 0

    cdef list _run(self, arrays, out, sizes, Stop stop, list spans):
        cdef Program program = self.program
        cdef list outputs = []
        if len(arrays) != program.n_inputs:
            raise InputError(f"expected {program.n_inputs} inputs, got {len(arrays)}")
        if out is not None and len(out) != len(program.outputs):
            raise InputError(f"out: expected {len(program.outputs)} arrays, got {len(out)}")
        cdef Instance instance = self._instance(arrays, sizes) if program.dynamic else self.last
        if instance.native and self.pool.is_busy():
            self.pool.do(RunJob(self, instance, arrays, out, stop, spans, outputs))
            return outputs
        cdef Frame frame = self._take(instance, stop)
        try:
            self._compute(frame, arrays, out, stop, spans, outputs)
        finally:
            self.pool.give_back(frame)
        return outputs

    cdef int _compute(
        self, Frame frame, arrays, out, Stop stop, list spans, list outputs
    ) except -1:
        """Run with the caller's arrays; append the outputs to ``outputs``."""
        cdef Program program = self.program
        cdef Instance instance = frame.instance
        cdef Py_ssize_t i
        cdef External external
        cdef void **bases = <void **>frame.bases.data
        cdef list held = []  # copies made of inputs that are not contiguous
        for i in range(program.n_inputs):
            bases[i] = _input_address(
                instance.inputs[i], arrays[i], i in program.overwritten, held
            )
        for i in range(program.n_external - program.n_inputs):
            external = instance.outputs[i]
            if out is None or out[i] is None:
                array = frame.fresh(i, external)
            else:
                array = check_output(external.spec, out[i], [*arrays, *outputs])
            bases[program.n_inputs + i] = _address(array)
            outputs.append(array)
        frame.bind()
        if spans is None:
            return frame.run(NULL, stop)
        return self._record(frame, stop, spans)

    cdef int _record(self, Frame frame, Stop stop, list spans) except -1:
        """Run, and append times to ``spans``: per step, per worker, begin and end."""
        cdef Py_ssize_t i
        cdef Py_ssize_t workers = self.program.workers
        cdef Py_ssize_t count = len(self.program.steps)
        cdef Buffer record = Buffer(count * workers * sizeof(taper_span))
        cdef taper_span *span = <taper_span *>record.data
        frame.run(span, stop)
        for i in range(0, count * workers, workers):
            spans.append(
                [(span[w].begin, span[w].end, span[w].times) for w in range(i, i + workers)]
            )
        return 0


cdef Frame _as_frame(PooledFrame pooled):
    """Return a pooled frame as a Frame; a new one of the pool is replaced by one."""
    if type(pooled) is Frame:
        return <Frame>pooled
    cdef Frame frame = Frame.__new__(Frame)
    frame.owner = pooled.owner
    return frame
