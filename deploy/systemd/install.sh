#!/usr/bin/env bash
# Installs ringd on this host from its wheel, as systemd services.
#
#   deploy/systemd/install.sh daemon|scheduler|both [WHEEL]     (default: the one in dist/)
#
# Programs go to /opt/ringd (a virtual environment), links to /usr/bin, units to /etc/systemd/system, man pages to
# /usr/local/share/man. An existing /etc/ringd/ringd.toml is left alone. With DESTDIR everything goes below that folder
# and no user, group or service is touched. Run it again to upgrade: running jobs go on.
set -euo pipefail
wheel="${2:+$(realpath -m -- "$2")}" # Before the folder changes.
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
  printf 'install: %s\n' "$*" >&2
  exit 2
}

readonly what="${1:-}" root="${DESTDIR:-}" prefix=/opt/ringd
case "$what" in
  daemon) units=(ringd.service) ;;
  scheduler) units=(ringd-scheduler.service) ;;
  both) units=(ringd.service ringd-scheduler.service) ;;
  *) fail "say what to install: daemon, scheduler or both" ;;
esac
if [ -z "$wheel" ]; then
  wheels=(../../dist/ringd-*.whl)
  wheel="${wheels[0]}"
fi
[ -f "$wheel" ] || fail "no wheel ${2:-in dist/}; deploy/setup.sh builds one"
[ -n "$root" ] || [ "$(id -u)" -eq 0 ] || fail "run this as root, or set DESTDIR"

install -d "$root/usr/bin" "$root/etc/ringd" "$root/etc/systemd/system" "$root/usr/lib/sysusers.d"
[ -x "$root$prefix/bin/python" ] || /usr/bin/python3 -m venv "$root$prefix"
"$root$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
for program in ringd ringd-worker ringd-scheduler ringctl; do
  ln -sfn "$prefix/bin/$program" "$root/usr/bin/$program"
done
install -m 0644 "${units[@]}" "$root/etc/systemd/system/"
install -m 0644 ringd.sysusers "$root/usr/lib/sysusers.d/ringd.conf"
[ -e "$root/etc/ringd/ringd.toml" ] || install -m 0644 ringd.toml "$root/etc/ringd/ringd.toml"
for page in ../../docs/man/*.[158]; do
  install -D -m 0644 "$page" "$root/usr/local/share/man/man${page##*.}/${page##*/}"
done

if [ -n "$root" ]; then
  printf 'installed %s below %s\n' "${units[*]}" "$root"
  exit
fi
systemd-sysusers ringd.conf
systemctl daemon-reload
printf 'installed %s; now edit /etc/ringd/ringd.toml, then: systemctl enable --now %s\n' "${units[*]}" "${units[*]}"
