"""What becomes of the weights of a checkpoint: `trainwiz export`."""
