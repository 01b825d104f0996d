//! The workloads of the post on merge replication.

use super::{Claim, Family, Row, Test, Workload, graph, row};

pub const FAMILY: Family = Family {
    title: "Sync",
    machine: "2 web servers of 2 cores, 2 database servers of 8, of 2008",
    workloads: &WORKLOADS,
    claims: &CLAIMS,
};

const fn workload(name: &'static str, about: &'static str, rows: &'static [Row]) -> Workload {
    Workload { name, about, rows, differs: "" }
}

const WORKLOADS: [Workload; 5] = [
    workload(
        "WMR-01",
        "100 to 1,200 devices, each begins again at once, 1,200 rows of 116 bytes",
        &[
            graph("300 devices, longest / mean", "8.4 min / 2.1 min", "sync.sweep"),
            graph("800 devices, longest / mean", "37.9 min / 15.6 min", "sync.sweep"),
            row("1,200 devices, rows/s", "5,826", 5_826.0, "sync.rows"),
        ],
    ),
    workload(
        "WMR-02",
        "pools of 20 to 1 by 1 to 6 servers",
        &[graph("best", "2 threads on each of 6 servers", "sync.sweep")],
    ),
    workload(
        "WMR-03",
        "the storm: 800 devices in the same second, once",
        &[graph("longest", "37.9 min (in a loop)", "sync.storm800")],
    ),
    workload("WMR-04", "links that break", &[graph("resumed, no duplicates", "not told", "sync.broken_links")]),
    workload(
        "WMR-05",
        "devices that edit the same rows",
        &[graph("a half of the devices", "not told", "sync.conflicts")],
    ),
];

const CLAIMS: [Claim; 4] = [
    Claim { said: "Fewer threads make shorter sessions when all are busy", test: Test::Open },
    Claim { said: "No more than 20 connections to the reconciler in all", test: Test::Open },
    Claim {
        said: "800 devices were faster than 600 and 700",
        test: Test::Contradictory("two things changed between the runs: 40 connections became 20, and one server two"),
    },
    Claim {
        said: "1,200 devices took 6 min 38 s with three servers of 10 threads",
        test: Test::Contradictory("30 connections, which the rule of 20 forbids, on larger database servers"),
    },
];
