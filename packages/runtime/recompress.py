"""Compress a wheel's files anew, as small as zopfli can (`zopflipy` on PyPI).

``python recompress.py WHEEL`` replaces the file; nothing inside it changes. It saves 53 kB of 1,398
in the runtime's wheel (3.8%, November 2026), and takes a release 22 seconds.
"""

import sys
import zipfile
from pathlib import Path

from zopfli import ZipFile

wheel = Path(sys.argv[1])
smaller = wheel.with_suffix(".smaller")
with zipfile.ZipFile(wheel) as source, ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as target:
    for info in source.infolist():
        target.writestr(info, source.read(info))
smaller.replace(wheel)
