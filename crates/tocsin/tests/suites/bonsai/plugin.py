"""Lets pytest run the published tests of bonsai against the server at `PORT`, and tells what became of each."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from bonsai.ldapurl import LDAPURL  # noqa: E402
from outcomes import is_left_out, tell  # noqa: E402

PORTS = {389: int(os.environ["PORT"]), 636: int(os.environ["PORT_TLS"])}


def name(node):
    """`test_pool.py::test_get`"""
    return node.rsplit("/", 1)[-1]


def _with_our_ports(made):
    """Most tests name no port, and the one of the standard must not be taken by a test."""

    def init(self, strurl=None):
        made(self, strurl)
        if self.port in PORTS:
            self.port = PORTS[self.port]

    return init


LDAPURL.__init__ = _with_our_ports(LDAPURL.__init__)


def pytest_configure(config):
    config.addinivalue_line("markers", "timeout: how long a test may take")


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if not is_left_out(name(item.nodeid))]


def pytest_collectreport(report):
    if report.failed:
        tell("failed", name(report.nodeid), report.longreprtext)


def pytest_runtest_logreport(report):
    # A test that cannot be set up fails as one that runs does; one that passes does so when it was run.
    if report.when == "call" or report.outcome != "passed":
        tell(report.outcome, name(report.nodeid), report.longreprtext)
