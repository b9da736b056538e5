"""Time what importing costs beside numpy."""

import subprocess
import sys


class ImportTime:
    def _run(self, code):
        subprocess.run([sys.executable, "-c", code], check=True)

    def time_import_runtime(self):
        self._run("import taper_runtime")

    def time_import_numpy(self):
        self._run("import numpy")
