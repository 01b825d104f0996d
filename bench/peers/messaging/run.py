"""Durable round trips at 1, 8, 64 and 256 callers over RabbitMQ and NATS JetStream: request stored, response stored, both acknowledged."""
from measure import *
import brokers

KNOWN = ('rabbitmq', 'nats', 'nats-unsynced')
SECONDS = 1 if QUICK else 5


def measured(server, ways):
    for way in ways:
        for callers in (1, 8, 64, 256):
            turns = [way.turn(callers, SECONDS) for _ in range(REPEATS + (callers == 1))]
            turns = [t for t in turns[callers == 1:] if t]
            what = f'{way.conditions}, 1 KB, {callers} callers with one request outstanding each'
            figure(way.name, f'exchange.roundtrip/{callers}', 'round trips/s', [t['per_s'] for t in turns], what)
            figure(way.name, f'exchange.roundtrip/{callers} p99', 'ms', [t['p99_ms'] for t in turns], what)
    if server:
        stop(server)


if wanted('rabbitmq', KNOWN):
    measured(*brokers.rabbitmq())
if wanted('nats', KNOWN):
    measured(*brokers.nats('nats', brokers.DRIVERS / 'nats-server', synced=True))
if wanted('nats-unsynced', KNOWN):
    measured(*brokers.nats('nats-unsynced', 'nats-server', synced=False))
