"""List the stages of the compiler and their passes, each a callable ``(Graph) -> bool``.

A folder holds the passes of one topic. Most run in the stage of the same name; those that move data
run in several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.pipeline import (
    Form,
    Group,
    Pass,
    PassRecord,
    Stage,
    run_pipeline,
    run_until_stable,
)
from taper_frontend.compiler.stages.canonical.absorb_into_matmul import absorb_into_matmul
from taper_frontend.compiler.stages.canonical.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from taper_frontend.compiler.stages.canonical.eliminate_dead_code import eliminate_dead_code
from taper_frontend.compiler.stages.canonical.fold_constants import fold_constants
from taper_frontend.compiler.stages.canonical.hoist_invariants import hoist_invariants
from taper_frontend.compiler.stages.canonical.inline_blocks import inline_blocks
from taper_frontend.compiler.stages.canonical.mix_in_place import mix_in_place
from taper_frontend.compiler.stages.canonical.prune_operands import prune_operands
from taper_frontend.compiler.stages.canonical.remove_noops import remove_noops
from taper_frontend.compiler.stages.canonical.simplify_arithmetic import simplify_arithmetic
from taper_frontend.compiler.stages.canonical.simplify_concatenations import (
    simplify_concatenations,
)
from taper_frontend.compiler.stages.canonical.simplify_positions import simplify_positions
from taper_frontend.compiler.stages.movement.hoist_reshapes import hoist_reshapes
from taper_frontend.compiler.stages.movement.permutations import (
    absorb_output_transpose,
    hoist_permutations,
    sink_permutations,
)
from taper_frontend.compiler.stages.movement.selections import merge_selections
from taper_frontend.compiler.stages.recognition.absorb_causal_mask import absorb_causal_mask
from taper_frontend.compiler.stages.recognition.absorb_repeated_heads import absorb_repeated_heads
from taper_frontend.compiler.stages.recognition.absorb_widened_keys import absorb_widened_keys
from taper_frontend.compiler.stages.recognition.recognize_activations import recognize_activations
from taper_frontend.compiler.stages.recognition.recognize_attention import recognize_attention
from taper_frontend.compiler.stages.recognition.recognize_norms import recognize_norms
from taper_frontend.compiler.stages.recognition.recognize_softmax import recognize_softmax
from taper_frontend.compiler.stages.schedule.fuse_elementwise import fuse_elementwise
from taper_frontend.compiler.stages.schedule.fuse_epilogues import fuse_epilogues
from taper_frontend.compiler.stages.schedule.move_scales import move_scales
from taper_frontend.compiler.stages.schedule.sink_reshapes import sink_reshapes
from taper_frontend.compiler.stages.schedule.split_into_microbatches import split_into_microbatches
from taper_frontend.compiler.stages.schedule.split_into_row_tiles import split_into_row_tiles
from taper_frontend.compiler.stages.schedule.turn_halves import turn_halves
from taper_frontend.compiler.stages.weights.absorb_padding import absorb_padding
from taper_frontend.compiler.stages.weights.expand_quantization import expand_quantization
from taper_frontend.compiler.stages.weights.fold_packing import fold_packing
from taper_frontend.compiler.stages.weights.fold_scales import fold_scales
from taper_frontend.compiler.stages.weights.keep_quantized import keep_quantized
from taper_frontend.compiler.stages.weights.merge_parallel_matmuls import merge_parallel_matmuls
from taper_frontend.compiler.stages.weights.merge_summed_products import merge_summed_products
from taper_frontend.compiler.stages.weights.multiply_quantized import multiply_quantized
from taper_frontend.compiler.stages.weights.pack_weights import pack_weights
from taper_frontend.compiler.stages.weights.quantize_before_joining import (
    quantize_before_joining,
)
from taper_frontend.compiler.stages.weights.sink_dequantization import sink_dequantization
from taper_frontend.compiler.stages.weights.transform_weights import transform_weights

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph

__all__ = [
    "PIPELINE",
    "STAGES",
    "Form",
    "Group",
    "Pass",
    "PassRecord",
    "Stage",
    "run_pipeline",
    "run_until_stable",
]


def simplify_blocks(graph: Graph) -> bool:
    """Bring the blocks of control flow into canonical form."""
    blocks = [block for node in graph.order() for block in node.blocks]
    changed = [run_until_stable(block, _SIMPLIFY) for block in blocks]
    return any(changed)


#: The canonical form: one spelling for everything, and each value computed once.
_SIMPLIFY: tuple[Pass, ...] = (
    remove_noops,  # torch's casts, views and expands without effect hide patterns
    simplify_concatenations,  # so do tensors that are joined and split again
    simplify_arithmetic,
    absorb_into_matmul,  # before folding, which would store transposed copies of weights
    fold_constants,  # masks, positions, casts: everything that depends on no input
    simplify_positions,  # the same for varying sizes
    eliminate_common_subexpressions,  # repeated terms of a formula become one tensor
    eliminate_dead_code,  # dead readers would count as consumers
    simplify_blocks,
    inline_blocks,
    hoist_invariants,
    prune_operands,
)

_RECOGNIZE: tuple[Pass, ...] = (
    recognize_softmax,  # before attention, which contains it
    recognize_norms,
    recognize_activations,
    recognize_attention,
    absorb_causal_mask,  # half the work, and no mask to read
    absorb_repeated_heads,
    absorb_widened_keys,
)

_SIMPLE = (
    Form("no movement that moves nothing", remove_noops),
    Form("no concatenation that is cut apart again", simplify_concatenations),
    Form("no arithmetic that has a simpler form", simplify_arithmetic),
    Form("no transpose or factor that a MATMUL can take over", absorb_into_matmul),
    Form("no computed value that no input decides", fold_constants),
    Form("no mask or lookup that positions decide", simplify_positions),
    Form("no value that is computed twice", eliminate_common_subexpressions),
    Form("no value that nothing needs", eliminate_dead_code),
    Form("no block that is run once or never", inline_blocks),
    Form("no value that every step of a loop computes alike", hoist_invariants),
    Form("no operand or result of control flow that nothing needs", prune_operands),
)

_RECOGNIZED = (
    Form("no softmax written out", recognize_softmax),
    Form("no norm written out", recognize_norms),
    Form("no activation written out", recognize_activations),
    Form("no attention written out", recognize_attention),
    Form("no mask of attention that is causal", absorb_causal_mask),
    Form("no heads repeated for attention", absorb_repeated_heads),
    Form("no keys and values widened for attention", absorb_widened_keys),
)

#: The pipeline. Each stage is a pass with a form that the graph has after it.
STAGES: tuple[Stage, ...] = (
    Stage(
        "canonical form",
        steps=(
            Group(*_SIMPLIFY),
            mix_in_place,  # before the permutations around it sink
            Group(sink_permutations),  # norms are recognized when channels are the last axis
        ),
        keeps=_SIMPLIFY,
        form=_SIMPLE,
    ),
    Stage(
        "recognition",
        steps=(Group(*_RECOGNIZE),),
        keeps=(*_SIMPLIFY, sink_permutations),
        form=(*_SIMPLE, *_RECOGNIZED),
    ),
    Stage(
        "movement",
        steps=(
            Group(hoist_reshapes),  # bmm and addmm get their batch dimensions back
            absorb_output_transpose,  # the reshape after it becomes free
            merge_selections,  # windows that are shifted and split
        ),
        keeps=(*_SIMPLIFY, sink_permutations, *_RECOGNIZE),
        form=(*_SIMPLE, *_RECOGNIZED),
    ),
    Stage(
        "weights",
        steps=(
            sink_dequantization,  # before products look for what decodes their operands
            quantize_before_joining,  # before multiply_quantized looks for bytes
            multiply_quantized,  # before weights alone are kept
            keep_quantized,  # before scales go into weights
            expand_quantization,  # of what no product has taken
            Group(
                fold_scales,  # batch norm
                merge_summed_products,  # whose biases are separate nodes now
                absorb_padding,
            ),
            merge_parallel_matmuls,
            transform_weights,  # before the others are packed
            pack_weights,
            fold_packing,  # the last one to change weights
        ),
        keeps=_SIMPLIFY,
        form=(
            *_SIMPLE,
            Form("no quantization that is not elementwise", expand_quantization),
            Form("no scale or shift beside a weight that can take it", fold_scales),
            Form("no constant weight that a kernel reads packed and that is not", pack_weights),
        ),
    ),
    Stage(
        "schedule",
        steps=(
            # from between a product and its activation; halves where permutations have moved to
            Group(sink_reshapes, sink_permutations, turn_halves),
            fuse_elementwise,
            fuse_epilogues,  # the rest beside a product, as one program
            hoist_permutations,  # those that no product has absorbed
            remove_noops,
            split_into_microbatches,  # after all passes that look for neighbours
            move_scales,  # for a single image, whose factors all rows share
            split_into_row_tiles,  # of each image
        ),
        keeps=(remove_noops, eliminate_common_subexpressions, eliminate_dead_code),
        form=(
            Form("no movement that moves nothing", remove_noops),
            Form("no halves that are copied to be exchanged", turn_halves),
            Form("no chain of elementwise nodes", fuse_elementwise),
            Form("no elementwise node that a product can take as its epilogue", fuse_epilogues),
        ),
    ),
)

#: The same as a list of steps, which can be copied and shortened.
PIPELINE: list[Pass] = [pass_ for stage in STAGES for pass_ in stage.passes()]
