"""Select the kernel that serves a node; a part of ``_kernels.pyx``.

:class:`Selection` holds the candidates for a node, and the one that serves it.
"""
from libc.stdint cimport int32_t
from libc.string cimport memset

from taper_runtime.native.taper cimport *

from taper_runtime.base.errors import InternalError


cdef class Selection:
    """Candidates for a node, the kernel that serves it, and why those before it do not."""

    @property
    def kernel_name(self):
        """Return the name of the node's kernel or server; None for numpy, or if there is none."""
        if self.chosen is not None:
            return self.chosen.kernel.name.decode()
        if self.server is None or self.server.kind == "numpy":
            return None
        return self.server.node.server

    @property
    def variant(self):
        """Return the name of the chosen kernel's variant; None where it has one way only."""
        return _variants_of(&self.chosen.kernel)[self.number - 1].name if self.number else None

    @property
    def kind(self):
        """Return what serves the node: "native", "user", "delegate", "numpy", or None."""
        if self.chosen is not None:
            return "native" if self.chosen.library is None else "user"
        return None if self.server is None else self.server.kind

    @property
    def refused(self):
        """Return the candidates before the chosen one, in order, each with the reason."""
        names = [(<Kernel>each).name for each in self.candidates]
        return list(zip(names, self.reasons))


cdef bint _prepare_as(
    Kernel kernel, KernelAttrs attrs, int32_t variant, taper_step *step, char *state
) except -1:
    """Let a kernel prepare a step as one of its variants, from 1 on; 0: the kernel chooses."""
    memset(state, 0, kernel.kernel.state_bytes)
    memset(&step.work, 0, sizeof(taper_work))
    step.call.kernel = &kernel.kernel
    step.call.attrs = attrs.struct.data
    step.call.state = state
    step.call.variant = variant
    step.work.phases = 1
    if kernel.kernel.prepare(&step.call, &step.work) != TAPER_OK:
        return False
    if kernel.library is not None:
        _check_work(kernel, &step.work)
    return True


cdef Selection select_kernel(
    list candidates, dict attrs, dict made, taper_step *step, char *state, choice=None, node=None
):
    """Prepare one of the candidates that take the step's tensors: the first if there is no choice.

    ``made`` has the node's ``attrs`` as kernels take them, by kernel; missing ones are added.
    ``choice`` is a Choice, and ``node`` the ChosenNode that it gets.
    """
    cdef Kernel candidate
    cdef Selection selection = Selection.__new__(Selection)
    cdef list offers, ways
    cdef int32_t variant, own
    selection.candidates, selection.reasons = candidates, []
    offers, ways, refused = [], [], []
    for candidate in candidates:
        if not taper_kernel_takes(&candidate.kernel, &step.call):
            selection.reasons.append("it takes tensors of other dtypes or formats")
            continue
        selection.attrs = made.get(candidate)
        if selection.attrs is None:
            selection.attrs = made[candidate] = _kernel_attrs(&candidate.kernel, attrs)
        if not _prepare_as(candidate, selection.attrs, 0, step, state):
            selection.reasons.append("it does not serve these shapes, strides or attrs")
            continue
        if choice is None:
            selection.chosen, selection.number = candidate, step.work.variant
            return selection
        own = step.work.variant
        variants = _variants_of(&candidate.kernel)
        offers.append(_offer(candidate, variants, bool(offers), step))
        ways.append((candidate, selection.attrs, own))
        for variant in range(1, len(variants) + 1):
            if variant == own:
                continue
            if _prepare_as(candidate, selection.attrs, variant, step, state):
                offers.append(_offer(candidate, variants, ways[0][0] is not candidate, step))
                ways.append((candidate, selection.attrs, variant))
            else:
                refused.append((
                    f"{variants[variant - 1].name} ({candidate.name})",
                    "it does not serve these shapes, strides or attrs",
                ))
        selection.reasons.append("another kernel was chosen")
    if choice is not None:
        told = [each for each in selection.refused if each[1] != "another kernel was chosen"]
        index = choice.choose(node, offers, [*told, *refused])
        if index is not None:
            selection.chosen, selection.attrs, variant = ways[index]
            if not _prepare_as(selection.chosen, selection.attrs, variant, step, state):
                name = selection.chosen.name
                raise InternalError(f"kernel {name!r} refuses a node that it accepted before")
            selection.number = step.work.variant
            selection.threads = choice.threads(node, offers[index])
            del selection.reasons[candidates.index(selection.chosen):]
    return selection


cdef object _offer(Kernel kernel, variants, other, const taper_step *step):
    """Return the offer of a prepared step; ``other``: whether it is not of the first kernel."""
    from taper_runtime.native.variants import Offer

    cdef const taper_work *work = &step.work
    variant = variants[work.variant - 1] if work.variant else None
    return Offer(
        kernel.name,
        None if variant is None else variant.name,
        other or (variant is not None and step.call.variant != 0 and variant.other_bits),
        work.tasks,
        work.scratch_bytes,
        work.extra_flops,
        work.scratch_traffic,
    )
