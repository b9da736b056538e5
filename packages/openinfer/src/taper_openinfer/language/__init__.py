"""Hold programs as graphs, and read and write them as text and as JSON."""

from taper_openinfer.language.files import load_program
from taper_openinfer.language.parser import parse, parse_access

__all__ = ["load_program", "parse", "parse_access"]
