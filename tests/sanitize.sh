#!/usr/bin/env bash
# Builds and runs the C++ tests under AddressSanitizer + UndefinedBehaviorSanitizer, under ThreadSanitizer, and with
# clang's thread-safety analysis. The last line is "N passed, N failed".
#
#   tests/sanitize.sh                     all three
#   tests/sanitize.sh CONFIG [TARGET...]  one of asan, tsan, clang; targets default to //...
set -uo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."

configs=(asan tsan clang)
targets=(//...)
if [ $# -gt 0 ]; then
  configs=("$1")
  shift
  [ $# -eq 0 ] || targets=("$@")
fi
readonly results="$(mktemp -d)"
trap 'rm -rf "$results"' EXIT

if ! RINGD_SETUP=sanitizers deploy/setup.sh; then
  echo "0 passed, 1 failed"
  exit 1
fi

# One output base for each configuration and checkout: nothing is analysed again when one switches.
readonly checkout="$(printf %s "$PWD" | sha256sum | cut -c1-12)"
readonly cache="${XDG_CACHE_HOME:-$HOME/.cache}/ringd"
# Another output base would take the first one's convenience link for packages of ours.
rm -f "bazel-$(basename "$PWD")"

status=0
for config in "${configs[@]}"; do
  echo "sanitize  ${SECONDS}s  $config"
  bazel=(bazel --output_base="$cache/output-$checkout-$config")
  # Instrumented benchmarks and wheel parts tell nothing; clang's warnings do.
  only=()
  [ "$config" = clang ] || only=(--build_tests_only)
  "${bazel[@]}" test --config="$config" "${only[@]}" --symlink_prefix=/ --noshow_progress --keep_going \
    --build_event_json_file="$results/$config.json" "${targets[@]}" || status=1
  "${bazel[@]}" shutdown
done

echo "sanitize  ${SECONDS}s  done"
/usr/bin/python3 tests/tally.py --status "$status" "$results"/*.json
