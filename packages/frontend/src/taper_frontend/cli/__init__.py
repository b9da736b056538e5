"""Define the commands that this package adds to ``taper``, a module each.

Each module has a function ``add``, which an entry point of the group ``taper.commands`` names.
"""
