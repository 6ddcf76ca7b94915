"""Rules on a plan, the machine it runs on, and the project around it."""
