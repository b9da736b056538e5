"""Types of the extension; see _instance.pyx."""

from collections.abc import Sequence

from taper_runtime.plan.liveness import Block

def assign_offsets(blocks: Sequence[Block]) -> tuple[list[int], int]: ...
