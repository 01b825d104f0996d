//! Workloads of the notification paper and of NotifyBC.

use super::{
    claim::{Claim, Test, claim},
    workload::{Family, Row, Workload, graph, peer_row, row, workload},
};

pub const FAMILY: Family = Family {
    title: "Notifications",
    machine: "2 x 1.7 GHz Pentium 4 (Dual), 4 x 700 MHz Pentium III (Quad), both (Combo), of 2002; NotifyBC's runs on its own machines",
    workloads: WORKLOADS,
    claims: CLAIMS,
};

/// Rows by size of an event or a text: those before, seven sizes of a figure, and those after.
macro_rules! by_size {
    ($([$($before:expr),+ $(,)?])? $unit:literal, $figure:literal $(, $after:expr)*) => {
        &[
            $($($before,)+)?
            graph(concat!("25 characters", $unit), "", concat!($figure, ".25")),
            graph("50 characters", "", concat!($figure, ".50")),
            graph("100 characters", "", concat!($figure, ".100")),
            graph("250 characters", "", concat!($figure, ".250")),
            graph("500 characters", "", concat!($figure, ".500")),
            graph("1000 characters", "", concat!($figure, ".1000")),
            graph("2000 characters", "", concat!($figure, ".2000")),
            $($after,)*
        ]
    };
}

/// Rows by number of events in a batch of 250 characters each: the reported values of the first two, and rows after.
macro_rules! by_batch {
    ($figure:literal, $one:literal, $ten:literal $(, $after:expr)* $(,)?) => {
        &[
            graph("1, events/s", $one, concat!($figure, ".by1")),
            graph("10", $ten, concat!($figure, ".by10")),
            graph("100", "", concat!($figure, ".by100")),
            graph("1,000", "", concat!($figure, ".by1000")),
            graph("10,000", "", concat!($figure, ".250")),
            $($after,)*
        ]
    };
}

const FORMATTING: &[Row] = by_size!(
    [
        row("25 characters", "400 to 500/s", 450.0, "format.xslt.25"),
        row("50 characters", "400 to 500/s", 450.0, "format.xslt.50"),
        row("100 characters", "400 to 500/s", 450.0, "format.xslt.100"),
        row("250 characters", "400 to 500/s", 450.0, "format.xslt.250"),
        row("500 characters", "400 to 500/s", 450.0, "format.xslt.500"),
        graph("1000 characters", "", "format.xslt.1000"),
        row("2000 characters", "100 to 200/s", 150.0, "format.xslt.2000"),
    ]
    " by Jinja", "format.jinja"
);
const FILES: &[Row] = by_size!(", events/s", "intake.file");
const QUERIES: &[Row] = by_size!(", events/s", "intake.sql");
const REQUESTS: &[Row] = by_size!(", events/s", "intake.api", graph("5000 characters", "", "intake.api.5000"));

const WORKLOADS: &[Workload] = &[
    workload(
        "WNS-01",
        "100,000 subscribers into an empty installation, one client",
        &[
            graph("subscribers/s", "graph only (figure 5)", "population.load"),
            graph("as one import", "", "import.subscribers"),
        ],
        "ours have a device each",
    ),
    workload(
        "WNS-02",
        "10,000 subscribers more",
        &[graph("subscribers/s", "graph only (figure 5)", "population.more")],
        "ours have a device each",
    ),
    workload(
        "WNS-03",
        "10,000 of 110,000 subscribers deleted at random",
        &[graph("subscribers/s", "graph only (figure 5)", "population.delete")],
        "ours have a device each",
    ),
    workload(
        "WNS-04",
        "10,000 of 100,000 subscribers read and updated at random",
        &[graph("subscribers/s", "graph only (figure 5)", "population.update")],
        "ours have a device each",
    ),
    workload(
        "WNS-05",
        "the four above with many clients",
        &[
            graph("load, subscribers/s", "\"improves significantly\"", "population.load.many"),
            graph("more, subscribers/s", "\"improves significantly\"", "population.more.many"),
            graph("deleted, subscribers/s", "graph only", "population.delete.many"),
            graph("updated, subscribers/s", "graph only", "population.update.many"),
        ],
        "ours are 16 clients",
    ),
    workload(
        "WNS-06",
        "100,000 subscriptions driven by events, 20, 200 and 1,000 characters",
        &[
            graph("20 characters, subscriptions/s", "graph only (figure 6)", "subscriptions.20"),
            graph("200 characters", "", "subscriptions.200"),
            graph("1,000 characters", "", "subscriptions.1000"),
            graph("1,000,000 as one import", "", "import.subscriptions"),
        ],
        "",
    ),
    workload(
        "WNS-07",
        "driven by events compared with scheduled, 200 characters",
        &[
            graph("by events, subscriptions/s", "graph only (figure 7)", "subscriptions.200"),
            graph("scheduled", "\"minimal decline\"", "subscriptions.scheduled"),
        ],
        "",
    ),
    workload(
        "WNS-08",
        "many clients that store subscriptions",
        &[graph("subscriptions/s", "+50 to +100 %", "subscriptions.many")],
        "ours are 16 clients, 200 characters",
    ),
    workload("WNS-09", "files of 10,000 events of 25 to 2,000 characters", FILES, ""),
    workload(
        "WNS-10",
        "files of 1 to 10,000 events of 250 characters",
        by_batch!("intake.file", "graph only (figure 9)", ""),
        "",
    ),
    workload("WNS-11", "a query that yields 10,000 events", QUERIES, "ours ask SQLite"),
    workload(
        "WNS-12",
        "queries that yield 1 to 10,000 events",
        by_batch!("intake.sql", "graph only (figure 11)", ""),
        "ours ask SQLite",
    ),
    workload("WNS-13", "the API, batches of 10,000 events of 25 to 2,000 (or 5,000) characters", REQUESTS, ""),
    workload(
        "WNS-14",
        "the API, 250 characters, batches of 1 to 10,000",
        by_batch!(
            "intake.api",
            "\"hundreds\"",
            "graph only (figure 13)",
            graph("100, 16 clients", "", "intake.api.many"),
            graph("1, 64 clients", "", "accept.single"),
            graph("1,000, 4 clients", "", "accept.batch"),
        ),
        "",
    ),
    workload(
        "WNS-15",
        "10,000 notifications of one event batch, one thread, 1 to 32 notification batches",
        &[
            row("notifications/s, one batch", "850 (Dual), 1100 (Quad)", 1_100.0, "match.stock.generate"),
            graph("32 batches for each rule", "650 (Dual), 950 (Quad)", "match.stock.generate.by32"),
            peer_row("one for each rule", "850 (Dual), 1100 (Quad)", "match.stock.generate.by32"),
        ],
        "ours are the stock case into batches of 2,500, ready to commit, not committed",
    ),
    workload(
        "WNS-16",
        "8 rules of 2,500 notifications; 1, 2, 4 threads and automatic",
        &[
            graph("events/s, automatic", "best at 1 to 2 times the processors", "auto.match"),
            graph("automatic, compared with one thread", "", "match.parallel"),
            peer_row("one thread", "", "match.parallel"),
        ],
        "ours tries each event against 20,000 subscriptions; 1, 2, 4 and 8 shards of the index in the conditions",
    ),
    workload("WNS-17", "formatting by XSLT alone, one thread", FORMATTING, ""),
    workload(
        "WNS-18",
        "delivery alone of 5,000 notifications by file, HTTP and SMTP",
        &[
            graph("by file", "fastest", "deliver.file"),
            row("by HTTP", "more than 200/s", 200.0, "deliver.http"),
            row("by SMTP", "about 20/s", 20.0, "deliver.smtp"),
        ],
        "ours are 100,000, from acceptance to the last durable receipt",
    ),
    workload(
        "WNS-19",
        "digests of 1 to 10 notifications, 200 characters each by XSLT, one thread, thrown away",
        &[
            graph("1 notification, notifications/s", "graph only (figure 18)", "deliver.digest.1"),
            graph("2 notifications", "lower, lowest for a few", "deliver.digest.2"),
            graph("3 notifications", "", "deliver.digest.3"),
            graph("4 notifications", "", "deliver.digest.4"),
            graph("5 notifications", "", "deliver.digest.5"),
            graph("10 notifications", "", "deliver.digest.10"),
        ],
        "ours are 60,000, from acceptance to the last durable receipt, and the messages are written to a file",
    ),
    workload(
        "WNS-20",
        "multicast by SMTP, 1 to 100 recipients of a mail",
        &[
            graph("1 recipient, recipients/s", "graph only (figure 19)", "deliver.smtp"),
            graph("2 recipients", "", "deliver.smtp.many2"),
            graph("4 recipients", "", "deliver.smtp.many4"),
            graph("10 recipients", "", "deliver.smtp.many10"),
            graph("50 recipients", "", "deliver.smtp.many50"),
            graph("100 recipients", "\"dramatic benefit\"", "deliver.smtp.many100"),
        ],
        "ours are over 10 sessions, from acceptance to the last durable receipt",
    ),
    workload(
        "WNS-21",
        "the stock case: 1,000 quotes a minute, 1,000,000 subscriptions, by HTTP, 1, 2 and 3 distributors",
        &[
            row("notifications/s, 3 distributors", "about 700", 700.0, "case.stock"),
            row("latency at the paper's rate, ms", "less than 2 minutes", 120_000.0, "case.stock.paced"),
        ],
        "ours is one process on one machine",
    ),
    workload(
        "WNS-22",
        "the acceptance test: 10,000 subscribers with a subscription each, one batch",
        &[graph("until all notifications are delivered and the reports are read, s", "no numbers", "case.acceptance")],
        "ten events, each delivered to every subscriber",
    ),
    workload(
        "NBC-01",
        "a broadcast with a filter for each of 10 subscriptions",
        &[graph("mails/s", "", "case.broadcast.10")],
        BROADCAST,
    ),
    workload("NBC-02", "the same for 1,000", &[graph("mails/s", "", "case.broadcast.1k")], BROADCAST),
    workload("NBC-03", "the same for 100,000", &[graph("mails/s", "", "case.broadcast.100k")], BROADCAST),
    workload(
        "NBC-04",
        "the same for 1,000,000, delivered by mail",
        &[graph("mails/s", "", "case.broadcast")],
        BROADCAST,
    ),
    workload(
        "NBC-05",
        "the filters alone: 1,000,000 subscribers with one filter, or with 10,000",
        &[
            graph("one filter, subscribers/s", "", "match.filter.shared"),
            graph("10,000 filters, subscribers/s", "", "match.filter.10k"),
        ],
        "",
    ),
];

const BROADCAST: &str = "1,000 distinct filters; the response is sent when the broadcast is durable; its time is in \
    the conditions";

const CLAIMS: &[Claim] = &[
    claim(
        "Loading improves significantly with many clients",
        Test::Larger("population.load.many", "population.load", 1.5),
    ),
    claim(
        "Longer subscriptions are stored more slowly",
        Test::Falls(&["subscriptions.20", "subscriptions.200", "subscriptions.1000"]),
    ),
    claim(
        "A schedule hardly slows down storing subscriptions",
        Test::Larger("subscriptions.scheduled", "subscriptions.200", 0.9),
    ),
    claim(
        "Many clients store 1.5 to 2 times as many subscriptions",
        Test::Larger("subscriptions.many", "subscriptions.200", 1.5),
    ),
    claim(
        "Bigger batches of events are better: files",
        Test::Falls(&["intake.file.by1000", "intake.file.by100", "intake.file.by10", "intake.file.by1"]),
    ),
    claim(
        "Bigger batches of events are better: queries",
        Test::Falls(&["intake.sql.by1000", "intake.sql.by100", "intake.sql.by10", "intake.sql.by1"]),
    ),
    claim(
        "Bigger batches of events are better: the API",
        Test::Falls(&["intake.api.by1000", "intake.api.by100", "intake.api.by10", "intake.api.by1"]),
    ),
    claim(
        "Smaller events are better: files",
        Test::Falls(&["intake.file.25", "intake.file.250", "intake.file.1000", "intake.file.2000"]),
    ),
    claim(
        "Smaller events are better: queries",
        Test::Falls(&["intake.sql.25", "intake.sql.250", "intake.sql.1000", "intake.sql.2000"]),
    ),
    claim(
        "Smaller events are better: the API",
        Test::Falls(&["intake.api.25", "intake.api.250", "intake.api.1000", "intake.api.2000"]),
    ),
    claim(
        "Files are much faster than the API, except for small batches",
        Test::Larger("intake.file.by1000", "intake.api.by1000", 2.0),
    ),
    claim(
        "Queries are much faster than the API, except for small batches",
        Test::Larger("intake.sql.by1000", "intake.api.by1000", 2.0),
    ),
    claim(
        "More notification batches cost little: 32 no more than 24 %",
        Test::AtLeastOfPeer("match.stock.generate.by32", 0.76),
    ),
    claim("Parallel rules scale up to twice the processors of the database", Test::LargerThanPeer("match.parallel")),
    claim(
        "Longer results cost more formatting",
        Test::Falls(&["format.xslt.25", "format.xslt.100", "format.xslt.500", "format.xslt.2000"]),
    ),
    claim(
        "Delivery is usually the bottleneck, not generating notifications",
        Test::Larger("match.stock.generate", "deliver.http", 1.0),
    ),
    claim(
        "By file is faster than by HTTP, by HTTP faster than by SMTP",
        Test::Falls(&["deliver.file", "deliver.http", "deliver.smtp"]),
    ),
    claim(
        "Three distributors are about 2.8 times one",
        Test::Open("needs three machines: one server delivers with all processors of its machine"),
    ),
    claim("Digests cost formatting", Test::Larger("deliver.digest.1", "deliver.digest.2", 1.0)),
    claim(
        "Digests with fewer notifications cost more per notification",
        Test::Falls(&["deliver.digest.10", "deliver.digest.5", "deliver.digest.2"]),
    ),
    claim("Multicast is a large win for expensive protocols", Test::Larger("deliver.smtp.many50", "deliver.smtp", 2.0)),
    claim(
        "300/s for 30 minutes on a system of 100/s leave a backlog of 360,000 and take 60 more minutes",
        Test::Arithmetic(
            "peak",
            &["360,000 notifications are queued at the end of the peak", "it takes 60 more minutes to send them"],
        ),
    ),
    claim(
        "20 million subscriptions that fire once a day are 20 million a day",
        Test::Arithmetic(
            "daily",
            &["20 million subscriptions that fire once a day are 20 million notifications a day"],
        ),
    ),
    claim("The API was measured with up to 5,000 characters", Test::Contradictory("the section on method says 2,000")),
    claim(
        "Figure 17 shows formatting",
        Test::Contradictory("its text says \"formatted\", its title and section are about delivery"),
    ),
];
