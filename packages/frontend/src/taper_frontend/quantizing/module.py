"""Replace the layers of a module by quantized ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from taper_frontend.compiler.quantization.rounding import Rounded, round_matrix, rounded_to
from taper_frontend.compiler.quantization.schemes import (
    FLOAT32,
    HALVES,
    QuantizationConfig,
    parse_scheme,
    read_quantization,
)
from taper_frontend.errors import ExportError
from taper_frontend.quantizing.correction import round_corrected
from taper_frontend.quantizing.layers import (
    HalfWeight,
    IntegerWeight,
    QuantizedLayer,
    RowQuantizer,
    TensorQuantizer,
)
from taper_frontend.quantizing.makers import Makers, quantize_result
from taper_frontend.quantizing.observers import Observer
from taper_frontend.quantizing.prediction import (
    PREDICTIONS,
    Calls,
    Prediction,
    predict,
    see_calls,
)

#: Batches of calibration data: a tensor, a tuple of arguments, or a dict of named ones each.
Calibration = Iterable[Any]

#: The bytes of matrices that one pass over the calibration data collects for the correction.
_COLLECTED = 1 << 30

#: The largest product of two bytes less a zero point.
_MOST = 255 * 128

_BY_CHANNEL = parse_scheme("int8")


class _Layer:
    """A layer that may be quantized: a module of torch, and how its weight is a matrix."""

    def __init__(self, name: str, module: nn.Module, parent: nn.Module, key: str) -> None:
        self.name, self.module, self.parent, self.key = name, module, parent, key
        self.is_transposed = _is_conv1d_of_transformers(module)
        self.is_linear = self.is_transposed or isinstance(module, nn.Linear)
        self.scheme = _BY_CHANNEL
        self.observer = Observer(name)
        self.squares: torch.Tensor | None = None
        self.rounded: Rounded | None = None
        self.calls = Calls()
        self.maker: str | None = None

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight with the outputs first."""
        weight = self.module.get_parameter("weight").detach()
        return weight.T if self.is_transposed else weight

    @property
    def rows(self) -> int:
        """Return the number of products in a sum."""
        return self.weight[0].numel()

    def matrix(self) -> np.ndarray:
        """Return the weight as float32 ``[K, N]``."""
        found: np.ndarray = self.weight.reshape(len(self.weight), -1).float().cpu().numpy().T
        return found

    def function(self) -> Callable[..., torch.Tensor]:
        """Return the function that computes the layer from its input, weight and bias."""
        if self.is_linear:
            return functional.linear
        module = self.module

        def convolve(x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
            result: torch.Tensor = module._conv_forward(x, weight, bias)  # type: ignore[operator]
            return result

        return convolve


def quantize(
    module: nn.Module,
    config: QuantizationConfig | str = "int8",
    calibration: Calibration | None = None,
) -> nn.Module:
    """Quantize the linear layers and convolutions of a module.

    Parameters
    ----------
    module : torch.nn.Module
        In eval mode; it is not changed.
    config : QuantizationConfig or str
        What to quantize, or a name: ``"int8_dynamic"`` and ``"int8_static"`` multiply bytes,
        ``"int4"`` and other schemes (:func:`.parse_scheme`) quantize weights alone.
    calibration : iterable, optional
        Batches of typical inputs: tensors, tuples of arguments, or dicts of named ones. They choose
        the ranges of static activations, and correct integers of fewer than 8 bits.

    Returns
    -------
    torch.nn.Module
        A copy of the module that computes with the quantized numbers. It exports as any other;
        where its input is quantized, too, the plan multiplies bytes. A layer that the cost model
        predicts to be slower so stays float32, unless ``all_layers`` asks for all; sizes are those
        of the calibration, so without it none stays. The plan's ``metadata["quantized"]`` has the
        predictions.

    Raises
    ------
    ExportError
        If nothing can be quantized, static activations have no calibration, the calibration is
        empty, does not reach a layer or is not finite, or a weight cannot have its scheme: the
        message names the layer.
    """
    options = read_quantization(config)
    if options.max_bytes is not None or options.max_error is not None:
        raise ExportError("max_bytes, max_error: expected None for a module; quantize its plan")
    if options.activations in ("rounded", "grouped"):
        raise ExportError(
            "activations: expected '', 'dynamic' or 'static' for a module, got "
            f"{options.activations!r}; pass it to export or quantize_plan"
        )
    if options.activations == "static" and calibration is None:
        raise ExportError("calibration: expected data for activations='static', got None")
    module = copy.deepcopy(module)
    layers = _layers(module, options)
    if not layers:
        raise ExportError(
            "expected a module with linear layers to quantize, got none; activations='static' "
            "quantizes convolutions too"
            if options.activations == "dynamic"
            else "expected a module with linear layers or convolutions to quantize, got none"
        )
    if calibration is not None:
        if isinstance(calibration, str) or not isinstance(calibration, Iterable):
            raise ExportError(
                f"calibration: expected an iterable of batches, got {type(calibration).__name__}"
            )
        _calibrate(module, layers, options, list(calibration))
    predictions = _predictions(layers, options)
    slower = {each.name for each in predictions if each.computes == FLOAT32}
    layers = [layer for layer in layers if layer.name not in slower]
    shared = _shared_quantizers(layers, options)
    refused: list[str] = []
    for layer in layers:
        try:
            is_bytes = layer.maker in shared
            setattr(layer.parent, layer.key, _quantized(layer, options, is_bytes=is_bytes))
        except ExportError as error:
            refused.append(str(error))
    if refused:
        raise ExportError("\n".join(refused))
    for maker, quantizer in shared.items():
        quantize_result(module.get_submodule(maker), quantizer)
    _read_submodules(module)
    if predictions:
        setattr(module, PREDICTIONS, [each._asdict() for each in predictions])
    return module


def _predictions(layers: list[_Layer], options: QuantizationConfig) -> list[Prediction]:
    """Return the predicted times of the layers whose activations may be quantized."""
    found = []
    for layer in layers:
        if not options.activations or layer.scheme.dtype != "int" or not layer.calls.are_known:
            continue
        by_rows = options.activations == "dynamic"
        seven_bits = options.reduce_range and not by_rows
        times = predict(
            layer.module, layer.rows, layer.calls, by_rows=by_rows, seven_bits=seven_bits
        )
        stays = times.is_slower and not options.all_layers
        int8, float32 = (round(ns / 1e3, 2) for ns in times)
        found.append(Prediction(layer.name, FLOAT32 if stays else "int8", int8, float32))
    return found


def _layers(module: nn.Module, options: QuantizationConfig) -> list[_Layer]:
    """Return the layers to quantize, each once, with their schemes."""
    found: dict[int, _Layer] = {}
    for path, parent in module.named_modules(remove_duplicate=False):
        for key, child in parent.named_children():
            if not _is_layer(child):
                continue
            name = f"{path}.{key}" if path else key
            if id(child) in found:
                raise ExportError(f"layer {name!r}: expected layers of one place, got one of two")
            found[id(child)] = _Layer(name, child, parent, key)
    options.check_patterns([f"{layer.name}.weight" for layer in found.values()])
    chosen = []
    for layer in found.values():
        scheme = options.named([f"{layer.name}.weight"]) or options.default
        if not layer.is_linear and scheme.dtype == "int":
            scheme = _BY_CHANNEL  # no kernel reads a convolution's weight in groups
        scheme = scheme.fitting(layer.rows)
        if options.activations == "dynamic" and not layer.is_linear:
            continue  # one range for all images would mix those of a batch
        if options.activations and scheme.dtype == "int" and scheme != _BY_CHANNEL:
            raise ExportError(
                f"layer {layer.name!r}: expected 'int8' beside quantized activations, got "
                f"{scheme.name!r}"
            )
        layer.scheme = scheme
        if scheme.dtype != FLOAT32:
            chosen.append(layer)
    return chosen


_TYPES = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _is_layer(module: nn.Module) -> bool:
    """Return whether a module computes one of torch's layers, perhaps as a class of its own.

    The output projection of ``nn.MultiheadAttention`` is never called: that module reads its
    weight.
    """
    kind = type(module)
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        return False
    return _is_conv1d_of_transformers(module) or any(
        isinstance(module, layer)
        and kind.forward is layer.forward
        and getattr(kind, "_conv_forward", None) is getattr(layer, "_conv_forward", None)
        for layer in _TYPES
    )


def _is_conv1d_of_transformers(module: nn.Module) -> bool:
    """Return whether a module is GPT-2's linear layer, whose weight has the inputs first."""
    kind = type(module)
    return (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D")


def _needs_squares(layer: _Layer, options: QuantizationConfig) -> bool:
    return options.correction and layer.is_linear and layer.scheme.bits < 8


def _calibrate(
    module: nn.Module, layers: list[_Layer], options: QuantizationConfig, batches: list[Any]
) -> None:
    """Run the batches, and remember of each layer's input what its scheme needs."""
    if not batches:
        raise ExportError("calibration: expected at least one batch, got none")
    corrected = [layer for layer in layers if _needs_squares(layer, options)]
    observed = layers if options.activations == "static" else []
    for chunk in _chunks(corrected) or [[]]:
        hooks = [layer.module.register_forward_pre_hook(_square(layer)) for layer in chunk]
        hooks += [layer.module.register_forward_pre_hook(_observe(layer)) for layer in observed]
        makers = Makers()
        if observed:
            hooks += makers.watch(module)
            hooks += [
                layer.module.register_forward_pre_hook(_see_maker(layer, makers))
                for layer in observed
                if not layer.is_linear
            ]
        if options.activations:
            hooks += [layer.module.register_forward_hook(_keep_calls(layer)) for layer in layers]
        try:
            _run(module, batches)
        finally:
            for hook in hooks:
                hook.remove()
        for layer in observed:
            layer.maker = makers.of(layer.name)
        observed = []
        for layer in chunk:
            if layer.squares is None:
                continue
            layer.rounded = _corrected(layer)
            layer.squares = None


def _corrected(layer: _Layer) -> Rounded:
    assert layer.squares is not None
    rows, group = layer.rows, layer.scheme.group
    if group and rows % group:
        round_matrix(layer.matrix(), layer.scheme, name=f"{layer.name}.weight")  # says why
    return round_corrected(layer.matrix(), layer.squares.numpy(), layer.scheme)


def _chunks(layers: list[_Layer]) -> list[list[_Layer]]:
    """Return groups of layers whose matrices fit into memory together."""
    chunks: list[list[_Layer]] = []
    used = 0
    for layer in layers:
        nbytes = 8 * layer.rows**2
        if not chunks or used + nbytes > _COLLECTED:
            chunks.append([])
            used = 0
        chunks[-1].append(layer)
        used += nbytes
    return chunks


def _observe(layer: _Layer) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return lambda module, args: layer.observer.see(args[0])


def _see_maker(layer: _Layer, makers: Makers) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return lambda module, args: makers.see(layer.name, args[0])


def _keep_calls(layer: _Layer) -> Callable[..., None]:
    def keep(calls: Calls) -> None:
        layer.calls = calls

    return see_calls(keep)


def _square(layer: _Layer) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def see(module: nn.Module, args: tuple[Any, ...]) -> None:
        x = args[0].detach().reshape(-1, args[0].shape[-1]).double()
        if not x.isfinite().all():
            raise ExportError(
                f"calibration: expected finite numbers at layer {layer.name!r}, got NaN or infinity"
            )
        squares = x.T @ x
        layer.squares = squares if layer.squares is None else layer.squares + squares

    return see


def _run(module: nn.Module, batches: list[Any]) -> None:
    """Run all batches; raise ExportError for the first that the module does not take."""
    with torch.no_grad():
        for index, batch in enumerate(batches):
            try:
                if isinstance(batch, Mapping):
                    module(**batch)
                elif isinstance(batch, tuple | list):
                    module(*batch)
                else:
                    module(batch)
            except ExportError:
                raise
            except Exception as error:  # anyone's code may raise anything
                raise ExportError(
                    f"calibration: expected batches that the module runs, got number {index}, for "
                    f"which it raised {type(error).__name__}: {error}"
                ) from error


def _static_quantizer(layer: _Layer, options: QuantizationConfig) -> TensorQuantizer:
    low, high = layer.observer.range(options.observer)
    return TensorQuantizer.of_range(low, high, reduce_range=options.reduce_range)


def _shared_quantizers(
    layers: list[_Layer], options: QuantizationConfig
) -> dict[str, TensorQuantizer]:
    """Return what quantizes results of modules, by the modules' names.

    Where a convolution reads a module's result, whatever else reads it gets the same bytes: the
    sum behind a block, for one. Then the result lies in memory as bytes alone.
    """
    found: dict[str, list[_Layer]] = {}
    for layer in layers:
        if layer.maker is not None and layer.scheme.dtype == "int":
            found.setdefault(layer.maker, []).append(layer)
    shared = {}
    for maker, readers in found.items():
        ranges = {layer.observer.range(options.observer) for layer in readers}
        if len(ranges) == 1:
            shared[maker] = _static_quantizer(readers[0], options)
    return shared


def _quantized(layer: _Layer, options: QuantizationConfig, *, is_bytes: bool) -> nn.Module:
    """Return the module that takes a layer's place.

    Parameters
    ----------
    layer : _Layer
    options : QuantizationConfig
    is_bytes : bool
        Whether the layer's input is quantized already.
    """
    scheme, name = layer.scheme, f"{layer.name}.weight"
    if scheme.dtype in HALVES:
        return QuantizedLayer(layer.module, HalfWeight(_halves(layer)), layer.function())
    quantizer: nn.Module | None = None
    if options.activations:
        if layer.rows * _MOST >= 2**31:
            raise ExportError(
                f"weight {name!r}: expected sums of at most {(2**31 - 1) // _MOST} products, which "
                f"int32 holds, got {layer.rows}; leave it out with layers={{{name!r}: 'float32'}}"
            )
        if options.activations == "dynamic":
            quantizer = RowQuantizer()
        elif not is_bytes:
            quantizer = _static_quantizer(layer, options)
    rounded = layer.rounded
    if rounded is None:
        rounded = round_matrix(layer.matrix(), scheme, search=options.search, name=name)
    held = IntegerWeight(rounded, scheme, layer.weight.shape)
    return QuantizedLayer(layer.module, held, layer.function(), quantizer)


def _halves(layer: _Layer) -> torch.Tensor:
    array = rounded_to(layer.weight.float().cpu().numpy(), layer.scheme.dtype)
    halves = torch.from_numpy(np.asarray(array, order="C"))
    return halves.view(torch.bfloat16) if layer.scheme.dtype == "bfloat16" else halves


def _read_submodules(module: nn.Module) -> None:
    """Let torch's encoders call their layers, instead of reading the weights of these."""
    for each in module.modules():
        if isinstance(each, nn.TransformerEncoderLayer):
            each.activation_relu_or_gelu = 0
        elif isinstance(each, nn.TransformerEncoder):
            each.use_nested_tensor = False
