"""Name Taper's exceptions as ONNX Runtime does, for ``except`` clauses written for it."""

from taper_runtime.base.errors import (
    InputError,
    PlanFormatError,
    TaperError,
    UnsupportedOpError,
)

#: A bad array, name or option: given to a session or to a run.
InvalidArgument = InputError
#: A file or bytes that are no plan.
InvalidProtobuf = InvalidGraph = PlanFormatError
#: A path where no file is.
NoSuchFile = FileNotFoundError
#: A node without a native kernel, with ``strict_native``.
NotImplemented = UnsupportedOpError
#: Anything that Taper raises on purpose.
Fail = RuntimeException = TaperError
