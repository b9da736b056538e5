"""Programs of OpenInfer become plans: ``taper compile program.dsl model.oinf -o model.taper``.

>>> plan = compile_program("decoder.dsl", "decoder.oinf")
>>> plan.save("decoder.taper")

It needs numpy and taper_runtime alone.
"""

from __future__ import annotations

from taper_frontend.openinfer.compile import compile_program

__all__ = ["compile_program"]
