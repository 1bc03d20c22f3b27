#!/usr/bin/env bash
# Runs clang-tidy (.clang-tidy) over C++ sources; the exit code is 1 if it finds anything.
#
#   tests/clang_tidy.sh [FILE...]   all tracked sources by default
#
# Build first: generated headers are taken from bazel-bin.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ $# -gt 0 ]; then
  files=("$@")
else
  # Kernels of one instruction set need its flags.
  mapfile -t files < <(git ls-files '*.cc' | grep -v '/kernels_')
fi

check() {
  clang-tidy-14 --quiet "$1" -- -std=c++20 -I. -isystem bazel-bin -Wno-unknown-warning-option \
    -DFMT_HEADER_ONLY -DSPDLOG_FMT_EXTERNAL -DSPDLOG_HEADER_ONLY -DHWY_COMPILE_ONLY_STATIC \
    -DCPPHTTPLIB_OPENSSL_SUPPORT -DCPPHTTPLIB_ZLIB_SUPPORT -DCPPHTTPLIB_BROTLI_SUPPORT 2>/dev/null
}
export -f check
printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c 'check {}'
