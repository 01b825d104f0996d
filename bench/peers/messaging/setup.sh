#!/bin/bash
# RabbitMQ and nats-server from Debian (their services are not started), our drivers and the newest nats-server we know, which need Go: it can
# sync every message, Debian 12's cannot.
set -eu
here=$(cd "$(dirname "$0")" && pwd); . "$here/../lib.sh"
[ -e /usr/lib/rabbitmq/bin/rabbitmq-server ] && command -v nats-server > /dev/null || apt_packages rabbitmq-server nats-server
for program in rabbit_rpc nats_rpc; do
  [ -x "$PEERS_DIR/bin/$program" ] || go_programs "$here/drivers" $program
done
if [ ! -x "$PEERS_DIR/bin/nats-server" ]; then
  need go
  say "building nats-server"
  GOBIN=$PEERS_DIR/bin nice go install github.com/nats-io/nats-server/v2@v2.15.2 >&2 || fail "go could not build nats-server"
fi
