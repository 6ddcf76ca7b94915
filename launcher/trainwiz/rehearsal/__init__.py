"""A rehearsal: what of a plan is run on small CPU ranks, and what the results say."""
