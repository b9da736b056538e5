"""Provide the session class with all methods of ONNX Runtime's InferenceSession."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import InputError, TaperError
from taper_runtime.extend.providers import choose_providers, computing
from taper_runtime.session.session import Session

if TYPE_CHECKING:
    import numpy as np

    from taper_runtime.session.background import Callback
    from taper_runtime.session.iobinding import IOBinding
    from taper_runtime.session.modelmeta import ModelMeta
    from taper_runtime.session.nodearg import NodeArg
    from taper_runtime.session.options import RunOptions, SessionOptions
    from taper_runtime.session.ortvalue import OrtValue
    from taper_runtime.session.state import State


class InferenceSession(Session):
    """Plan that is ready to run.

    A session that was opened from a path can be pickled and sent to another process. There, the
    file is opened again with the same options, and the session gets the same state.

    Parameters
    ----------
    path_or_bytes : path, bytes or Plan
        The path of a ``.taper`` file, which is mapped; the bytes of such a file; or a Plan, for
        example one that was just exported.
    sess_options : SessionOptions, optional
        The session keeps a copy.
    providers : sequence of str or of (str, mapping), optional
        The providers that compute nodes, in order of preference: ``"NativeCPU"`` (Taper's kernels),
        ``"Numpy"``, ``"CPUExecutionProvider"`` (both), and those registered with
        :func:`taper_runtime.register_kernel`. By default the registered ones come first, then the
        CPU. A plan with a node that none of them computes is refused. Another provider of ONNX
        Runtime causes a UserWarning.
    provider_options : sequence of mapping, optional
        One mapping per provider. They have no effect.
    model : str, optional
        The name of the plan, if the file has several; see :func:`taper_runtime.load`.

    Raises
    ------
    PlanFormatError
        If the file or the Plan is not a valid plan.
    UnsupportedOpError
        If no provider computes some node, or with ``strict_native`` only numpy does.
    InputError
        On an argument of a wrong type, an unknown provider or model, a device or an ISA level that
        is not available, or a delegate in the plan that the options do not allow.
    StoppedError
        If the options' load cancellation flag is set. It is a LoadTimeoutError if opening takes
        longer than ``load_timeout_s``.
    OSError
        If the file cannot be opened, or is not a regular file.
    MemoryError
        If there is not enough memory for the session.
    """

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: a plan's weights are not inputs."""
        return []

    def get_session_options(self) -> SessionOptions:
        """Return a copy of the options that the session was opened with."""
        return self._options.copy()

    def get_providers(self) -> list[str]:
        """Return the names of the providers, in order of preference."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the providers' options, which are empty."""
        return {name: {} for name in self._providers}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Check that these are the session's providers, which cannot be changed.

        Raises
        ------
        InputError
            If a provider is unknown, or they are not the session's providers.
        """
        chosen = choose_providers(providers, provider_options)
        if computing(chosen) != computing(self._providers):
            raise InputError(
                f"providers: expected those of the session, {list(self._providers)}, got "
                f"{list(chosen)}; open another session for them"
            )

    def disable_fallback(self) -> None:
        """Do nothing: no run is ever tried again with another provider."""

    def enable_fallback(self) -> None:
        """Do nothing, as :meth:`disable_fallback`."""

    def get_modelmeta(self) -> ModelMeta:
        """Return the plan's producer and the metadata that it was exported with."""
        from taper_runtime.session.modelmeta import read_modelmeta

        return read_modelmeta(self.plan)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> list[OrtValue]:
        """Run as :meth:`run`, with OrtValues in place of arrays.

        Raises
        ------
        InputError
            As :meth:`run`, or on an input that is no OrtValue.
        """
        from taper_runtime.session.ortvalue import OrtValue, arrays_of

        arrays = arrays_of(input_dict_ort_values)
        outputs = self.run(output_names, arrays, run_options, state=state)
        return [OrtValue(array) for array in outputs]

    def io_binding(self) -> IOBinding:
        """Return a binding of inputs and outputs to memory, for :meth:`run_with_iobinding`."""
        from taper_runtime.session.iobinding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(
        self,
        iobinding: IOBinding,
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> None:
        """Run on the bound inputs; outputs go to the binding. For ``state`` see :meth:`run`.

        Raises
        ------
        InputError
            As :meth:`run`; or if no output is bound, or ``iobinding`` is not an IOBinding.
        """
        from taper_runtime.session.iobinding import IOBinding

        if not issubclass(type(iobinding), IOBinding):
            got = type(iobinding).__name__
            raise InputError(f"iobinding: expected an IOBinding, got {got}")
        iobinding.run(self, run_options, state)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, np.ndarray],
        callback: Callback,
        user_data: Any,
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> None:
        """Run on another thread, then call ``callback(outputs, user_data, error)`` there.

        The session runs as many such calls at once as it has threads; others wait. If a run fails,
        ``outputs`` is empty and ``error`` is the text of the error; if it succeeds, ``error`` is
        empty. An exception of the callback goes to ``threading.excepthook``.

        Raises
        ------
        InputError
            If an input is missing, or ``callback`` is not callable.
        TaperError
            If the session is closed.
        """
        if not callable(callback):
            raise InputError(f"callback: expected a function, got {type(callback).__name__}")
        if isinstance(input_feed, Mapping):
            missing = [name for name in self._default.inputs if name not in input_feed]
            if missing:
                raise InputError(f"missing inputs {missing}; expected {list(self._default.inputs)}")
        from taper_runtime.session.background import Background

        if self._log.closed:
            raise TaperError("the session is closed")
        if self._background is None or not self._background.usable:
            self._background = Background(self._threads)
        self._background.submit(
            lambda: self.run(output_names, input_feed, run_options, state=state),
            callback,
            user_data,
        )

    def get_profiling_start_time_ns(self) -> int:
        """Return when profiling began, in nanoseconds since the epoch; 0 if it did not begin."""
        return 0 if self._recording is None else self._recording.start_ns

    def end_profiling(self) -> str:
        """Write the trace of all runs so far and stop profiling.

        Returns
        -------
        str
            The path: ``profile_file_prefix``, the date and the time. The file is JSON in the Trace
            Event Format, which Chrome and Perfetto show; it has every run and, in it, every node
            on every worker. The path is empty if the session is not profiling.
        """
        if self._recording is None or self._default.executor is not self._recording:
            return ""
        self._default.executor = self._recording.executor
        return self._recording.save(self._options.profile_file_prefix)
