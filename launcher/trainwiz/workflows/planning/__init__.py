"""`trainwiz plan`: what fits, how fast it is, and what it costs."""
