"""Model what a machine can do and how long a node takes on it, for all decisions that need it.

:mod:`limits` holds the record of limits, :mod:`cost` estimates times from it, and :mod:`measure`
measures it. Nothing is imported here: an executor needs the first two, a command the last one.
"""
