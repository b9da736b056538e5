"""Read and write the tensors of the Open Inference Protocol, as JSON or as bytes.

The bytes of the binary data extension follow the JSON of a body, whose length a header gives:
https://github.com/kserve/open-inference-protocol, and the extension of Triton's that it names.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.responses import Response

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import Size
from taper_runtime.serving.body_fields import BodyFields, parse_body
from taper_runtime.serving.request_error import RequestError, json_response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_runtime.plan.plan import Plan

#: The header with the length of the JSON, where bytes follow it.
JSON_LENGTH = "Inference-Header-Content-Length"

#: The protocol's names of dtypes. The ends of a session have bfloat16 as float32.
_DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": "FP32",
}

_NUMPY = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}

_MOST_RANK = 32


class InferRequest(NamedTuple):
    """A request to run a plan.

    Attributes
    ----------
    id : str or None
    inputs : dict of str to numpy.ndarray
    outputs : dict of str to bool
        The outputs to return, and whether as bytes.
    """

    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: dict[str, bool]


def describe_tensors(plan: Plan, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metadata of inputs or outputs; a dim that varies is -1.

    Raises
    ------
    RequestError
        If one is complex, which the protocol lacks.
    """
    found = []
    for name in names:
        seen = plan.tensors[name].seen
        if seen.dtype not in _DATATYPES:
            raise RequestError(
                400, f"{name!r}: this protocol has no tensors of {seen.dtype}", code="unsupported"
            )
        shape = [-1 if isinstance(size, Size) else size for size in seen.shape]
        found.append({"name": name, "datatype": _DATATYPES[seen.dtype], "shape": shape})
    return found


def read_infer(plan: Plan, body: bytes, json_length: str | None) -> InferRequest:
    """Read the body of ``infer``.

    Parameters
    ----------
    plan : Plan
    body : bytes
    json_length : str or None
        The header :data:`JSON_LENGTH`, if the request has it.

    Raises
    ------
    RequestError
        If a field or a tensor is missing, wrong or unknown.
    """
    text, rest = body, b""
    if json_length is not None:
        is_number = json_length.isascii() and json_length.isdigit() and len(json_length) < 16
        if not is_number or int(json_length) > len(body):
            raise RequestError(
                400,
                f"{JSON_LENGTH}: expected at most the {len(body)} bytes of the body, "
                f"got {json_length!r}",
            )
        text, rest = body[: int(json_length)], body[int(json_length) :]
    fields = BodyFields(parse_body(text))
    number = fields.text("id", None)
    blobs = TensorBytes(rest)
    inputs: dict[str, np.ndarray] = {}
    given = fields.take("inputs", "a list of tensors", lambda v: isinstance(v, list))
    for index, each in enumerate(given):
        name, array = _input(BodyFields(each, f"inputs[{index}]"), blobs)
        if name in inputs:
            raise fields.error(f"inputs[{index}]", f"expected {name!r} once")
        inputs[name] = array
    if not blobs.is_empty:
        raise fields.error("inputs", "expected no bytes behind those of the inputs")
    everything = _parameters(fields).flag("binary_data_output", False)
    asked = fields.take("outputs", "a list of outputs", lambda v: isinstance(v, list), [])
    outputs = {}
    for index, each in enumerate(asked or [{"name": name} for name in plan.outputs]):
        one = BodyFields(each, f"outputs[{index}]")
        name = one.text("name")
        if name not in plan.outputs:
            raise one.error("name", f"expected one of {[*plan.outputs]}, got {name!r}")
        outputs[name] = _parameters(one).flag("binary_data", everything)
        one.finish()
    fields.finish()
    return InferRequest(number, inputs, outputs)


def _parameters(fields: BodyFields) -> BodyFields:
    found = fields.take("parameters", "an object", lambda v: isinstance(v, dict), {})
    return BodyFields(found, "parameters")


class TensorBytes:
    """The bytes that follow the JSON of a body, read tensor by tensor."""

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    @property
    def is_empty(self) -> bool:
        """Return whether all bytes have been read."""
        return self._place == len(self._data)

    def take(self, size: int) -> bytes | None:
        """Return the next ``size`` bytes; None if fewer are left."""
        if size > len(self._data) - self._place:
            return None
        self._place += size
        return self._data[self._place - size : self._place]


def _input(fields: BodyFields, blobs: TensorBytes) -> tuple[str, np.ndarray]:
    """Return the name and the array of an input."""
    name = fields.text("name")
    datatype = fields.take(
        "datatype", f"one of {', '.join(_NUMPY)}", lambda v: isinstance(v, str) and v in _NUMPY
    )
    dtype = _NUMPY[datatype]
    shape = fields.take(
        "shape",
        f"up to {_MOST_RANK} sizes from 0",
        lambda v: (
            isinstance(v, list)
            and len(v) <= _MOST_RANK
            and all(type(size) is int and 0 <= size < 2**48 for size in v)
        ),
    )
    size = _parameters(fields).whole("binary_data_size", 0, None, None)
    data = fields.take("data", "an array", lambda v: isinstance(v, list), None)
    fields.finish()
    count = 1
    for each in shape:
        count *= each
    if (size is None) == (data is None):
        raise fields.error("data", "expected either data or parameters.binary_data_size")
    if size is not None:
        found = blobs.take(size) if size == count * dtype.itemsize else None
        if found is None:
            raise fields.error(
                "parameters.binary_data_size",
                f"expected {count * dtype.itemsize} bytes for {datatype} {shape}, and so many "
                f"behind the JSON, got {size}",
            )
        if dtype.kind == "b":
            found = (np.frombuffer(found, np.uint8) != 0).tobytes()  # any byte may come
        return name, np.frombuffer(found, dtype).reshape(shape).astype(dtype.newbyteorder("="))
    array = _from_json(fields, data, dtype, datatype)
    if array.size != count:
        raise fields.error(
            "data", f"expected {count} numbers for the shape {shape}, got {array.size}"
        )
    return name, array.reshape(shape)


def _from_json(fields: BodyFields, data: list[Any], dtype: np.dtype, datatype: str) -> Any:
    """Convert a JSON array, nested or not, to a numpy array."""
    try:
        made = np.array(data)
    except (ValueError, OverflowError, RecursionError):
        made = np.array(None)
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if made.size and made.dtype.kind not in kinds:
        raise fields.error("data", f"expected numbers of {datatype} in an array of equal rows")
    with np.errstate(over="ignore"):
        cast = made.astype(dtype.newbyteorder("="))
    if dtype.kind in "iu" and made.size and not (cast == made).all():
        raise fields.error("data", f"expected numbers in the range of {datatype}")
    if dtype.kind == "f" and not (np.isfinite(cast) | ~np.isfinite(made)).all():
        raise fields.error("data", f"expected numbers in the range of {datatype}")
    return cast


def write_infer(
    plan: Plan, model: str, request: InferRequest, results: Mapping[str, np.ndarray]
) -> Response:
    """Write the answer of ``infer``.

    Raises
    ------
    RequestError
        If an output without ``binary_data`` has numbers that JSON lacks: infinite ones, or NaN.
    """
    blobs: list[bytes] = []
    outputs = []
    for name, described in zip(
        request.outputs, describe_tensors(plan, [*request.outputs]), strict=True
    ):
        array = results[name]
        shown = {**described, "shape": [*array.shape]}
        if request.outputs[name]:
            blobs.append(array.astype(_NUMPY[described["datatype"]]).tobytes())
            shown["parameters"] = {"binary_data_size": len(blobs[-1])}
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RequestError(
                400,
                f"output {name!r}: expected finite numbers, got infinite ones or NaN, which JSON "
                "lacks; ask for it with the parameter binary_data",
            )
        else:
            shown["data"] = array.ravel().tolist()
        outputs.append(shown)
    data: dict[str, Any] = {"model_name": model, "outputs": outputs}
    if request.id is not None:
        data["id"] = request.id
    if not blobs:
        return json_response(data)
    text = json.dumps(data, allow_nan=False).encode()
    return Response(
        text + b"".join(blobs),
        headers={JSON_LENGTH: str(len(text))},
        media_type="application/octet-stream",
    )
