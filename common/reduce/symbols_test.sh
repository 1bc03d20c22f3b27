#!/bin/bash
# Usage: symbols_test.sh ARCHIVE...
# Fails if an object of theirs defines a weak symbol or has a static initialiser.
set -eu

checked=0
for archive in "$@"; do
  symbols=$(nm --defined-only "${archive}" 2>/dev/null)
  if ! grep -q 'Kernels' <<<"${symbols}"; then
    echo "${archive}: no kernel table found" >&2
    exit 1
  fi
  if grep -E ' [VvWwu] |_GLOBAL__sub_I_' <<<"${symbols}" | grep -vE ' (__odr_asan|DW\.ref\.)'; then
    echo "${archive}: make the symbols above static or forced inline (see kernels-inl.h)" >&2
    exit 1
  fi
  checked=$((checked + 1))
done
((checked > 0))
