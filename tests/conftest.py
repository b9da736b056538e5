"""Set up what all tests rely on."""

import signal

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Let tests interrupt themselves, and let no test fail for being slow.

    A shell starts its background jobs with SIGINT ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("hypothesispytest"):
        import hypothesis

        hypothesis.settings.register_profile("taper", deadline=None)
        hypothesis.settings.load_profile("taper")
