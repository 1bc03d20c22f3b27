#!/bin/sh
# Runs @PROGRAM@ of the Python package ringd that is installed beside this file.
self=$0
[ -L "$self" ] && self=$(readlink -f -- "$self")
prefix=${self%/*}/..
for program in \
  "$prefix"/lib/python3*/site-packages/ringd/bin/@PROGRAM@ \
  "$prefix"/lib64/python3*/site-packages/ringd/bin/@PROGRAM@ \
  "$prefix"/lib/python3*/dist-packages/ringd/bin/@PROGRAM@ \
  "$prefix"/ringd/bin/@PROGRAM@; do
  [ -x "$program" ] && exec "$program" "$@"
done
echo "@PROGRAM@: the Python package ringd is not installed under $prefix; install its wheel again" >&2
exit 127
