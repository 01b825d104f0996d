//! Workloads of the messaging paper.

use super::{
    claim::{Claim, Test, claim},
    workload::{Family, Workload, graph, peer_row, row, workload},
};

pub const FAMILY: Family = Family {
    title: "Exchanges",
    machine: "7 servers of 2 processors, a database server of 4 to 8, a SAN of 134 disks, of 2006",
    workloads: WORKLOADS,
    claims: CLAIMS,
};

const WORKLOADS: &[Workload] = &[
    workload(
        "WBT-01",
        "a full round trip: A, route by content, B, back to A",
        &[
            row("round trips/s, mean round trip 301 ms", "92 (run 14-B, bodies not tracked)", 92.0, "exchange.paper"),
            row("round trips/s, mean round trip 1912 ms, median 905 ms", "128 (run 9-A)", 128.0, "exchange.knee"),
        ],
        "ours of the second row is the highest rate with a mean of at most 300 ms",
    ),
    workload(
        "WBT-02",
        "5, 7, 8 and more virtual users; an open loop until the mean exceeds 300 ms",
        &[graph("knee, round trips/s", "graph only (figure 24)", "exchange.knee")],
        "ours uses 64 connections; the users are in the conditions",
    ),
    workload(
        "WBT-03",
        "2 receivers, 4 to 7 senders",
        &[graph("7 senders, round trips/s", "graph only (figure 25)", "exchange.senders")],
        "in ours B takes 20 ms; 4, 5 and 6 senders are in the conditions",
    ),
    workload(
        "WBT-04",
        "receiving faster than sending",
        &[
            graph("longest round trip, s", "more than 20 s", "exchange.toofast"),
            peer_row("without flow control, for an eighth of the time", "", "exchange.toofast"),
        ],
        "ours throttles fast senders",
    ),
    workload(
        "WBT-05",
        "bodies tracked at 0, 1 and 4 points",
        &[
            peer_row("0 points, round trips/s", "92/s", "exchange.tracking4"),
            graph("1 point", "87/s", "exchange.tracking1"),
            graph("4 points", "79/s", "exchange.tracking4"),
        ],
        "in ours 64 callers wait for the reply; 0 and 4 points alternated, 1 point ran separately",
    ),
    workload(
        "WBT-06",
        "1, 3, 4 and 5 stores",
        &[
            graph("3 stores, 64 users, round trips/s", "-12 to +9 %, +31 % with more users", "exchange.partitions"),
            peer_row("1 store, 64 users", "", "exchange.partitions"),
            graph("3 stores, 8 users, round trips/s", "", "exchange.partitions.few"),
            peer_row("1 store, 8 users", "", "exchange.partitions.few"),
        ],
        "ours are partitions of one spool on one disk; 4 and 5 are in the conditions",
    ),
    workload(
        "WBT-07",
        "checkpoints",
        &[
            graph("p99 while the store's file is written, ms", "spikes once a minute", "exchange.checkpoints"),
            peer_row("p99 between, ms", "", "exchange.checkpoints"),
        ],
        "ours writes checkpoints many times a second",
    ),
    workload(
        "WBT-08",
        "two sizes of the store, the same users",
        &[
            peer_row("larger, round trips/s", "+80 %, mean latency x 3", "exchange.small"),
            graph("smaller", "", "exchange.small"),
        ],
        "ours are the threads of one server: as many as it takes, or two with one reader of the spool",
    ),
    workload(
        "WBT-09",
        "tracking and transports in the same workers, or in others",
        &[
            graph("bodies at four points", "in hosts of their own", "exchange.tracking4"),
            graph("with a flood of another exchange", "in hosts of their own", "exchange.workers"),
        ],
        "ours is one process, in which both share the processors",
    ),
];

const CLAIMS: &[Claim] = &[
    claim("Bodies at four points cost 14 % of the throughput", Test::PartOfPeer("exchange.tracking4", 0.86)),
    claim("More stores do not help while latency is the limit", Test::NotLargerThanPeer("exchange.partitions.few")),
    claim("With more users, more stores do help", Test::LargerThanPeer("exchange.partitions")),
    claim("Receiving is cheaper than sending", Test::LargerThanPeer("exchange.receive")),
    claim(
        "Run 15-A: the median round trip is 227 ms",
        Test::Contradictory(
            "a round trip cannot be shorter than its response, whose median is 230 ms; probably a misprint of 327",
        ),
    ),
    claim(
        "More throughput means more latency",
        Test::Contradictory("run 14-B has more throughput and less latency than 14-A: it is about queues, not a law"),
    ),
    claim(
        "All times are in messages per second (footnote of tables 86 to 91)",
        Test::Contradictory("only the throughput is; the times are milliseconds"),
    ),
];
