//! Chronicles of event classes in definitions.

use expect_test::{Expect, expect};

use super::super::*;

const TICKS: &str = "application: a
events:
  tick:
    fields: { symbol: string, price: number, tags: list }
    chronicles:
      CHRONICLE
";

fn with(chronicle: &str) -> String {
    TICKS.replace("CHRONICLE", chronicle)
}

fn check(chronicle: &str, expected: Expect) {
    let found = match read(&with(chronicle), &|_| None) {
        Ok(application) => {
            let chronicles = &application.events.values().next().expect("the class").chronicles;
            serde_json::to_string(chronicles).expect("JSON")
        }
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    expected.assert_eq(&found);
}

#[test]
fn chronicles_have_a_key_a_value_and_a_window() {
    check(
        "day: { by: symbol, of: event.price }",
        expect![[r#"{"day":{"by":["symbol"],"of":"event.price","window":"always","keys":100000}}"#]],
    );
    check(
        "day: { by: [symbol, price], window: { every: week, time_zone: Europe/Vienna, starts: \"09:30\" }, keys: 7 }",
        expect![[
            r#"{"day":{"by":["symbol","price"],"window":{"calendar":{"every":"week","time_zone":"Europe/Vienna","starts":570}},"keys":7}}"#
        ]],
    );
    check(
        "seen: { when: event.price > 1.0, time: event.at, reset: 'false', window: 10m }",
        expect![[
            r#"{"seen":{"by":[],"when":"event.price > 1.0","time":"event.at","window":{"sliding":{"secs":600,"nanos":0}},"reset":"false","keys":100000}}"#
        ]],
    );
}

#[test]
fn invalid_chronicles_are_reported() {
    check(
        "d: { by: symbl }",
        expect!["6:16: events.tick.chronicles.d.by: `symbl` is not a field of the event class; did you mean `symbol`?"],
    );
    check(
        "d: { by: [symbol, symbol, tags] }",
        expect![[r#"
        6:25: events.tick.chronicles.d.by[1]: `symbol` is given twice; name each field once
        6:33: events.tick.chronicles.d.by[2]: `tags` is a list; it cannot be a key; name fields that hold one value"#]],
    );
    check("d: { window: 5s }", expect!["6:20: events.tick.chronicles.d.window: is 5s; give 1m to 366d"]);
    check(
        "d: { window: { every: year } }",
        expect![
            "6:29: events.tick.chronicles.d.window.every: `year` is not known here; give `hour`, `day`, `week` or `month`"
        ],
    );
    check(
        "d: { window: { every: day, time_zone: Vienna, starts: 9am } }",
        expect![[r#"
        6:45: events.tick.chronicles.d.window.time_zone: `Vienna` is not a time zone; give a name of the IANA database, such as `Europe/Vienna`
        6:61: events.tick.chronicles.d.window.starts: `9am` is not a time of the day; give hours and minutes in quotes, `"00:00"` to `"23:59"`"#]],
    );
    check(
        "d: { window: { every: hour, starts: \"09:00\" } }",
        expect!["6:43: events.tick.chronicles.d.window.starts: has no effect: the window is an hour; leave it out"],
    );
    check("d: { keys: 0 }", expect!["6:18: events.tick.chronicles.d.keys: is 0; give 1 to 10000000"]);
    check(
        "high-of-day: {}",
        expect![
            "6:7: events.tick.chronicles.high-of-day: would read as a subtraction in expressions; call it `high_of_day`"
        ],
    );
    check(
        &format!("{}: {{}}", "d".repeat(41)),
        expect![
            "6:7: events.tick.chronicles.ddddddddddddddddddddddddddddddddddddddddd: is not the name of a chronicle; the name of a chronicle is a letter, then up to 39 letters, digits or `_`"
        ],
    );
    check(
        "d: { off: event.price }",
        expect!["6:12: events.tick.chronicles.d.off: is not known here; did you mean `of`?"],
    );
}

#[test]
fn an_order_that_only_digests_would_keep_is_refused() {
    let with = |digest: &str, more: &str| {
        let text = format!(
            "application: a
events:
  tick: {{ fields: {{ symbol: string }}, ordered: {{ by: symbol }} }}
subscriptions:
  any: {{}}
notifications:
  notice: {{ fields: {{ symbol: string }}, {digest} content: {{ templates: {{ base: {{ text: x }} }} }} }}
  plain: {{ fields: {{ symbol: string }}, content: {{ templates: {{ base: {{ text: x }} }} }} }}
rules:
  first: {{ on: tick, subscription: any, notify: notice }}
{more}channels:
  log: {{ protocol: file }}
"
        );
        let problems = read(&text, &|_| None).err().unwrap_or_default();
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    assert_eq!(with("", ""), "");
    assert_eq!(with("digest: {},", "  second: { on: tick, subscription: any, notify: plain }\n"), "");
    let problems = with("digest: {},", "");
    assert!(problems.contains("events.tick.ordered: has no effect"), "{problems}");
}

#[test]
fn events_may_be_ordered_by_a_key() {
    let with = |ordered: &str| TICKS.replace("    chronicles:\n      CHRONICLE", &format!("    ordered: {ordered}"));
    let by = |text: &str| match read(&with(text), &|_| None) {
        Ok(application) => format!("{:?}", application.events.values().next().and_then(|class| class.ordered.clone())),
        Err(problems) => problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
    };
    expect![[r#"Some(Ordered { by: [Name("symbol")] })"#]].assert_eq(&by("{ by: symbol }"));
    expect![[r#"Some(Ordered { by: [Name("symbol"), Name("price")] })"#]].assert_eq(&by("{ by: [symbol, price] }"));
    expect!["Some(Ordered { by: [] })"].assert_eq(&by("{}"));
    expect!["5:20: events.tick.ordered.by: `symbl` is not a field of the event class; did you mean `symbol`?"]
        .assert_eq(&by("{ by: symbl }"));
    expect!["5:20: events.tick.ordered.by: `tags` is a list; it cannot be a key; name fields that hold one value"]
        .assert_eq(&by("{ by: tags }"));
    let read = |text: &str| read(&with(text), &|_| None).expect("a definition");
    expect!["notifications of its events are sent in their order (was in their order by symbol)"]
        .assert_eq(&difference(&read("{ by: symbol }"), &read("{}"))[0].sentence);
}

#[test]
fn an_apply_reports_which_chronicles_restart() {
    let read = |text: &str| read(text, &|_| None).expect("a definition");
    let check = |old: &str, new: &str, expected: Expect| {
        let said = difference(&read(&with(old)), &read(&with(new)));
        let line = |found: &Difference| {
            let drops = found.drops.as_ref().map_or(String::new(), |path| format!(" (drops {path})"));
            format!("{}: {}{drops}", found.path, found.sentence)
        };
        expected.assert_eq(&said.iter().map(line).collect::<Vec<_>>().join("\n"));
    };
    check(
        "d: { by: symbol }",
        "d: { by: symbol, keys: 7, description: All }",
        expect![[r#"
        events.tick.chronicles.d.description: the description changes
        events.tick.chronicles.d.keys: it keeps 7 keys at most (was 100000)"#]],
    );
    check(
        "d: { by: symbol }",
        "d: { by: symbol, window: 1h }",
        expect![
            "events.tick.chronicles.d: the chronicle `d` starts anew, and its contents are lost (drops events.tick.chronicles.d)"
        ],
    );
    check(
        "d: { by: symbol }",
        "e: { by: symbol }",
        expect![[r#"
        events.tick.chronicles.d: the chronicle `d` is removed, and all that it holds with it (drops events.tick.chronicles.d)
        events.tick.chronicles.e: the chronicle `e` is added, and begins with the next event"#]],
    );
    let old = read(&with("d: { by: symbol }"));
    let new = read(&with("d: { by: symbol }").replace("symbol: string", "symbol: integer"));
    expect![[r#"
        the field `symbol` is of type integer (was string)
        the chronicle `d` starts anew, and its contents are lost"#]]
    .assert_eq(&difference(&old, &new).iter().map(|found| found.sentence.clone()).collect::<Vec<_>>().join("\n"));
}
