"""What all tests rely on."""

import signal


def pytest_configure():
    """Let tests interrupt themselves: a shell starts its background jobs with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
