# cython: language_level=3
"""The binding to the kernel library: describe a node, prepare it, run a whole plan in one call.

There is no per-op code here. Attr structs are filled from the kernels' own descriptors, and ops
meet kernels by name. One extension module, because there is one kernel library in it and one
thread pool in that; its parts lie in ``native/``, each read after those it builds on:

- ``buffer``: :class:`Buffer`, memory that C reads and writes.
- ``library``: what the kernel library tells: ISA levels, kernels, the machine's limits.
- ``node``: :class:`PreparedNode`, one node that a kernel accepted. Shapes and attrs are fixed; data
  pointers are not part of it.
- ``arena``: :func:`assign_offsets`, offsets of blocks that are needed at different steps.
- ``sizes``: ``SizeCode``, all sizes of a program evaluated at once.
- ``step``: ``Step``, a node of a plan and where its operands lie, whatever the sizes are.
- ``instance``: ``Instance``, a program for one set of sizes: the table evaluated, nodes prepared,
  the arena laid out. A static plan has one; of others the latest are kept, by the inputs' shapes.
- ``frame``: ``Frame``, everything one concurrent run of an instance needs but the arena, which
  instances share: a step array with resolved pointers, and what to patch when the external arrays
  and the arena are known. Frames and arenas are pooled; a run takes one of each.
- ``arrays``: addresses of the caller's arrays.
- ``program``: :class:`Program`, a plan's executed nodes, run as a whole.
"""
from taper_runtime.executor.taper cimport *

include "native/buffer.pxi"
include "native/library.pxi"
include "native/node.pxi"
include "native/arena.pxi"
include "native/sizes.pxi"
include "native/step.pxi"
include "native/numpy_node.pxi"
include "native/instance.pxi"
include "native/frame.pxi"
include "native/arrays.pxi"
include "native/program.pxi"
