"""Answer the requests of the Open Inference Protocol (KServe's version 2) for any plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base import VERSION
from taper_runtime.serving.infer_tensors import (
    JSON_LENGTH,
    describe_tensors,
    read_infer,
    write_infer,
)
from taper_runtime.serving.request_error import RequestError, json_response
from taper_runtime.serving.server_threads import in_thread
from taper_runtime.session.options import RunOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from starlette.requests import Request
    from starlette.responses import Response

    from taper_runtime.serving.infer_tensors import InferRequest
    from taper_runtime.serving.served_model import ServedModel
    from taper_runtime.serving.server_limits import ServerLimits


class InferRoutes:
    """Handlers of requests; each gets the request and its body.

    Parameters
    ----------
    models : mapping of str to ServedModel
    limits : ServerLimits
    """

    def __init__(self, models: Mapping[str, ServedModel], limits: ServerLimits) -> None:
        self._models, self._limits = models, limits

    async def server(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v2``."""
        return json_response(
            {"name": "taper", "version": VERSION, "extensions": ["binary_tensor_data"]}
        )

    async def live(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v2/health/live``."""
        return json_response({"live": True})

    async def ready(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v2/health/ready``: models are open before the server listens."""
        return json_response({"ready": True})

    async def model_ready(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v2/models/{model}/ready``."""
        return json_response({"name": self._model(request).name, "ready": True})

    async def metadata(self, request: Request, body: bytes) -> Response:
        """Answer ``GET /v2/models/{model}``."""
        model = self._model(request)
        plan = model.session.plan
        data: dict[str, Any] = {"name": model.name, "versions": [], "platform": "taper"}
        data["inputs"] = describe_tensors(plan, [*plan.inputs])
        data["outputs"] = describe_tensors(plan, [*plan.outputs])
        return json_response(data)

    async def infer(self, request: Request, body: bytes) -> Response:
        """Answer ``POST /v2/models/{model}/infer``."""
        model = self._model(request)
        plan = model.session.plan
        asked = read_infer(plan, body, request.headers.get(JSON_LENGTH))
        describe_tensors(plan, plan.outputs)  # before a run whose results cannot be written
        results = await in_thread(self._run, model, asked)
        return write_infer(plan, model.name, asked, results)

    def _model(self, request: Request) -> ServedModel:
        name = request.path_params["model"]
        if name not in self._models:
            raise RequestError(404, f"expected one of {', '.join(self._models)}, got {name!r}")
        return self._models[name]

    def _run(self, model: ServedModel, asked: InferRequest) -> dict[str, np.ndarray]:
        """Run the plan; the states of each request begin with their first values."""
        session, options = model.session, RunOptions()
        options.timeout_s = self._limits.timeout_s
        names = [*asked.outputs]
        state = session.new_state() if session.plan.states else None
        results = session.run(names, asked.inputs, options, state=state)
        return dict(zip(names, results, strict=True))
