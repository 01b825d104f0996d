#!/bin/bash
# Sets up what is missing, starts the durable brokers, and measures a turn for each line of its input; see turns.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd); . "$here/../lib.sh"
"$here/setup.sh" >&2
measure "$here/turns.py"
