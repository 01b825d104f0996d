# Set-up functions, sourced by every setup.sh and run.sh. Nothing here starts a server.

peers=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PEERS_DIR=${PEERS_DIR:-$HOME/.cache/tocsin-peers}   # downloads, builds, data sets and scratch files; safe to delete
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
mkdir -p "$PEERS_DIR"

say() { echo "peers: $*" >&2; }
fail() { say "$*"; exit 1; }
need() { local c; for c in "$@"; do command -v "$c" >/dev/null || fail "$c is missing: install it first"; done; }

# apt_packages PACKAGE...: installs what is missing, as root or with sudo, and lets no package start its daemon.
apt_packages() {
  local package missing=() root=
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || fail "these packages are missing and need root: apt-get install --no-install-recommends ${missing[*]}"
    root=sudo
  fi
  say "installing ${missing[*]}"
  $root env DEBIAN_FRONTEND=noninteractive bash -s "${missing[@]}" >&2 <<'ROOT' || fail "apt-get could not install ${missing[*]}"
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ]; then
      printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy
      trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    if command -v debconf-set-selections > /dev/null; then
      printf '%s\n' 'postfix postfix/main_mailer_type select No configuration' | debconf-set-selections
    fi
    install() { apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"; }
    install "$@" || { apt-get -q update && install "$@"; }
ROOT
}

# rust_programs PACKAGE...: builds packages of the workspace beside this file.
rust_programs() {
  need cargo
  local package packages=()
  for package in "$@"; do packages+=(-p "$package"); done
  nice cargo build --quiet --release --locked --manifest-path "$peers/Cargo.toml" --target-dir "$PEERS_DIR/target" "${packages[@]}" >&2 || fail "cargo could not build $*"
}

# npm_packages FOLDER: installs the packages of FOLDER/package.json, and its scripts beside them, under the work folder.
npm_packages() {
  need node npm
  local at=$PEERS_DIR/npm/$(basename "$1")
  mkdir -p "$at"
  cp "$1"/* "$at"/
  cmp -s "$at/package.json" "$at/.installed" && return
  (cd "$at" && npm install --no-audit --no-fund --no-package-lock --loglevel=error >&2) || fail "npm could not install $1"
  cp "$at/package.json" "$at/.installed"
}

# python_packages NAME PACKAGE==VERSION...: a virtual environment of that name under the work folder.
python_packages() {
  need python3
  local at=$PEERS_DIR/venv/$1; shift
  [ "$(cat "$at/.installed" 2>/dev/null)" = "$*" ] && return
  python3 -m venv "$at" >&2 || { apt_packages python3-venv; python3 -m venv "$at" >&2; } || fail "python3 cannot make a virtual environment"
  "$at/bin/pip" install --quiet "$@" >&2 || fail "pip could not install $*"
  echo "$*" > "$at/.installed"
}

# maven_jars FOLDER: the dependencies of FOLDER/pom.xml, and what FOLDER/*.java compiles to, under the work folder.
maven_jars() {
  local at=$PEERS_DIR/maven/$(basename "$1")
  command -v mvn >/dev/null && command -v javac >/dev/null || apt_packages maven default-jdk-headless
  mkdir -p "$at"
  if ! cmp -s "$1/pom.xml" "$at/.installed"; then
    mvn -q -B -Dstyle.color=never -f "$1/pom.xml" dependency:copy-dependencies -DoutputDirectory="$at" >&2 || fail "mvn could not fetch the dependencies of $1"
    cp "$1/pom.xml" "$at/.installed"
  fi
  local sources=("$1"/*.java)
  [ ! -e "${sources[0]}" ] || javac -cp "$at/*" -d "$at" "${sources[@]}" >&2 || fail "javac could not compile $1"
}

# go_programs FOLDER PROGRAM...: builds FOLDER/PROGRAM/main.go.
go_programs() {
  need go
  local folder=$1 program; shift
  mkdir -p "$PEERS_DIR/bin"
  for program in "$@"; do
    (cd "$folder" && nice go build -o "$PEERS_DIR/bin/$program" "./$program") >&2 || fail "go could not build $program"
  done
}

# measure RUN.py [quick] [PEER...]: runs a measurement; python stops by pid what it started, also when it is interrupted.
measure() {
  need python3
  export PYTHONPATH=$peers PYTHONDONTWRITEBYTECODE=1
  exec python3 "$@"
}
