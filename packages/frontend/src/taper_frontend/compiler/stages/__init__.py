"""Passes over the graph: each a callable ``(Graph) -> bool``, one file each."""

from __future__ import annotations

from taper_frontend.compiler.pipeline import (
    Group,
    Pass,
    PassRecord,
    run_pipeline,
    run_until_stable,
)
from taper_frontend.compiler.stages.canonical.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from taper_frontend.compiler.stages.canonical.eliminate_dead_code import eliminate_dead_code
from taper_frontend.compiler.stages.canonical.fold_constants import fold_constants
from taper_frontend.compiler.stages.canonical.remove_noops import remove_noops
from taper_frontend.compiler.stages.canonical.simplify_arithmetic import simplify_arithmetic
from taper_frontend.compiler.stages.canonical.simplify_positions import simplify_positions
from taper_frontend.compiler.stages.movement.hoist_reshapes import hoist_reshapes
from taper_frontend.compiler.stages.movement.mix_in_place import mix_in_place
from taper_frontend.compiler.stages.movement.permutations import (
    absorb_output_transpose,
    read_permuted,
    sink_permutations,
)
from taper_frontend.compiler.stages.movement.selections import merge_selections
from taper_frontend.compiler.stages.movement.sink_reshapes import sink_reshapes
from taper_frontend.compiler.stages.recognition.absorb_causal_mask import absorb_causal_mask
from taper_frontend.compiler.stages.recognition.absorb_repeated_heads import absorb_repeated_heads
from taper_frontend.compiler.stages.recognition.recognize_activations import recognize_activations
from taper_frontend.compiler.stages.recognition.recognize_attention import recognize_attention
from taper_frontend.compiler.stages.recognition.recognize_norms import recognize_norms
from taper_frontend.compiler.stages.recognition.recognize_softmax import recognize_softmax
from taper_frontend.compiler.stages.schedule.fuse_elementwise import fuse_elementwise
from taper_frontend.compiler.stages.schedule.fuse_epilogues import fuse_epilogues
from taper_frontend.compiler.stages.schedule.split_batch import split_batch
from taper_frontend.compiler.stages.schedule.split_into_bands import split_into_bands
from taper_frontend.compiler.stages.weights.absorb_into_matmul import absorb_into_matmul
from taper_frontend.compiler.stages.weights.absorb_padding import absorb_padding
from taper_frontend.compiler.stages.weights.fold_packing import fold_packing
from taper_frontend.compiler.stages.weights.fold_scales import fold_scales
from taper_frontend.compiler.stages.weights.merge_parallel_matmuls import merge_parallel_matmuls
from taper_frontend.compiler.stages.weights.merge_summed_products import merge_summed_products
from taper_frontend.compiler.stages.weights.move_scales import move_scales
from taper_frontend.compiler.stages.weights.pack_weights import pack_weights
from taper_frontend.compiler.stages.weights.transform_weights import transform_weights

__all__ = ["PIPELINE", "Group", "Pass", "PassRecord", "run_pipeline", "run_until_stable"]

#: What :func:`taper_frontend.export` runs, in order. A list: copy it and change the copy.
PIPELINE: list[Pass] = [
    Group(
        remove_noops,  # torch's casts, views and expands that do nothing hide every pattern below
        simplify_arithmetic,  # one spelling for what can be spelled in several ways
        absorb_into_matmul,  # before folding, which would store weights a second time, transposed
        fold_constants,  # masks, positions, casts: what no input decides
        simplify_positions,  # the same where sizes vary
        eliminate_common_subexpressions,  # a formula's repeated terms become one tensor
        eliminate_dead_code,  # readers that nobody reads would count as consumers
    ),
    mix_in_place,  # before the permutations around it sink
    Group(
        sink_permutations,  # before norms are recognized: channels are the last axis then
        remove_noops,  # where two of them meet
        fold_constants,  # permuted weights
        fold_scales,  # batch norm
        merge_summed_products,  # whose biases are apart now
        absorb_padding,
        eliminate_common_subexpressions,
    ),
    recognize_softmax,  # before attention, which is made of it
    recognize_norms,
    recognize_activations,  # before fusion: one good kernel instead of a dozen micro-ops
    Group(
        hoist_reshapes,  # bmm and addmm get their batch dimensions back
        sink_permutations,  # past the reshapes that came between
        remove_noops,  # and the reshapes meet and cancel
        absorb_into_matmul,  # scale factors that a reshape stood in front of
        eliminate_common_subexpressions,  # reshapes hoisted twice
    ),
    recognize_attention,
    Group(
        fold_constants,  # masks that attention has put together
        simplify_positions,
        absorb_causal_mask,  # half the work, and no mask to read
        absorb_repeated_heads,
        sink_permutations,  # past the reshapes that this leaves
        remove_noops,
        eliminate_common_subexpressions,
    ),
    absorb_output_transpose,  # the reshape after it becomes free
    merge_parallel_matmuls,  # after attention, which reads the slices; before biases are epilogues
    merge_selections,  # windows that are shifted and cut
    Group(
        sink_reshapes,  # what stands between a product and its activation
        sink_permutations,  # what stood before them
        remove_noops,  # and the reshapes meet, or there would be two in the way of the next
    ),
    fuse_elementwise,
    fuse_epilogues,  # what is left beside a product, as one program
    read_permuted,  # what no product has taken
    remove_noops,
    transform_weights,  # before the others are packed
    pack_weights,
    fold_packing,  # last to touch weights
    split_batch,  # after all that looks for neighbours
    move_scales,  # where one image is left, whose factors all rows share
    split_into_bands,  # of each image
    eliminate_common_subexpressions,  # bands of one tensor for several readers
    eliminate_dead_code,
]
