"""Printing: data to stdout, talk to stderr. The only owner of both."""
