//! The workloads of the messaging paper.

use super::{Claim, Family, Row, Test, Workload, graph, row};

pub const FAMILY: Family = Family {
    title: "Exchanges",
    machine: "7 servers of 2 processors, a database server of 4 to 8, a SAN of 134 disks, of 2006",
    workloads: &WORKLOADS,
    claims: &CLAIMS,
};

const fn workload(name: &'static str, about: &'static str, rows: &'static [Row]) -> Workload {
    Workload { name, about, rows, differs: "" }
}

const WORKLOADS: [Workload; 9] = [
    workload(
        "WBT-01",
        "a full round trip: A, route by content, B, back to A",
        &[
            row("round trips/s, mean round trip 301 ms", "92 (run 14-B, bodies not tracked)", 92.0, "exchange.paper"),
            row("round trips/s, mean round trip 1912 ms, median 905 ms", "128 (run 9-A)", 128.0, "exchange.knee"),
        ],
    ),
    workload(
        "WBT-02",
        "5, 7, 8 and more virtual users; an open loop until the mean exceeds 300 ms",
        &[graph("knee", "graph only (figure 24)", "exchange.knee")],
    ),
    workload(
        "WBT-03",
        "2 receivers, 4 to 7 senders",
        &[graph("round trips/s", "graph only (figure 25)", "exchange.senders")],
    ),
    workload("WBT-04", "receiving faster than sending", &[graph("delay", "more than 20 s", "exchange.toofast")]),
    workload(
        "WBT-05",
        "bodies tracked at 0, 1 and 4 points",
        &[
            graph("0 points", "92/s", "exchange.roundtrip"),
            graph("1 point", "87/s", "exchange.tracking1"),
            graph("4 points", "79/s", "exchange.tracking4"),
        ],
    ),
    workload(
        "WBT-06",
        "1, 3, 4 and 5 stores",
        &[graph("against one", "-12 to +9 %, +31 % with more users", "exchange.partitions")],
    ),
    workload("WBT-07", "checkpoints", &[graph("latency", "spikes once a minute", "exchange.checkpoints")]),
    workload(
        "WBT-08",
        "two sizes of the store, the same users",
        &[graph("larger store", "+80 %, mean latency x 3", "exchange.small")],
    ),
    workload(
        "WBT-09",
        "tracking and transports in the same workers, or in others",
        &[
            graph("bodies at four points", "in hosts of their own", "exchange.tracking4"),
            graph("a flood beside", "in hosts of their own", "exchange.workers"),
        ],
    ),
];

const fn claim(said: &'static str, test: Test) -> Claim {
    Claim { said, test }
}

const CLAIMS: [Claim; 6] = [
    claim("Bodies at four points cost 14 % of the throughput", Test::Open),
    claim("More stores do not help while latency is the limit", Test::Open),
    claim("Receiving is cheaper than sending", Test::Open),
    claim(
        "Run 15-A: the median round trip is 227 ms",
        Test::Contradictory(
            "no round trip is shorter than its response, whose median is 230 ms; perhaps 327 was meant",
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
