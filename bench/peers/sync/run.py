"""800 devices synchronise at once: each uploads 50 changed rows and downloads 200.

pouchdb-server (CouchDB's replication protocol) and Kinto (REST on PostgreSQL) are servers for offline clients; `postgres` is a bound:
the same rows in one transaction a device, without a server, a protocol or change tracking above it.
"""
import os, re, statistics, time
from measure import *

KNOWN = ('pouchdb-server', 'kinto', 'postgres')
DEVICES = 32 if QUICK else 800
UP, DOWN = 50, 200
ROUNDS = 1 if QUICK else int(os.environ.get('ROUNDS', 3))
WHAT = f'{DEVICES} devices at once, {UP} rows up and {DOWN} down each'


def storm(peer, conditions, *arguments):
    runs = []
    for generation in range(1, ROUNDS + 1):
        command = [WORK / 'bin/sync_load', '-subs', DEVICES, '-up', UP, '-down', DOWN, '-gen', generation, *arguments]
        if run([*command, '-phase', 'load'], timeout=600) is None:
            break
        runs += results([*command, '-phase', 'sync'], timeout=600)
    short = sum(r['short'] for r in runs)
    if short:
        log(f'{peer}: {short} devices did not get all their rows')
    report(peer, conditions, [r for r in runs if not r['short']])


def report(peer, conditions, runs):
    conditions = f'{WHAT}, {conditions}'
    figure(peer, 'sync.rows', 'rows/s', [r['rows_s'] for r in runs], conditions)
    for key, name in (('low_s', 'fastest device'), ('avg_s', 'mean'), ('high_s', 'slowest device')):
        figure(peer, f'sync.storm{DEVICES} {name}', 's', [r[key] for r in runs], conditions)


def pouchdb_server():
    at, port = scratch('pouchdb'), free_port()
    program = WORK / 'npm/pouchdb-server/node_modules/.bin/pouchdb-server'
    server = start(['node', '--max-old-space-size=8000', program, '-p', port, '-o', '127.0.0.1', '-d', at, '-c', at / 'config.json', '-n', '--no-color-logs'],
                   port, log_file=at / 'log', cwd=at)
    time.sleep(2)
    storm('pouchdb-server', 'pouchdb-server 4.2 on LevelDB', '-url', f'http://127.0.0.1:{port}')
    stop(server)


def kinto():
    pg, at, port = Postgres('shared_buffers=1GB', 'max_wal_size=4GB'), scratch('kinto'), free_port()
    pg.sql("create database kinto encoding 'UTF8' template template0")
    pg.sql("alter database kinto set timezone='UTC'")
    url = f'postgresql://postgres@127.0.0.1:{pg.port}/kinto'
    (at / 'kinto.ini').write_text(f'''[app:main]
use = egg:kinto
kinto.storage_backend = kinto.core.storage.postgresql
kinto.storage_url = {url}
kinto.storage_pool_size = 20
kinto.cache_backend = kinto.core.cache.memory
kinto.permission_backend = kinto.core.permission.postgresql
kinto.permission_url = {url}
kinto.userid_hmac_secret = not-a-secret
multiauth.policies = basicauth
kinto.bucket_create_principals = system.Authenticated
kinto.batch_max_requests = 250
kinto.paginate_by = 10000
kinto.includes =
''')
    bin = WORK / 'venv/kinto/bin'
    if run([bin / 'kinto', 'migrate', '--ini', at / 'kinto.ini']) is None:
        raise SystemExit('kinto migrate failed')
    env = dict(os.environ, KINTO_INI=str(at / 'kinto.ini'))
    server = start([bin / 'gunicorn', '-w', '4', '-k', 'gthread', '--threads', '8', '--backlog', '2048', '-b', f'127.0.0.1:{port}', '-t', '600', 'kinto_app:app'],
                   port, log_file=at / 'log', env=env, cwd=HERE)
    time.sleep(4)  # its workers load
    storm('kinto', 'Kinto 26.5 on PostgreSQL, 4 workers of 8 threads', '-url', f'http://127.0.0.1:{port}', '-kind', 'kinto', '-auth', 'user:password')
    stop(server)
    pg.stop()


def postgres():
    connections = 16
    each = max(1, DEVICES // connections)
    pg, at = Postgres('shared_buffers=1GB', 'max_wal_size=4GB'), scratch('postgres-sync')
    pg.sql(f'''create table r(sub int, id int, ver bigint, qty int, price float, status text, note text, primary key(sub, id));
create sequence v; create table anchor(sub int primary key, ver bigint);
insert into r select s, i, nextval('v'), i % 97, i / 10.0, 'open', repeat('n', 180) from generate_series(1, {DEVICES}) s, generate_series(1, 1000) i;
create index on r(sub, ver); vacuum analyze r; checkpoint;''')
    (at / 'sync.sql').write_text(f'''\\set s random(1, {DEVICES})
\\set o random(1, 900)
begin;
insert into r select :s, :o + g, nextval('v'), 1, 1.5, 'up', repeat('u', 180) from generate_series(1, {UP}) g
  on conflict (sub, id) do update set ver = excluded.ver, qty = excluded.qty, price = excluded.price, status = excluded.status, note = excluded.note where r.ver < excluded.ver;
select id, ver, qty, price, status, note from r where sub = :s and ver > 0 order by ver limit {DOWN};
insert into anchor values(:s, 1) on conflict (sub) do update set ver = anchor.ver + 1;
commit;
''')
    runs = []
    for _ in range(ROUNDS):
        out = run([pg.bin / 'pgbench', '-n', '-f', at / 'sync.sql', '-c', connections, '-j', 2, '-t', each, '-l', f'--log-prefix={at}/log'], env=pg.env)
        times = []
        for f in at.glob('log.*'):
            times += [int(line.split()[2]) / 1e6 for line in f.read_text().splitlines()]
            f.unlink()
        if out and times:
            rate = float(re.search(r'tps = ([\d.]+)', out)[1])
            runs.append({'rows_s': rate * (UP + DOWN), 'low_s': min(times), 'avg_s': statistics.mean(times), 'high_s': max(times)})
    report('postgres', f'bound: one transaction a device over {connections} connections, PostgreSQL {pg.version}; device times without waiting for a connection', runs)
    pg.stop()


for peer, measure_it in (('pouchdb-server', pouchdb_server), ('kinto', kinto), ('postgres', postgres)):
    if wanted(peer, KNOWN):
        measure_it()
