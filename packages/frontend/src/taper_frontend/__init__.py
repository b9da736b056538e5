"""Export PyTorch models to plans that taper_runtime runs without torch.

>>> plan = taper_frontend.export(module, args)
>>> plan.save("model.taper")

Several exports over the same weights and states become one plan with several entries:

>>> taper_frontend.join_plans({"prefill": export(...), "decode": export(...)})

``export``, ``export_encoder``, ``explain`` and ``load_quantized`` need torch, which is imported
when one of them is first used. Where it is not installed, ``export`` takes PT2 archives alone. The
compiler, :mod:`taper_frontend.compiler`, needs numpy and taper_runtime alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.errors import ExportError, ExportWarning, UnsupportedNodesError

if TYPE_CHECKING:
    from taper_frontend.compiler.planning import join_plans
    from taper_frontend.compiler.quantization.schemes import QuantizationConfig
    from taper_frontend.decoders.decoder_exporter import export_decoder
    from taper_frontend.encoders.encoder_exporter import export_encoder
    from taper_frontend.explainer import explain
    from taper_frontend.exporter import export
    from taper_frontend.quantized_checkpoint.load import load_quantized
    from taper_frontend.quantized_plan import quantize_plan, sensitivity
    from taper_frontend.quantizing.module import quantize
    from taper_frontend.verify.trials import VerificationError

__version__ = "0.1.0"

__all__ = [
    "ExportError",
    "ExportWarning",
    "QuantizationConfig",
    "UnsupportedNodesError",
    "VerificationError",
    "explain",
    "export",
    "export_decoder",
    "export_encoder",
    "join_plans",
    "load_quantized",
    "quantize",
    "quantize_plan",
    "sensitivity",
]

#: Names whose modules are imported when they are used, with their modules: most import torch.
_LATER = {
    "join_plans": "taper_frontend.compiler.planning",
    "QuantizationConfig": "taper_frontend.compiler.quantization.schemes",
    "quantize": "taper_frontend.quantizing.module",
    "quantize_plan": "taper_frontend.quantized_plan",
    "sensitivity": "taper_frontend.quantized_plan",
    "VerificationError": "taper_frontend.verify.trials",
    "explain": "taper_frontend.explainer",
    "export": "taper_frontend.exporter",
    "export_decoder": "taper_frontend.decoders.decoder_exporter",
    "export_encoder": "taper_frontend.encoders.encoder_exporter",
    "load_quantized": "taper_frontend.quantized_checkpoint.load",
}


def __getattr__(name: str) -> Any:
    """Import a name that needs torch on first use.

    Raises
    ------
    ImportError
        If torch is not installed, saying what to install.
    """
    from importlib import import_module

    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_LATER[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        if name == "export":
            return _archive_exporter()
        raise ImportError(
            f"taper_frontend.{name} needs torch; install it with "
            "`pip install 'taper-frontend[torch]'`",
            name="torch",
        ) from error
    globals()[name] = value
    return value


def _archive_exporter() -> Any:
    """Return the function that exports PT2 archives without torch."""
    try:
        from taper_frontend.archive_exporter import export_archive
    except ModuleNotFoundError as error:
        if error.name != "sympy":
            raise
        raise ImportError(
            "taper_frontend.export needs torch, or sympy for PT2 archives alone; install one with "
            "`pip install 'taper-frontend[torch]'` or `pip install 'taper-frontend[pt2]'`",
            name="torch",
        ) from error
    return export_archive
