"""Types of the extension; see _layout.pyx."""

from collections.abc import Sequence

from taper_runtime.plan.liveness import Block

class Precedence:
    def __init__(self, before: Sequence[int]) -> None: ...

def assign_offsets(
    blocks: Sequence[Block], precedence: Precedence | None = None
) -> tuple[list[int], int]: ...
