"""A rehearsal: the small copy of a plan that is trained on CPU ranks, and the checks of the results."""
