"""`trainwiz chat` and `trainwiz sample`: a model that answers."""
