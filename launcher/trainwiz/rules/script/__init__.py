"""Rules on a user's own training script."""
