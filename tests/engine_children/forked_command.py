"""`python -m trainwiz`, where an interpreter has imported it already (tests/forked.py)."""

import os
import sys
import tempfile
import time

import trainwiz.__main__


def main():
    del sys.path[0]  # the folder of this file; after `-m`, trainwiz deletes the working folder there
    sys.argv[0] = trainwiz.__main__.__file__
    # What an interpreter takes from its environment and its streams when it starts.
    tempfile.tempdir = None
    time.tzset()
    os.umask(0o022)
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    trainwiz.__main__.main()


main()
