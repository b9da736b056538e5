"""Compile programs of OpenInfer to plans: ``taper compile program.oi model.oinf -o model.taper``.

>>> plan = compile_program("decoder.oi", "decoder.oinf")
>>> plan.save("decoder.taper")

It needs the compiler of taper-frontend, which needs no torch.
"""

from __future__ import annotations

from taper_openinfer.errors import MissingCompilerError

try:
    from taper_openinfer.compiler.to_plan import compile_program
except ModuleNotFoundError as error:
    if error.name != "taper_frontend":
        raise
    raise MissingCompilerError from error

__all__ = ["compile_program"]
