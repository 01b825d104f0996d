"""Runs the published tests of ldap3 against the server at `PORT` (with TLS from the first byte: `PORT_TLS`)."""

import importlib
import os
import sys
import unittest

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.dirname(here)]

from outcomes import is_left_out, tell  # noqa: E402


def name(test):
    """`testTls.test_start_tls`; a module that cannot be read is a test too."""
    module, _, method = test.id().partition(".Test.")
    return f"{module.removeprefix('test.')}.{method}" if method else test.id()


class Told(unittest.TestResult):
    def addSuccess(self, test):
        tell("passed", name(test))

    def addSkip(self, test, reason):
        tell("skipped", name(test), reason)

    def addFailure(self, test, error):
        tell("failed", name(test), self._exc_info_to_string(error, test))

    addError = addFailure


def tests(suite):
    for item in suite:
        yield from tests(item) if isinstance(item, unittest.TestSuite) else [item]


def main():
    modules = sorted(file[:-3] for file in os.listdir(os.environ["SUITE"]) if file.startswith("test"))
    for module in modules:
        if is_left_out(f"{module}.test_"):
            continue
        found = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(f"test.{module}"))
        for test in tests(found):
            if not is_left_out(name(test)):
                test.run(Told())


main()
