//! Queries that join with values about earlier events.

use tocsin_model::field::{Field, FieldType};

use super::*;

/// Values of trades by symbol, and by symbol and lateness.
fn states() -> Vec<StateTable> {
    let fields = |fields: &[(&str, FieldType)]| {
        Fields::new(fields.iter().map(|(text, kind)| Field::new(name(text), *kind)).collect())
    };
    vec![
        StateTable {
            name: "trade.day".to_owned(),
            key: fields(&[("symbol", FieldType::String)]),
            says: fields(&[
                ("last", FieldType::Number),
                ("high", FieldType::Number),
                ("last_at", FieldType::Timestamp),
            ]),
        },
        StateTable {
            name: "trade.both".to_owned(),
            key: fields(&[("symbol", FieldType::String), ("late", FieldType::Boolean)]),
            says: fields(&[("count", FieldType::Integer)]),
        },
    ]
}

fn checked(sql: &str) -> Result<Arc<QuerySet>, Vec<Problem>> {
    let (set, problems) = QuerySet::check(&application(sql), &states(), &[]);
    if problems.is_empty() { Ok(Arc::new(set)) } else { Err(problems) }
}

const LAST_OF_EACH: &str = r#"SELECT e._event, w._subscription, d._last AS total, d._last_at AS since
    FROM events e JOIN "trade.day" d ON d.symbol = e.symbol JOIN watch w ON w.symbol = d.symbol"#;

/// The result of a query for a trade of AB and one of CD.
fn query_rows(tables: &mut QueryTables, sql: &str) -> Vec<String> {
    let application = application(sql);
    let (batch, fields) = batch(&application, "trade", &[r#"{"symbol": "AB"}"#, r#"{"symbol": "CD"}"#]);
    let firings = tables.run(&batch, &fields, &no_columns(), |_| true).expect("a batch");
    let found = firings[0].outcome.clone().unwrap_or_else(|reason| panic!("{reason}"));
    let row = |found: QueryMatch| format!("{} {} {:?}", found.event, found.subscription, found.values);
    found.into_iter().map(row).collect()
}

#[test]
fn a_query_joins_with_the_last_values() {
    let set = checked(LAST_OF_EACH).unwrap_or_else(|problems| panic!("{problems:?}"));
    assert_eq!(set.reads_of_states().collect::<Vec<_>>(), ["trade.day"]);
    let mut tables = QueryTables::open(set).expect("a database").expect("a query");
    tables.put(&subscription(1, "watch", r#"{"symbol": "AB"}"#), &[]);
    tables.put(&subscription(2, "watch", r#"{"symbol": "CD"}"#), &[]);
    let row = |symbol: &str, last: f64| {
        vec![Value::from(symbol), Value::Number(last), Value::Number(9.0), Value::Timestamp(Timestamp(ACCEPTED))]
    };
    assert_eq!(query_rows(&mut tables, LAST_OF_EACH), Vec::<String>::new());
    tables.apply_entry("trade.day", b"ab", Some(&row("AB", 1.5)));
    tables.apply_entry("trade.day", b"cd", Some(&row("CD", 2.0)));
    // A table that no query reads.
    tables.apply_entry("trade.both", b"ab", Some(&[]));
    let at = "Timestamp(Timestamp(1795253400000000))";
    assert_eq!(
        query_rows(&mut tables, LAST_OF_EACH),
        [format!("0 s-1 [Number(1.5), {at}]"), format!("1 s-2 [Number(2.0), {at}]")]
    );
    tables.apply_entry("trade.day", b"ab", Some(&row("AB", 3.0)));
    tables.apply_entry("trade.day", b"cd", None);
    assert_eq!(query_rows(&mut tables, LAST_OF_EACH), [format!("0 s-1 [Number(3.0), {at}]")]);
    tables.forget_states();
    assert_eq!(query_rows(&mut tables, LAST_OF_EACH), Vec::<String>::new());
}

#[test]
fn the_key_has_an_index_and_scans_of_all_keys_give_a_warning() {
    let of = |sql: &str| {
        let set = checked(sql).unwrap_or_else(|problems| panic!("{problems:?}"));
        let (plan, warnings) = set.plan(&name("sum")).expect("a plan");
        format!("{}\n{}", plan.join("\n"), warnings.join("\n"))
    };
    expect![[r#"
        SCAN e
        SEARCH d USING INDEX trade.day:symbol (symbol=?)
        SEARCH w USING COVERING INDEX watch:symbol (symbol=?)
    "#]]
    .assert_eq(&of(LAST_OF_EACH));
    let both = r#"SELECT e._event, w._subscription FROM events e
        JOIN "trade.both" b ON b.symbol = e.symbol AND b.late = 0 JOIN watch w ON w.symbol = e.symbol"#;
    assert!(of(both).contains("trade.both:symbol"), "{}", of(both));
    let most = r#"SELECT max(e._event) AS _event, w._subscription, max(d._high) AS total FROM events e, "trade.day" d
        JOIN watch w ON w.symbol = e.symbol GROUP BY w._subscription"#;
    assert!(of(most).contains("reads every key of `trade.day`"), "{}", of(most));
}

#[test]
fn misspelled_names_give_a_hint() {
    let problem = |sql: &str| match checked(sql) {
        Ok(_) => "fine".to_owned(),
        Err(problems) => problems[0].to_string(),
    };
    let select = |rest: &str| {
        format!("SELECT e._event, w._subscription FROM events e JOIN watch w ON w.symbol = e.symbol {rest}")
    };
    expect!["rules.sum.sql: no such table: trade.dya; did you mean `trade.day`?"]
        .assert_eq(&problem(&select(r#"JOIN "trade.dya" d"#)));
    expect!["rules.sum.sql: no such column: d._hihg; did you mean `_high`?"]
        .assert_eq(&problem(&select(r#"JOIN "trade.day" d ON d.symbol = e.symbol AND d._hihg > 1"#)));
    assert!(problem(r#"INSERT INTO "trade.day" (symbol) VALUES ('A')"#).contains("may not change anything"));
}
