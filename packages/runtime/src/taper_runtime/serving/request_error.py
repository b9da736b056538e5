"""Report errors of a request in the form of the request's protocol."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from taper_runtime.base.errors import InputError, RunTimeoutError, TaperError
from taper_runtime.base.text import with_end

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Paths of the Open Inference Protocol.
TENSOR_PATHS = "/v2"


class RequestError(TaperError):
    """Error that the client gets as the answer to its request.

    Parameters
    ----------
    status : int
        The status of HTTP.
    message : str
    param : str, optional
        The field of the request.
    code : str, optional
        A word for programs.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self, path: str = "") -> dict[str, Any]:
        """Return the body of the answer, in the form of the path's protocol."""
        message = with_end(str(self))  # which may have words of the request, of any length
        if path.startswith(TENSOR_PATHS):
            return {"error": message}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self, path: str) -> Response:
        """Return the answer to a request with this path."""
        headers = {"Retry-After": "1"} if self.status == 503 else None
        return json_response(self.body(path), self.status, headers)


def as_request_error(error: Exception) -> RequestError:
    """Convert an error that a model raised to an answer."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RunTimeoutError):
        return timed_out()
    if isinstance(error, InputError):
        return RequestError(400, str(error))
    if isinstance(error, MemoryError):
        return RequestError(503, "not enough memory for the request", code="overloaded")
    return RequestError(500, f"the model failed: {type(error).__name__}: {error}")


def timed_out() -> RequestError:
    """Return the error of a request that took too long."""
    return RequestError(504, "the request took longer than the server's timeout_s", code="timeout")


def json_response(
    data: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer in JSON."""
    text = json.dumps(data, allow_nan=False)
    return Response(text, status, headers, media_type="application/json")
