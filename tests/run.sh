#!/usr/bin/env bash
# Sets everything up and runs all tests: C++ by Bazel, Python by pytest. The last line is "N passed, N failed".
#
#   tests/run.sh            all
#   tests/run.sh PATTERN    those whose label (//daemon/engine:engine_test) or id (tests/wheel_test.py::test_...) has a
#                           match of the regular expression PATTERN
set -uo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly pattern="${1:-}"
readonly results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

if ! RINGD_SETUP=full deploy/setup.sh; then
  echo "0 passed, 1 failed"
  exit 1
fi
export PATH="$PWD/.venv/bin:$PATH"

status=0
targets=(//...)
if [ -n "$pattern" ]; then
  bazel query --noshow_progress --keep_going 'tests(//...)' >"$results/labels" || status=1
  mapfile -t targets < <(grep -E -- "$pattern" "$results/labels")
fi
if [ "${#targets[@]}" -gt 0 ]; then
  echo "tests  ${SECONDS}s  C++"
  bazel test --noshow_progress --keep_going --build_event_json_file="$results/bazel.json" "${targets[@]}" || status=1
fi

echo "tests  ${SECONDS}s  Python"
mapfile -t folders < <(ls -d tests client/python 2>/dev/null)
python -m pytest -p tests.pytest_only --only "$pattern" "${folders[@]}" --junitxml="$results/pytest.xml"
code=$?
# 5: no test selected.
[ "$code" -eq 0 ] || [ "$code" -eq 5 ] || status=1

echo "tests  ${SECONDS}s  done"
python tests/tally.py --status "$status" "$results"/*.json "$results"/*.xml
