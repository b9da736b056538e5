"""Compile modules of PyC's form: a list of ops of nine kinds, with options, statuses, statistics.

This is a layer over :func:`.compile_graph` and :func:`.make_plan` with PyC's names and numbers, for
programs that were written for PyC. docs/from-pyc.md tells where each of its promises is kept.
"""

from taper_frontend.compiler.module.compiled_model import CompiledModel, compile_module
from taper_frontend.compiler.module.module_ops import (
    BREAKS,
    KINDS,
    CompileOptions,
    Module,
    ModuleError,
    ModuleOp,
    Status,
    status_name,
)

__all__ = [
    "BREAKS",
    "KINDS",
    "CompileOptions",
    "CompiledModel",
    "Module",
    "ModuleError",
    "ModuleOp",
    "Status",
    "compile_module",
    "status_name",
]
