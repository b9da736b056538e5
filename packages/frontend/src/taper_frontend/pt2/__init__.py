"""Compile the programs of PT2 archives without torch."""
