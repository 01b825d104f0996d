//! Workloads of the membership paper (LDAP).

use super::{
    claim::{Claim, Test, claim},
    workload::{Family, Workload, graph, row, workload},
};

pub const FAMILY: Family = Family {
    title: "Directory",
    machine: "4 x 400 MHz Xeon as LDAP server, the same as database, 20 disks, of 1999",
    workloads: WORKLOADS,
    claims: CLAIMS,
};

const CLOSED: &str =
    "ours is a closed loop over 64 connections without think time, as an ordinary user under access rules";

const WORKLOADS: &[Workload] = &[
    workload(
        "WSS-01",
        "200,000 entries of 20 attributes are stored",
        &[graph("entries/s", "376 (appendix), 146 (cost table), 21 (database table)", "ldap.import")],
        "ours reads 100,000 entries from a file into an empty directory",
    ),
    workload(
        "WSS-02",
        "adds of 20 attributes, more clients step by step",
        &[row("operations/s", "376", 376.0, "ldap.add")],
        CLOSED,
    ),
    workload("WSS-03", "searches by name", &[row("operations/s", "796", 796.0, "ldap.base")], CLOSED),
    workload(
        "WSS-04",
        "modifications that add a value",
        &[row("operations/s", "673", 673.0, "ldap.modify_add")],
        CLOSED,
    ),
    workload(
        "WSS-05",
        "modifications that replace a value",
        &[row("operations/s", "700 (appendix), 269 (cost table)", 700.0, "ldap.modify_replace")],
        CLOSED,
    ),
    workload(
        "WSS-06",
        "3 adds, 12 modifications, 75 searches and 10 binds of 100",
        &[graph("operations/s", "", "ldap.mix")],
        CLOSED,
    ),
    workload(
        "WSS-07",
        "1 processor against 4",
        &[graph("searches by name with all processors, searches/s", "x 1.32", "ldap.processors")],
        "ours uses all processors of the machine, shared with the load",
    ),
    workload(
        "WSS-08",
        "an ordinary user, 0 to 100,000 groups",
        &[graph("searches by name with 100,000 groups, searches/s", "", "ldap.groups")],
        CLOSED,
    ),
    workload(
        "WSS-09",
        "capacity from single operations against a mixed run",
        &[graph("error of the throughput, in the median of twelve mixes", "not reported", "plan.error")],
        "ours are mixes of all operations of the server, two of the directory alone; tocsin capacity adds up costs instead",
    ),
];

const CLAIMS: &[Claim] = &[
    claim(
        "More searches than modifications, and more modifications than adds, at most",
        Test::Falls(&["ldap.base", "ldap.modify_add", "ldap.add"]),
    ),
    claim("Rates grow with clients until a knee", Test::LargerThanPeer("ldap.clients")),
    claim("Four processors have 1.3 to 1.6 times the throughput of one", Test::LargerThanPeer("ldap.processors")),
    claim(
        "The new machine is faster by a factor of 2",
        Test::Contradictory("the same table has 180 and 796 searches, 110 and 673 modifications: 4.4 and 6.1 times"),
    ),
    claim(
        "Modify-Replace: 269 a second",
        Test::Contradictory(
            "the appendix says 700; the scripts seem to think for a second, so 269 is what was offered",
        ),
    ),
    claim("Add: 376 a second", Test::Contradictory("146 in the cost table, 21 in the table of the database")),
    claim(
        "An operation makes six transactions of the disk",
        Test::Contradictory("by the paper's tables a search makes 0.75, a modification 2 to 2.7, an add 47 to 200"),
    ),
];
