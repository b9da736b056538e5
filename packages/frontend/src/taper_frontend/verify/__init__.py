"""Compare a plan's results with the module's: the last step of an export.

``trials`` runs both; ``compare``, which needs no torch, measures how far two results are apart.
"""
