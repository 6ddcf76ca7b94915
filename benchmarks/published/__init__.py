"""Published measurements of memory and speed, and how each source trained."""
