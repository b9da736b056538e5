"""Serve plans over HTTP: texts by OpenAI's protocol, any plan by the Open Inference Protocol.

>>> models = [taper_runtime.serving.open_model("llama", "llama.taper")]
>>> uvicorn.run(taper_runtime.serving.make_application(models))

It needs ``pip install 'taper-runtime[serve]'``: the packages starlette and uvicorn, and those of
texts. ``taper serve`` does the same. The rest of Taper does not import this package.
"""

from taper_runtime.serving.application import make_application
from taper_runtime.serving.served_model import ServedModel, open_model
from taper_runtime.serving.server_limits import ServerLimits

__all__ = ["ServedModel", "ServerLimits", "make_application", "open_model"]
