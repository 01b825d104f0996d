//! Workloads of the article on merge replication.

use super::{
    claim::{Claim, Test, claim},
    workload::{Family, Workload, graph, row, workload},
};

pub const FAMILY: Family = Family {
    title: "Sync",
    machine: "2 web servers of 2 cores, 2 database servers of 8, of 2008",
    workloads: WORKLOADS,
    claims: CLAIMS,
};

const WORKLOADS: &[Workload] = &[
    workload(
        "WMR-01",
        "100 to 1,200 devices, each restarts at once, 1,200 rows of 116 bytes",
        &[
            row("the most, rows/s", "5,826 (1,200 devices)", 5_826.0, "sync.sweep"),
            row("300 devices, longest, s", "504 (mean 126)", 504.0, "sync.loop300"),
            row("800 devices, longest, s", "2,274 (mean 936)", 2_274.0, "sync.loop800"),
        ],
        "the most is of all numbers of devices and all pools, the longest sessions are of the pool that finds its size; the means \
         stand in the conditions; one server, the devices on the same machine, 600 rows up and 600 down",
    ),
    workload(
        "WMR-02",
        "pools of 20 to 1 by 1 to 6 servers",
        &[graph("best, rows/s", "2 threads on each of 6 servers", "sync.sweep")],
        "ours is one server with pools of 20 to 1 and an adaptive one; each is in the conditions",
    ),
    workload(
        "WMR-03",
        "the storm: 800 devices in the same second, once",
        &[graph("until all are done, s", "longest 37.9 min (in a loop)", "sync.storm800")],
        "ours connect once, as the title says",
    ),
    workload(
        "WMR-04",
        "links that break",
        &[graph("until all are done, s", "not reported", "sync.broken_links")],
        "ours are 200 devices, three sessions each; no row twice, none missing",
    ),
    workload(
        "WMR-05",
        "devices that edit the same rows",
        &[graph("a half of the devices, rows/s", "not reported", "sync.conflicts")],
        "ours are 200 devices",
    ),
];

const CLAIMS: &[Claim] = &[
    claim("Fewer threads make shorter sessions when all are busy", Test::LargerThanPeer("sync.pools.few")),
    claim("No more than 20 connections to the reconciler in all", Test::LargerThanPeer("sync.pools.twenty")),
    claim(
        "800 devices were faster than 600 and 700",
        Test::Contradictory("two things changed between the runs: 40 connections became 20, and one server two"),
    ),
    claim(
        "1,200 devices took 6 min 38 s with three servers of 10 threads",
        Test::Contradictory("30 connections, which the rule of 20 forbids, on larger database servers"),
    ),
];
