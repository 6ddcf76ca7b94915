"""Code that runs inside the ranks; it imports nothing of trainwiz."""
