"""Prerun: one bash session before the ranks start, and which of its entries need not run again."""
