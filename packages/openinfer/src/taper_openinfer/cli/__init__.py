"""Define the commands that this package adds to ``taper``: ``compile``, ``oinf``, ``sim``.

Each module has a function ``add``, which an entry point of the group ``taper.commands`` names.
"""
