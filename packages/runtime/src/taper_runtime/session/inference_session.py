"""Offer a session under all names that ONNX Runtime has for what sessions do."""

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
    """A plan, ready to run.

    A session that was opened from a path can be pickled, so that it can be sent to another process:
    there the file is opened anew, with the same options, and its state is what it was.

    Parameters
    ----------
    path_or_bytes : path, bytes or Plan
        A ``.taper`` file, which is mapped; the bytes of one; or a plan just exported.
    sess_options : SessionOptions, optional
        They are copied.
    providers : sequence of str or of (str, mapping), optional
        What computes nodes, in order of preference: ``"NativeCPU"``, our kernels, ``"Numpy"``, or
        ``"CPUExecutionProvider"``, which is both; and those of
        :func:`taper_runtime.register_kernel`. The default is these, then the CPU. A node that none
        of them computes is refused. Asking for another one of ONNX Runtime's is a UserWarning.
    provider_options : sequence of mapping, optional
        One per provider. None has an effect.
    model : str, optional
        Which plan, where the file has several; see :func:`taper_runtime.load`.

    Raises
    ------
    PlanFormatError
        If the file is not a valid plan, or the Plan is none: somebody may have made it by hand.
    UnsupportedOpError
        If a node is one that no provider computes, or with ``strict_native`` none but numpy.
    InputError
        On an argument of another type, an unknown provider or model, a device or an ISA level that
        is not there, or if the plan has a delegate that the options do not allow.
    StoppedError
        If the options' load cancellation flag is set; a LoadTimeoutError if the session does not
        open within ``load_timeout_s``.
    OSError
        If the file cannot be opened, or is no regular file.
    MemoryError
        If there is no room for what the session keeps.
    """

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return an empty list: a plan's weights are not inputs."""
        return []

    def get_session_options(self) -> SessionOptions:
        """Return a copy of the options that the session was opened with."""
        return self._options.copy()

    def get_providers(self) -> list[str]:
        """Return what computes nodes, in order of preference."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the providers' options: none has any."""
        return {name: {} for name in self._providers}

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, object]]] | None = None,
        provider_options: Sequence[Mapping[str, object]] | None = None,
    ) -> None:
        """Check that the session has these providers: it keeps those that it was opened with.

        Raises
        ------
        InputError
            On an unknown provider, or others than the session's.
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
        """Return who made the plan, and what its maker wrote into it."""
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
        """Run as :meth:`run` with OrtValues for arrays.

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
        """Return what binds inputs and outputs to memory for :meth:`run_with_iobinding`."""
        from taper_runtime.session.iobinding import IOBinding

        return IOBinding(self)

    def run_with_iobinding(
        self,
        iobinding: IOBinding,
        run_options: RunOptions | None = None,
        *,
        state: State | Sequence[State] | None = None,
    ) -> None:
        """Run on what is bound; the outputs are the binding's. :meth:`run` tells of ``state``.

        Raises
        ------
        InputError
            As :meth:`run`, or where no output is bound, or it is no binding.
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

        As many such runs go on at once as the session has threads; others wait. Errors of the run
        are the callback's: ``outputs`` is then empty and ``error`` the error's text, which is
        empty after a run that succeeded. What the callback raises goes to
        ``threading.excepthook``.

        Raises
        ------
        InputError
            If an input is missing, or the callback cannot be called.
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
        """Return when profiling began, in nanoseconds since the epoch; 0 where it did not."""
        return 0 if self._recording is None else self._recording.start_ns

    def end_profiling(self) -> str:
        """Write the trace of every run so far and stop profiling.

        Returns
        -------
        str
            The path, ``profile_file_prefix``, the date and the time: JSON in the Trace Event Format
            that Chrome and Perfetto show, with every run and, in it, every node on every worker.
            Empty where the session does not profile, or no more.
        """
        if self._recording is None or self._default.executor is not self._recording:
            return ""
        self._default.executor = self._recording.executor
        return self._recording.save(self._options.profile_file_prefix)
