"""Subprocesses and signals. The only owner of both."""
