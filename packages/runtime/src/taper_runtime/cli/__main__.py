"""Run the command as ``python -m taper_runtime.cli``."""

import sys

from taper_runtime.cli import main

sys.exit(main())
