"""Rounds of tests/test_fuzz*.py with new seeds until the time is over: python tests/fuzz.py --seconds 3600"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROUND_EXAMPLES = 300


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given = parser.parse_args()
    until, rounds = time.monotonic() + given.seconds, 0
    while rounds == 0 or time.monotonic() < until:
        seed = given.seed + rounds
        print(f"seed {seed}", flush=True)
        tests = sorted(map(str, Path(__file__).parent.glob("test_fuzz*.py")))
        examples = {"FUZZ_EXAMPLES": str(ROUND_EXAMPLES if given.seconds > 60 else 25)}
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-n0",
                "-p",
                "no:cacheprovider",
                f"--hypothesis-seed={seed}",
                *tests,
            ],
            env={**os.environ, **examples},
            check=False,
        )
        if done.returncode:
            print(f"again: python {sys.argv[0]} --seconds 1 --seed {seed}", file=sys.stderr)
            return done.returncode
        rounds += 1
    print(f"rounds without a finding: {rounds}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
