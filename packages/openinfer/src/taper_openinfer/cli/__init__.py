"""Commands that this package adds to ``taper``: ``compile``, ``oinf`` and ``sim``.

Each module has a function ``add``, which an entry point of the group ``taper.commands`` names.
"""
