"""Programs for the training interpreter, run by path in a child process; none is imported by trainwiz.

Each works on any Python ≥ 3.8, needs nothing of trainwiz, and prints one JSON object on its last line.
"""
