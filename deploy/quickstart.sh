#!/usr/bin/env bash
# Sets ringd up and trains a classifier of handwritten digits on two ranks of this machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

deploy/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
exec ringctl run -n 2 -- python examples/torch_digits.py "$@"
