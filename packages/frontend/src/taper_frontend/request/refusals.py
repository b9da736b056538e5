"""Summarize torch's errors of a capture: what, where in the model, what to do."""

from __future__ import annotations

import os
import re
import traceback
from typing import TYPE_CHECKING

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.utils.rnn import PackedSequence

from taper_frontend.lowering.source_line import describe_line
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.request.dims import Axis

_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep

#: Text that torch adds to its errors about itself.
_ABOUT_TORCH = re.compile(
    r"\n\nThe error above occurred when calling torch\.export.*|"
    r" For more information, run with TORCH_LOGS=\S+|"
    r" If this type holds tensors, you need to register a pytree for it\..*",
    re.DOTALL,
)

#: torch.export treats a dim of 1 as a special case, and guards against it at every layer.
_GUARD_OF_ONE = re.compile(r"Not all values of .* satisfy the generated guard .* != 1\b")
_HINT_OF_ONE = (
    "hint: for the smallest sizes in range a dim inside the model would be 1, which torch.export "
    "treats as a special case; give the Dim a larger min"
)

_HINT_OF_PACKED = (
    "hint: the sizes of packed sequences depend on their lengths, which torch cannot capture; give "
    "the layer the padded tensor, set the steps behind each length to 0 with a mask, and take each "
    "last state with torch.gather at length - 1"
)

_WITHOUT_CACHE = (
    "pass use_cache=False, or decode with a static cache as docs/how-to/transformers.md does"
)
CACHE_HINT = (
    "call transformers.integrations.executorch.register_dynamic_cache_export_support(), so that "
    "torch.export takes the tensors of a cache that grows as inputs and outputs; or "
    f"{_WITHOUT_CACHE}"
)

_BRANCH = (
    "the model reads a number from a tensor and branches on it, which torch.export cannot "
    "capture; compute both results and choose with torch.where, use torch.cond, pass the "
    "number as an argument, or keep it in a buffer if it is the same in every call"
)
_MASKS_OF_COND = (
    "torch's cond compares the strides of its branches' results, and values decide them, as of "
    "x[:, mask]; return the masks from the branches, and select after the cond: x[rows][:, columns]"
)
_CHECKS_OF_DISTRIBUTION = (
    "torch.distributions checks arguments by their values, and torch.export cannot capture the "
    "branch; make the distribution with validate_args=False, or call "
    "torch.distributions.Distribution.set_default_validate_args(False) before the export"
)
_ROWS_OF_SCAN = (
    "torch's scan asks how many rows there are, and values decide that, as of x[mask]; scan all "
    "rows, give the mask to the body too, and keep the carry of a row that does not count: "
    "torch.where(mask, new, carry). Select the results after the scan"
)

#: For texts in torch's errors, what to do.
_HINTS = (
    (_GUARD_OF_ONE, _HINT_OF_ONE),
    (re.compile(r"<class '[\w.]+\.\w*Cache'> in output"), f"hint: {CACHE_HINT}"),
    (
        re.compile(r"lifted_tensor_\d+ is not in the constants dictionary"),
        (
            "hint: torch loses tensors that a class of arguments or results creates, such as a "
            f"growing cache of transformers: {_WITHOUT_CACHE}"
        ),
    ),
    (
        re.compile(r"expected compiled_fn to be GraphModule"),
        (
            "hint: the model writes to a buffer that shares its memory with another one; register "
            "one of them and compute the other from it in forward"
        ),
    ),
    (
        re.compile(r"Must provide a tree_name when there might be a mismatch"),
        (
            "hint: torch.export (2.13) cannot let dims vary where forward takes these arguments as "
            "**kwargs; wrap the module in one whose forward names them"
        ),
    ),
    (
        re.compile(r"^aten\.[\w.]+$"),
        "hint: torch does not know the shape of this op's result before a run",
    ),
)

#: Words in torch's errors that identify a category. The first match counts.
_WORDS = (
    ("data-dependent", ("data-dependent", "data dependent", "unbacked", ".item()", "nonzero")),
    ("dynamic shape", ("constraints violated", "specializ", "dynamic_shapes", "dim(")),
    ("control flow", ("control flow", "torch.cond", "while_loop")),
    ("mutation", ("mutat", "in-place")),
    ("dtype", ("dtype", "complex", "sparse")),
)

#: The most reasons that are shown.
_REASONS = 4


class CaptureRefusal(NamedTuple):
    """The reason why torch could not capture a model.

    Attributes
    ----------
    text : str
    source : str
        The line of the user's model; empty if unknown.
    category : str
        One of :data:`taper_frontend.errors.CATEGORIES`.
    """

    text: str
    source: str
    category: str


def read(error: Exception) -> CaptureRefusal:
    """Return the refusal that one of torch's errors describes."""
    text = _ABOUT_TORCH.sub("", str(error)).strip()
    if _is_about_packed(error):
        return CaptureRefusal(f"{text}\n{_HINT_OF_PACKED}", _source(error), "data-dependent")
    if _is_about_strides_of_cond(error):
        return CaptureRefusal(_MASKS_OF_COND, _source(error), "data-dependent")
    if isinstance(error, GuardOnDataDependentSymNode):
        source = _source(error)
        text = _ROWS_OF_SCAN if re.search(r"\bscan\(", source) else _BRANCH
        if _is_check_of_distribution(error):
            text = _CHECKS_OF_DISTRIBUTION
        return CaptureRefusal(text, source, "data-dependent")
    hints = [hint for pattern, hint in _HINTS if pattern.search(text)]
    return CaptureRefusal(
        "\n".join([text or type(error).__name__, *hints]), _source(error), _category(text)
    )


def _is_about_packed(error: Exception) -> bool:
    """Return whether a function that a packed sequence was in raised an error."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    locals_ = (value for frame in frames for value in frame.f_locals.values())
    return any(isinstance(value, PackedSequence) for value in locals_)


def _is_about_strides_of_cond(error: Exception) -> bool:
    """Return whether torch merges results of branches whose strides depend on values."""
    if "Could not guard on data-dependent expression" not in str(error):
        return False
    chain = [error, error.__cause__, error.__context__]
    return any(
        frame.f_code.co_name == "_merge_output"
        for each in chain
        if each is not None
        for frame, _ in traceback.walk_tb(each.__traceback__)
    )


def _is_check_of_distribution(error: Exception) -> bool:
    """Return whether torch.distributions asked whether arguments or samples are valid."""
    return any(
        frame.f_code.co_filename == torch.distributions.distribution.__file__
        and frame.f_code.co_name in ("__init__", "_validate_sample")
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def _category(text: str) -> str:
    for category, words in _WORDS:
        if any(word in text.lower() for word in words):
            return category
    return "op"


def is_about_dims(error: BaseException | None) -> bool:
    """Return whether torch refused the ranges or the relations of named dims.

    Torch fails with other errors where it cannot say what it suggests instead.
    """
    if error is None:
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return "onstraints violated" in str(error) or any(
        frame.f_code.co_name == "prettify_results" for frame, _ in frames
    )


def of_dims(error: BaseException, axes: Sequence[Axis]) -> str:
    """Describe the dims that torch refused, its requirements and suggestions, in a few lines."""
    text = _ABOUT_TORCH.sub("", str(error))
    body, _, fixes = text.partition("Suggested fixes:")
    for axis in axes:
        body = body.replace(f"{axis.name} = {axis.source}", f"{axis.name!r} ({axis.where})")
        body = body.replace(axis.source, axis.name or axis.where)
    reasons = re.findall(r"^\s*- (.+?)(?:\. |\.?$)", body, re.MULTILINE)
    lines = ["the model does not accept all sizes that dynamic_shapes allows:"]
    lines += [f"  - {reason}" for reason in reasons[:_REASONS]]
    if len(reasons) > _REASONS:
        lines.append(f"  - and {len(reasons) - _REASONS} more")
    if fixes.strip():
        lines.append(f"torch suggests: {'; '.join(map(str.strip, fixes.strip().splitlines()))}")
    if _GUARD_OF_ONE.search(text):
        lines.append(_HINT_OF_ONE)
    lines.append("with a string or Dim.AUTO instead of the Dim, the model decides the range")
    return "\n".join(lines)


def _source(error: Exception) -> str:
    """Return the innermost line of the user's code in the traceback of an error.

    Without such a line, as in a ``Sequential``, it is the path and class of the innermost module.
    """
    return user_line(traceback.extract_tb(error.__traceback__)) or _innermost_module(error)


def user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost line of the user's code among frames, outermost first."""
    for frame in reversed(frames):
        if not frame.filename.startswith((_OWN, "<string>")):  # torch generates functions
            line = describe_line(
                frame.filename, frame.lineno or 0, frame.name, (frame.line or "").strip()
            )
            if line:
                return line
    return ""


def _innermost_module(error: Exception) -> str:
    """Return ``"encoder.0 (Linear)"`` for the innermost module in the traceback of an error."""
    running = [
        frame.f_locals["self"]
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == "forward" and "self" in frame.f_locals
    ]
    modules = [each for each in running if isinstance(each, torch.nn.Module)]
    for root in modules:
        for path, module in root.named_modules():
            if path and module is modules[-1]:
                return f"{path.removeprefix('_export_root.')} ({type(module).__name__})"
    return ""
