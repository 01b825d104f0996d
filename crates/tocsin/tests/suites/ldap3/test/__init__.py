"""The suite's own package lies elsewhere; only its configuration is ours."""

import os

__path__.append(os.environ["SUITE"])
