"""Give Taper's exceptions ONNX Runtime's names, for ``except`` clauses written for it."""

from taper_runtime.base.errors import (
    InputError,
    PlanFormatError,
    TaperError,
    UnsupportedOpError,
)

#: A session or a run got a bad array, name or option.
InvalidArgument = InputError
#: A file or bytes are not a plan.
InvalidProtobuf = InvalidGraph = PlanFormatError
#: There is no file at the path.
NoSuchFile = FileNotFoundError
#: A node has no native kernel, and ``strict_native`` is set.
NotImplemented = UnsupportedOpError
#: Any error that Taper raises on purpose.
Fail = RuntimeException = TaperError
