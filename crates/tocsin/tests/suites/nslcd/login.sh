#!/usr/bin/env bash
# login.sh ETC NSLCD: what this machine would know of its people if ETC were its /etc, asked of nslcd (unpacked at NSLCD).
# Runs in mount and process namespaces of its own, in which nslcd ends with it: nothing of the machine's own is touched.
set -eu
etc=$1 nslcd=$2
mount --bind "$etc" /etc
mount -t tmpfs none /run
mkdir /run/nslcd
# Where both the daemon and getent find the module.
LD_LIBRARY_PATH=$(dirname "$nslcd"/lib/*/libnss_ldap.so.2)
export LD_LIBRARY_PATH
# Returns when it listens.
"$nslcd/usr/sbin/nslcd"
getent passwd vera
getent passwd 10001
getent group staff
id vera
