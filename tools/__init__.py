"""Measure and judge Taper: the makers' tools, which no package contains.

Each is run from the repository's root, as ``python -m tools.peers.compare``; `nox -l` lists them.
"""
