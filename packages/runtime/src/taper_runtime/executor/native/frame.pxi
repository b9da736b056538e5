# Memory and pointers of one concurrent run.
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from taper_runtime.errors import InputError
from taper_runtime.formats import decode


cdef struct Poll:
    void *frame     # of the run
    bint elsewhere  # than on the main thread, which alone handles signals


cdef class Frame:
    """What one run at a time needs: an arena, and an instance's image with its own pointers.

    It serves any instance of its program, best the one it served last.
    """

    cdef Instance instance  # whose image it has
    cdef Buffer arena       # with the scratch of workers 1.. behind it
    cdef Buffer image
    cdef Buffer bases       # void *, during a run: the external arrays, then the arena, the image
    cdef object error       # what Python raised during a run

    cdef int adopt(self, Instance instance) except -1:
        """Make it ready for an instance.

        Raises
        ------
        InputError
            If there is no memory for the arena.
        """
        cdef Program program = instance.program
        cdef size_t need = (
            instance.arena_bytes + (program.workers - 1) * instance.worker_scratch_bytes
        )
        self.instance = None
        if self.bases is None:
            self.bases = Buffer((program.n_external + 2) * sizeof(void *))
            self.image = Buffer(program.image_bytes)
        if self.arena is None or self.arena.size < need:
            self.arena = None  # free it first
            try:
                self.arena = Buffer(need)
            except MemoryError as error:
                raise InputError(f"no memory for the {need} bytes that a run needs") from error
        memcpy(self.image.data, instance.image.data, program.image_bytes)
        (<void **>self.bases.data)[program.n_external] = self.arena.data
        (<void **>self.bases.data)[program.n_external + 1] = self.image.data
        self.instance = instance
        self._patch(program.n_external, program.n_external + 2)
        cdef taper_step *step = <taper_step *>self.image.data
        cdef Py_ssize_t i
        for i in range(len(program.steps)):
            if step[i].kernel == &_NUMPY:
                step[i].call.attrs = <void *>self
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

    cdef int run(self, taper_span *spans) except -1:
        """Run all steps; spans may be NULL."""
        cdef Program program = self.instance.program
        cdef taper_run_args args
        cdef taper_status status
        cdef int64_t failed = 0
        cdef Poll poll
        memset(&args, 0, sizeof(args))
        args.steps = <taper_step *>self.image.data
        args.count = (<Body>program.bodies[0]).count
        args.workers = program.workers
        args.worker_scratch = self.arena.data + self.instance.arena_bytes
        args.worker_scratch_bytes = self.instance.worker_scratch_bytes
        args.spans = spans
        poll.frame, poll.elsewhere = <void *>self, False
        args.poll = _poll
        args.poll_context = &poll
        with nogil:
            status = taper_run(&args, &failed)
        if status != TAPER_OK:
            error = self.failure(failed, status)
            self._restore(program.outermost(failed))
            raise error
        return 0

    cdef int _restore(self, Py_ssize_t reached) except -1:
        """Put back what a run that came to step ``reached`` has overwritten of states."""
        cdef Program program = self.instance.program
        cdef taper_step *step = <taper_step *>self.image.data
        cdef Py_ssize_t i
        for i in range(len(program.saved_by) - 1, -1, -1):
            if program.saved_by[i] < reached:
                (<NumpyNode>self.instance.chosen[program.n_run + i]).compute(
                    &step[program.n_run + i].call
                )
        return 0

    cdef object failure(self, int64_t index, taper_status status):
        """What to raise for step ``index``: what Python raised, or the op's own words, if any."""
        cdef Step step = self.instance.program.steps[index]
        cdef NumpyNode node
        error, self.error = self.error, None
        if error is not None:
            return error
        reason = taper_status_string(status).decode()
        if status == TAPER_BAD_INDEX and step.op.check is not None:
            node = self.instance.numpy_node(step)
            arrays = node.operands(&(<taper_step *>self.image.data)[index].call)
            try:
                step.op.check(
                    [
                        None if type_ is None else decode(array, type_)
                        for array, type_ in zip(arrays[:node.n_inputs], node.types)
                    ],
                    node.attrs,
                )
            except InputError as found:
                reason = str(found).removeprefix(f"{step.op.name}: ")
        return InputError(f"node {step.label}: {reason}")


cdef c_bool _poll(void *context) noexcept nogil:
    """What a run does now and then: nothing, where it is not Python's main thread."""
    return (<Poll *>context).elsewhere or _check_signals(<Poll *>context)


cdef c_bool _check_signals(Poll *poll) noexcept with gil:
    """Have Python handle signals, KeyboardInterrupt above all; False where a handler raised."""
    import threading

    try:  # a handler may raise in any of these
        poll.elsewhere = threading.get_ident() != threading.main_thread().ident
        PyErr_CheckSignals()
    except BaseException as error:
        (<Frame>poll.frame).error = error
        return False
    return True
