"""What both suites share: the list of tests that are left out or fail, and where outcomes are told."""

import fnmatch
import os


def left_out():
    """Patterns of tests that are not run: lines of the file `LISTED` that begin with `leaves`."""
    with open(os.environ["LISTED"], encoding="utf-8") as lines:
        words = (line.split() for line in lines)
        return [word[1] for word in words if word and word[0] == "leaves"]


def is_left_out(test):
    return any(fnmatch.fnmatchcase(test, pattern) for pattern in left_out())


def tell(outcome, test, why=""):
    """A line of the file `OUTCOMES`: passed, failed or skipped, the test, and the last words of what went wrong."""
    last = " ".join(why.strip().splitlines()[-1:])
    with open(os.environ["OUTCOMES"], "a", encoding="utf-8") as file:
        file.write(f"{outcome} {test} {last[:400]}\n")
