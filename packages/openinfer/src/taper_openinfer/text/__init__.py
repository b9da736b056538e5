"""Programs as text."""

from taper_openinfer.text.files import load_program
from taper_openinfer.text.parser import parse, parse_access

__all__ = ["load_program", "parse", "parse_access"]
