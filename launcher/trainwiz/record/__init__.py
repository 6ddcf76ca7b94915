"""Recorded runs: their state, their metrics as curves, and the differences between two of them."""
