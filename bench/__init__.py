"""Measurements against the engines' own publishers: ``python -m bench`` runs every row.

One module per row of the table; ``python -m bench.<row>`` runs one. Nothing here is installed.
"""
