#!/usr/bin/env bash
# Sets ringd up on a bare Debian 12: packages, programs, wheel, .venv/. Run it again at any time: it does only
# what is missing or changed.
#
#   RINGD_SETUP=minimal   the wheel in .venv/ and no framework
#   RINGD_SETUP=default   and PyTorch with what the main job needs
#   RINGD_SETUP=full      and TensorFlow, JAX, grpcio and what the tests need (tests/run.sh)
#   RINGD_SETUP=sanitizers  only the Debian packages, and clang (tests/sanitize.sh)
#   RINGD_TORCH_INDEX     index to take PyTorch from (default: pip's find-links, then PyTorch's CPU index)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly mode="${RINGD_SETUP:-default}"
readonly torch_version=2.13.0
readonly cpu_index=https://download.pytorch.org/whl/cpu
readonly venv="$PWD/.venv"
readonly programs=(//daemon:ringd //worker:ringd-worker //scheduler:ringd-scheduler //client/cli:ringctl //client/cli/bench:ringd-limits)
readonly libraries=(//client/c:libringd.so //client/python:_core //client/python:libringd-loop.so)
readonly scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

say() { printf 'set-up %4ds  %s\n' "$SECONDS" "$*"; }

fail() {
  printf 'set-up failed: %s\n' "$*" >&2
  exit 1
}

# Runs a command with its output in a log that is shown only if it fails: quietly WHAT COMMAND...
quietly() {
  local what="$1" log
  shift
  log="$(mktemp -p "$scratch")"
  "$@" >"$log" 2>&1 </dev/null || {
    tail -n 60 "$log" >&2
    fail "$what"
  }
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    echo "this needs root and there is no sudo: $*" >&2
    return 1
  fi
}

install_packages() {
  local wanted=(
    bazel-bootstrap bazel-platforms bazel-rules-java bazel-rules-proto bazel-skylib binutils g++ patchelf
    ca-certificates libabsl-dev libcli11-dev libgrpc++-dev libhwy-dev
    libprotobuf-dev libspdlog-dev libfmt-dev libsqlite3-dev libssl-dev libtomlplusplus-dev
    nlohmann-json3-dev protobuf-compiler protobuf-compiler-grpc python3 python3-dev python3-pip python3-venv
  )
  if [ "$mode" = full ] || [ "$mode" = sanitizers ]; then
    wanted+=(
      clang-format-14 git iproute2 libbenchmark-dev libgmock-dev libgtest-dev nftables openssl procps systemd
      util-linux openmpi-bin mpich slurm-client slurmctld slurmd
    )
  fi
  if [ "$mode" = sanitizers ]; then
    wanted+=(clang-14 libclang-rt-14-dev lld-14)
  fi
  local missing=() package
  for package in "${wanted[@]}"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ "${#missing[@]}" -eq 0 ] && return
  say "installing ${#missing[@]} Debian packages"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0)
  quietly "apt-get update" as_root "${apt[@]}" update
  quietly "apt-get install ${missing[*]}" as_root "${apt[@]}" install --no-install-recommends "${missing[@]}"
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

installed() { "$venv/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('$1') != '$2')" 2>/dev/null; }

# A CPU build of PyTorch. PyPI's own file is a CUDA build of several GB, so torch itself never comes from there.
install_torch() {
  installed torch "$torch_version" || installed torch "$torch_version+cpu" && return
  say "installing PyTorch $torch_version"
  if [ -z "${RINGD_TORCH_INDEX:-}" ] &&
    pip install --no-index --no-deps "torch==$torch_version" >/dev/null 2>&1; then
    return
  fi
  quietly "PyTorch $torch_version from ${RINGD_TORCH_INDEX:-$cpu_index} (RINGD_TORCH_INDEX names another index)" \
    pip install --no-deps --index-url "${RINGD_TORCH_INDEX:-$cpu_index}" "torch==$torch_version"
}

install_python_packages() {
  if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "creating .venv"
    rm -rf "$venv"
    quietly "creating .venv from /usr/bin/python3" /usr/bin/python3 -m venv "$venv"
  fi
  local wanted=(numpy)
  if [ "$mode" != minimal ]; then
    install_torch
    wanted+=("torch==$torch_version" scikit-learn matplotlib tqdm pytest pytest-timeout)
  fi
  if [ "$mode" = full ]; then
    wanted+=(tensorflow-cpu jax grpcio ruff auditwheel cloudpickle pyyaml)
    wanted+=(lightning accelerate transformers)
  fi
  # pip takes seconds to find out that there is nothing to do.
  local stamp="$venv/.ringd-packages-$mode"
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "${wanted[*]}" ] && return
  say "installing Python packages: ${wanted[*]}"
  quietly "pip install ${wanted[*]}" pip install "${wanted[@]}"
  printf '%s' "${wanted[*]}" >"$stamp"
}

build_wheel() {
  say "building the programs"
  quietly "bazel build" bazel build --noshow_progress "${programs[@]}" "${libraries[@]}"
  quietly "assembling the wheel" /usr/bin/python3 deploy/wheel/build_wheel.py --bazel-bin bazel-bin --output dist
}

install_wheel() {
  local wheel=(dist/ringd-*.whl) stamp="$venv/.ringd-wheel" digest
  [ "${#wheel[@]}" -eq 1 ] || fail "dist/ has ${#wheel[@]} wheels of ringd; remove dist/ and run this again"
  digest="$(sha256sum "${wheel[0]}")"
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$digest" ] && [ -x "$venv/bin/ringctl" ] && return
  say "installing ${wheel[0]}"
  quietly "pip install ${wheel[0]}" pip install --no-index --no-deps --force-reinstall "${wheel[0]}"
  printf '%s' "$digest" >"$stamp"
}

case "$mode" in
  minimal | default | full | sanitizers) ;;
  *) fail "RINGD_SETUP is \"$mode\"; it can be minimal, default, full or sanitizers" ;;
esac
[ -x /usr/bin/apt-get ] || fail "this is not Debian; install a wheel with pip instead (deploy/README.md)"

install_packages
[ "$mode" = sanitizers ] && exit
# Downloads wait for the network and compilers for the processor: both at once.
set -m # A process group of its own, to be ended as one.
install_python_packages </dev/null &
set +m
readonly python_packages=$!
trap 'kill -- -"$python_packages" 2>/dev/null; rm -rf "$scratch"' EXIT
build_wheel
wait "$python_packages" || fail "Python packages (see above)"
trap 'rm -rf "$scratch"' EXIT
install_wheel
say "ready: .venv/bin/ringctl, $(ls dist | tr '\n' ' ')"
