"""The makers' tools: they measure and judge Taper, and no package contains them.

Each is run from the repository's root, as ``python -m tools.peers.compare``; `nox -l` lists them.
"""
