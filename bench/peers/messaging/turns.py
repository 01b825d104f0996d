"""The durable brokers, a turn at a time, so that another program can measure itself between them.

The first line of the output names the ways. Then each line of the input, `WAY CALLERS SECONDS`, is answered with a line of JSON, `null` if
the turn failed. Everything ends with the input.
"""
from measure import *
import brokers

ways = {way.name: way for found in (brokers.rabbitmq(), brokers.nats('nats', brokers.DRIVERS / 'nats-server', synced=True)) for way in found[1]}
print(json.dumps({name: way.conditions for name, way in ways.items()}), flush=True)
for line in sys.stdin:
    name, callers, seconds = line.split()
    print(json.dumps(ways[name].turn(int(callers), int(seconds))), flush=True)
