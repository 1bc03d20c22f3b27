#!/usr/bin/env bash
# What libringd.so shows and needs: nothing but ringd_* and the C and C++ runtime (a sanitizer's in its own build).
set -euo pipefail
library="$1"

exported="$(nm -D --defined-only "$library" | awk '{print $3}')"
surplus="$(grep -v '^ringd_' <<<"$exported" || true)"
if [ -n "$surplus" ]; then
  echo "exports more than ringd_*: $surplus"
  exit 1
fi
declared="$(grep -o 'ringd_[a-z_]*(' "$2" | tr -d '(' | sort -u)"
for name in $declared; do
  grep -qx "$name" <<<"$exported" || { echo "$name is declared but not exported"; exit 1; }
done

needed="$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')"
surplus="$(grep -Evx 'lib(c|m)\.so\.6|libstdc\+\+\.so\.6|libgcc_s\.so\.1|ld-linux-[a-z0-9_-]*\.so\.[0-9]|lib(a|t|ub)san\.so\.[0-9]' <<<"$needed" || true)"
if [ -n "$surplus" ]; then
  echo "needs more than the C and C++ runtime: $surplus"
  exit 1
fi
