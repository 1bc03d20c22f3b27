#!/usr/bin/env bash
# Builds every fuzz target with libFuzzer, ASan and UBSan and runs each for some seconds, from its seeds and corpus. New
# inputs are kept in the user's cache; one that breaks something is left there as crash-*, and its folder is printed. The
# last line is "N passed, N failed".
#
#   tests/fuzz.sh [SECONDS [TARGET...]]    60 seconds each; targets default to all of //...
set -uo pipefail
shopt -s nullglob
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly seconds="${1:-60}"
shift $(($# > 0))
targets=("$@")

if ! RINGD_SETUP=sanitizers deploy/setup.sh; then
  echo "0 passed, 1 failed"
  exit 1
fi

readonly checkout="$(printf %s "$PWD" | sha256sum | cut -c1-12)"
readonly cache="${XDG_CACHE_HOME:-$HOME/.cache}/ringd"
readonly bazel=(bazel --output_base="$cache/output-$checkout-fuzz")
readonly options=(--config=fuzz --symlink_prefix=/ --noshow_progress)
# Another output base would take the first one's convenience link for packages of ours.
rm -f "bazel-$(basename "$PWD")"

[ "${#targets[@]}" -gt 0 ] || mapfile -t targets < <("${bazel[@]}" query --noshow_progress 'attr(tags, "\bfuzz\b", tests(//...))')
if ! "${bazel[@]}" build "${options[@]}" "${targets[@]}"; then
  echo "0 passed, ${#targets[@]} failed"
  exit 1
fi
readonly programs="$("${bazel[@]}" info "${options[@]}" bazel-bin)"
"${bazel[@]}" shutdown

export ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
passed=0 failed=0
for target in "${targets[@]}"; do
  path="${target#//}"
  package="${path%%:*}" name="${path##*:}"
  work="$cache/fuzz/$name"
  mkdir -p "$work/inputs"
  corpus=("$package/corpus/$name/")
  [ -d "${corpus[0]}" ] || corpus=()
  echo "fuzz  ${SECONDS}s  $target"
  if RINGD_FUZZ_SEEDS="$work/inputs" "$programs/$package/$name" >/dev/null &&
    "$programs/$package/$name" -max_total_time="$seconds" -max_len=4096 -len_control=10 -timeout=20 -rss_limit_mb=2048 \
      -artifact_prefix="$work/" -print_final_stats=1 "$work/inputs" "${corpus[@]}" >"$work/log" 2>&1; then
    passed=$((passed + 1))
    grep -E 'stat::(number_of_executed_units|average_exec_per_sec)|Done' "$work/log"
  else
    failed=$((failed + 1))
    tail -n 60 "$work/log"
    echo "the input is in $work"
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
