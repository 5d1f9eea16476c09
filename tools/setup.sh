#!/bin/sh
# Finds a Python that can build the environment and hands over to tools/setup_environment.py.
# In shell, because before this there is no Python that is known to be new enough. PYTHON=… names one by hand.
set -eu
cd "$(dirname "$0")/.."

# Set up for exactly these locks already: the usual case, answered without looking for another Python.
if [ -x .venv/bin/python ] && .venv/bin/python tools/setup_environment.py --check; then
    exit 0
fi

# git is a source and a judge of the demo; Spark's own starter is a bash script.
for program in git bash; do
    command -v "$program" >/dev/null 2>&1 || {
        echo "setup: $program was not found; install it and repeat the command" >&2
        exit 1
    }
done

new_enough=
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    # A name on PATH may be a shim that runs nothing: only an answer counts.
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
    new_enough=$candidate
    "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 || continue
    exec "$candidate" tools/setup_environment.py
done

if [ -n "$new_enough" ]; then
    echo "setup: $new_enough has no venv module; install it (on Debian and Ubuntu: apt install python3-venv) and repeat the command" >&2
else
    echo "setup: Python 3.11 or newer was not found as ${PYTHON:-python3.13, python3.12, python3.11 or python3}; install it, or name it with PYTHON=path" >&2
fi
exit 1
