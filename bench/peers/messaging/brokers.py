"""RabbitMQ and NATS JetStream on free ports and in fresh folders, and the commands that put durable round trips through them."""
import os, time
from measure import *

DRIVERS = WORK / 'bin'


class Way:
    """One way to make round trips: a broker, how it stores, and the driver's command."""

    def __init__(self, name, command, conditions):
        self.name, self.command, self.conditions = name, command, conditions

    def turn(self, callers, seconds):
        """Round trips with so many callers, each with one request outstanding; None, and a line in the log, if they fail."""
        lines = results([*self.command, '-callers', callers, '-seconds', seconds], timeout=seconds + 60)
        return lines[-1] if lines and lines[-1]['n'] else None


def rabbitmq():
    """The server, and its ways; no way if it is not installed."""
    program = '/usr/lib/rabbitmq/bin/rabbitmq-server'
    if not os.path.exists(program):
        log('rabbitmq: not installed (setup.sh)')
        return None, []
    home, port, epmd, distribution = scratch('rabbitmq'), free_port(), free_port(), free_port()
    (home / 'rabbitmq.conf').write_text(f'listeners.tcp.1 = 127.0.0.1:{port}\nloopback_users.guest = true\ndisk_free_limit.absolute = 1GB\nlog.console.level = error\nlog.file = false\n')
    (home / 'plugins').write_text('[].\n')
    env = dict(os.environ, HOME=str(home), RABBITMQ_NODENAME='peers@localhost', RABBITMQ_MNESIA_BASE=f'{home}/mnesia', RABBITMQ_LOG_BASE=f'{home}/log',
               RABBITMQ_CONFIG_FILE=f'{home}/rabbitmq.conf', RABBITMQ_ENABLED_PLUGINS_FILE=f'{home}/plugins', RABBITMQ_PID_FILE=f'{home}/pid',
               RABBITMQ_DIST_PORT=str(distribution), ERL_EPMD_PORT=str(epmd), ERL_EPMD_ADDRESS='127.0.0.1',
               RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}')
    start(['epmd', '-port', epmd], epmd, env=env)
    server = start([program], port, log_file=home / 'out', env=env, seconds=120, cwd=home)  # what it dumps when it is stopped goes there
    time.sleep(2)  # it accepts connections a moment before it is ready
    url = f'amqp://guest:guest@127.0.0.1:{port}/'
    return server, [Way(name, [DRIVERS / 'rabbit_rpc', '-url', url, '-queue', queue], f'{queue} queues, persistent, confirmed')
                    for name, queue in (('rabbitmq', 'classic'), ('rabbitmq-quorum', 'quorum'))]


def nats(name, binary, synced):
    """The server, and its way; no way if it is not installed, or cannot sync every message although it should."""
    if not os.path.exists(binary) and not shutil.which(binary):
        log(f'{name}: not installed (setup.sh)')
        return None, []
    version = (run([binary, '--version']) or '').split()[-1:]
    at, port = scratch('nats'), free_port()
    conf = at / 'nats.conf'
    conf.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{at}/store"\n max_file_store: 20GB\n{"sync_interval: always" if synced else ""} }}\n')
    if synced and run([binary, '-t', '-c', conf]) is None:
        log(f'{name} {version} cannot sync every message')
        return None, []
    server = start([binary, '-c', conf], port, log_file=at / 'log')
    how = 'sync always' if synced else 'synced each two minutes: a power cut can lose messages'
    return server, [Way(name, [DRIVERS / 'nats_rpc', '-url', f'nats://127.0.0.1:{port}'], f'nats-server {"".join(version)}, file storage, {how}')]
