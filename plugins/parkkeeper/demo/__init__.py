"""The whole path once, on real input: ``python -m parkkeeper.demo`` (what ``make demo`` runs)."""
