"""Programs as text."""

from taper_runtime.openinfer.text.files import load_program
from taper_runtime.openinfer.text.parser import parse, parse_access

__all__ = ["load_program", "parse", "parse_access"]
