use fastrand::Rng;

use super::{
    node::{Assertion, Item, Test, read_time},
    *,
};
use crate::{
    subscriber::{Profile, Subscriber},
    time::Timestamp,
    value::Value,
};

fn filter(text: &str) -> LdapFilter {
    LdapFilter::parse(text).unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
}

fn subscriber(json: &str) -> Subscriber {
    let attributes = serde_json::from_str(json).expect("an object");
    let device = |channel: &str, state| crate::subscriber::Device {
        channel: channel.parse().expect("a name"),
        address: "a".to_owned(),
        state,
    };
    use crate::subscriber::DeviceState::{Active, Bounced};
    Subscriber {
        preferences: Default::default(),
        number: crate::id::SubscriberNumber(1),
        id: "Ann-7".parse().expect("an id"),
        profile: Profile { locale: Some("de-AT".to_owned()), attributes, ..Profile::default() },
        devices: [("a", device("mail", Active)), ("b", device("sms", Bounced))]
            .map(|(name, device)| (name.parse().expect("a name"), device))
            .into(),
        created_at: "2026-11-21T09:30:00.5Z".parse().expect("a time"),
        updated_at: Timestamp(0),
        revision: 1,
    }
}

const ANN: &str = r#"{
    "name": "Ann  Öberg", "Region": "Vienna", "age": 42, "score": 3.5, "vip": true, "big": 9007199254740993,
    "tags": ["fire", ["Flood", 7], null], "address": {"city": "Graz", "rooms": [{"no": 4}, {"no": 5}]},
    "none": null, "empty": [], "since": "2026-01-02T03:04:05Z", "phone": "+43 1 234-56", "flags": 6,
    "channel": "a shadow", "a b": "odd"
}"#;

/// Evaluates a filter for the subscriber Ann.
fn check(text: &str, expected: Truth) {
    let ann = subscriber(ANN);
    assert_eq!(filter(text).evaluate(&Entry::from(&ann)), expected, "{text}");
    assert_eq!(filter(&format!("(!{text})")).evaluate(&Entry::from(&ann)), !expected, "not {text}");
}

fn is(text: &str) {
    check(text, Truth::True);
}

fn is_not(text: &str) {
    check(text, Truth::False);
}

fn is_undefined(text: &str) {
    check(text, Truth::Undefined);
}

#[test]
fn strings_are_compared_without_case_and_spaces() {
    is("(name=ann ÖBERG)");
    is("(NAME= Ann O\\cc\\88berg )");
    is("(region=vienna)");
    is_not("(region=Graz)");
    is("(name>=ann o)");
    is("(name<=b)");
    is_not("(name<=ann)");
    is("(name=ann*)");
    is("(name=*n öb*g)");
    is("(name=a*n*ö*g)");
    is_not("(name=ann *ann*)");
    is_not("(region=v*vienna)");
    is("(name~=annoberg)");
    is("(name~=Ann-Öberg)");
    is_not("(name~=Anne Öberg)");
    // Runs of spaces count as one, but not as none.
    is("(name=ann \\20*)");
    is_not("(name=annö*)");
}

#[test]
fn numbers_and_booleans_are_compared_by_value() {
    is("(age=42)");
    is("(age=42.0)");
    is("(age>=41.5)");
    is_not("(age<=41.5)");
    is("(score<=3.5)");
    is("(score=35e-1)");
    is("(big=9007199254740993)");
    is_not("(big=9007199254740992)");
    is("(big>=9007199254740992.0)");
    is_not("(big>=1e300)");
    is_undefined("(age=forty-two)");
    is_undefined("(age=042)");
    is_undefined("(age=4*)");
    is_undefined("(age=)");
    is("(vip=TRUE)");
    is("(vip=true)");
    is_not("(vip=FALSE)");
    is_undefined("(vip=yes)");
    is_undefined("(vip>=TRUE)");
    is("(age~=42)");
}

#[test]
fn attributes_have_many_values_or_none() {
    is("(tags=flood)");
    is("(tags=7)");
    is_undefined("(tags=7 )");
    is("(tags=f*)");
    // One is false, and for the number it is undefined.
    is_undefined("(tags=storm)");
    is("(tags=*)");
    is_not("(none=*)");
    is_not("(empty=*)");
    is_not("(nobody=*)");
    is_not("(nobody=1)");
    is("(!(nobody=1))");
    is("(address=*)");
    is_undefined("(address=Graz)");
    is("(address.city=graz)");
    is("(address.rooms.no=5)");
    is_not("(address.rooms.no=6)");
    is_not("(address.street=x)");
    is_not("(name.first=x)");
    is("(a\\20b=ODD)");
}

#[test]
fn properties_stand_before_attributes_of_their_name() {
    is("(id=Ann-7)");
    is_not("(id=ann-7)");
    is("(id=Ann*)");
    is_not("(id=ann*)");
    is("(id>=Ann)");
    is_not("(id>=a)");
    is("(enabled=TRUE)");
    is("(locale=de-at)");
    is("(locale=de*)");
    is_not("(time_zone=*)");
    is("(channel=mail)");
    is_not("(channel=sms)");
    is("(attributes.channel=a shadow)");
    is("(attributes.region=vienna)");
    is("(created_at>=20261121093000Z)");
    is("(created_at=20261121093000.5Z)");
    is("(created_at<=2026-11-21T10:30:00.500+01:00)");
    is_not("(created_at<=202611210930Z)");
}

#[test]
fn matching_rules_can_be_named() {
    is("(name:caseIgnoreMatch:=ann öberg)");
    is("(name:2.5.13.2:=ann öberg)");
    is("(name:caseExactMatch:=Ann Öberg)");
    is_not("(name:caseExactMatch:=ann öberg)");
    is("(name:caseexactsubstringsmatch:=Ann*)");
    is_not("(name:caseExactSubstringsMatch:=ann*)");
    is("(name:caseExactSubstringsMatch:=Ann\\2a)");
    is("(region:caseExactOrderingMatch:=W)");
    is("(region:=vienna)");
    is("(phone:telephoneNumberMatch:=+4312 3456)");
    is("(phone:telephoneNumberSubstringsMatch:=+431*)");
    is("(phone:numericStringMatch:=+431234-56)");
    is("(age:integerMatch:=42)");
    is("(age:integerOrderingMatch:=43)");
    is_not("(age:integerOrderingMatch:=42)");
    is("(score:integerOrderingMatch:=4)");
    is_undefined("(age:caseIgnoreMatch:=42)");
    is_undefined("(name:integerMatch:=42)");
    is("(vip:booleanMatch:=TRUE)");
    is("(since:generalizedTimeMatch:=20260102030405Z)");
    is("(since:generalizedTimeOrderingMatch:=20260102030406Z)");
    is_undefined("(name:generalizedTimeMatch:=20260102030405Z)");
    is("(name:wordMatch:=ÖBERG)");
    is_not("(name:wordMatch:=ber)");
    is("(name:octetStringMatch:=Ann  Öberg)");
    is_not("(name:octetStringMatch:=Ann Öberg)");
    is("(flags:1.2.840.113556.1.4.803:=6)");
    is_not("(flags:bitAndMatch:=5)");
    is("(flags:bitOrMatch:=5)");
    is_undefined("(score:bitAndMatch:=1)");
    // Without an attribute, it applies to all that the rule is for.
    is("(:caseIgnoreMatch:=flood)");
    is("(:caseIgnoreMatch:=graz)");
    is("(:integerMatch:=42)");
    is_not("(:integerMatch:=43)");
    is_not("(:caseExactMatch:=flood)");
    is_not("(nobody:integerMatch:=1)");
}

#[test]
fn undefined_decides_only_where_necessary() {
    is("(|(age=x)(age=42))");
    is_undefined("(|(age=x)(age=41))");
    is_not("(&(age=x)(age=41))");
    is_undefined("(&(age=x)(age=42))");
    is_undefined("(!(!(age=x)))");
    is("(&)");
    is_not("(|)");
    is("(|(age=x)(&))");
    is_not("(&(age=x)(|))");
}

#[test]
fn the_examples_of_rfc_4515_are_read() {
    let read = |text: &str, canonical: &str| assert_eq!(filter(text).canonical(), canonical);
    read("(cn=Babs Jensen)", "(cn=Babs Jensen)");
    read("(!(cn=Tim Howes))", "(!(cn=Tim Howes))");
    read("(&(objectClass=Person)(|(sn=Jensen)(cn=Babs J*)))", "(&(objectclass=Person)(|(cn=Babs J*)(sn=Jensen)))");
    read("(o=univ*of*mich*)", "(o=univ*of*mich*)");
    read("(seeAlso=)", "(seealso=)");
    read("(cn:caseExactMatch:=Fred Flintstone)", "(cn:caseExactMatch:=Fred Flintstone)");
    read("(cn:=Betty Rubble)", "(cn=Betty Rubble)");
    read(
        "(o=Parens R Us \\28for all your parenthetical needs\\29)",
        "(o=Parens R Us \\28for all your parenthetical needs\\29)",
    );
    read("(cn=*\\2A*)", "(cn=*\\2a*)");
    read("(filename=C:\\5cMyFile)", "(filename=C:\\5cMyFile)");
    read("(bin=\\00\\00\\00\\04)", "(bin=\\00\\00\\00\\04)");
    read("(sn=Lu\\c4\\8di\\c4\\87)", "(sn=Lučić)");
    read("(1.3.6.1.4.1.1466.0=\\04\\02\\48\\69)", "(1.3.6.1.4.1.1466.0=\\04\\02Hi)");
    for refused in
        ["(sn:dn:2.4.6.8.10:=Barney Rubble)", "(o:dn:=Ace Industry)", "(:1.2.3:=W)", "(:DN:2.4.6.8.10:=Dino)"]
    {
        assert!(LdapFilter::parse(refused).is_err(), "{refused}");
    }
}

#[test]
fn equivalent_filters_have_one_text() {
    let same = |text: &str, canonical: &str| {
        assert_eq!(filter(text).to_string(), canonical);
        assert_eq!(filter(canonical).to_string(), canonical);
    };
    same("\n(& (b=1)\n   (A=2)\n   (&(c=3)(b=1)) )", "(&(a=2)(b=1)(c=3))");
    same("(|(a=1))", "(a=1)");
    same("(!(!(a=1)))", "(a=1)");
    same("(!(&))", "(|)");
    same("(&(a=1)(|))", "(|)");
    same("(|(a=1)(&))", "(&)");
    same("(&(a=1)(&))", "(a=1)");
    same("(Attributes.Region=x)", "(region=x)");
    same("(attributes.locale=x)", "(attributes.locale=x)");
    same("(attributes.attributes.x=1)", "(attributes.attributes.x=1)");
    same("(a\\3bb=\\29)", "(a\\3bb=\\29)");
    same("(a:2.5.13.5:=x)", "(a:caseExactMatch:=x)");
    same("(a:caseExactSubstringsMatch:=x*y\\5c2a)", "(a:caseExactSubstringsMatch:=x\\2ay\\5c2a)");
}

#[test]
fn syntax_errors_have_positions() {
    let problem = |text: &str, expected: &str| {
        let problems = LdapFilter::parse(text).expect_err(text);
        assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"), expected);
    };
    problem("", "1:1: is empty; write a filter, such as (region=Vienna)");
    problem("a=b", "1:1: a filter needs parentheses; write (a=b)");
    problem("(a=b", "1:1: the parenthesis that opens here is not closed; each filter ends with one");
    problem("(&(a=b)\n  (c=d)", "1:1: the parenthesis that opens here is not closed; each filter ends with one");
    problem(
        "(&(a=b)\n  (c d))",
        "2:5: a space follows the attribute; leave out the space; in a name, write it as \\20",
    );
    problem("(a=b))", "1:6: something follows the filter; end with the parenthesis that closes the first");
    problem("(a=b)(c=d)", "1:6: a second filter follows; join them: (&(a=1)(b=2)) or (|(a=1)(b=2))");
    problem("((a=b))", "1:2: there is one parenthesis too many; a filter begins with &, |, ! or an attribute");
    problem("()", "1:2: the parentheses are empty; (&) is always true, (|) is always false");
    problem("(!a=b)", "1:3: `!` is followed by a filter in parentheses; write (!(a=b))");
    problem("(!(a=b)(c=d))", "1:8: `!` takes one filter; write (!(&(a=1)(b=2)))");
    problem("(a!=b)", "1:3: there is no operator `!=`; write (!(a=b))");
    problem("(a<b)", "1:3: there is no operator `<`; write <=; strictly, (&(a=*)(!(a>=1)))");
    problem("(a)", "1:3: the attribute has no operator; (a=*) asks whether it has a value");
    problem("(=b)", "1:2: an attribute is missing before the operator; write (attribute=value)");
    problem(
        "(a=b(c)",
        "1:5: a parenthesis opens within a value; close the filter before it; a parenthesis of its own is \\28",
    );
    problem(
        "(a=b\\zz)",
        "1:5: a backslash does not begin an escape; it is followed by two hexadecimal digits: \\28 (, \\29 ), \\2a *, \\5c \\",
    );
    problem(
        "(a=ö\\ff)",
        "1:4: what is escaped is not UTF-8; escape every octet of a character, such as \\c3\\b6 for ö, or write the character",
    );
    problem("(a=x**y)", "1:4: two stars stand side by side; write one; a star of its own is \\2a");
    problem("(a>=x*)", "1:5: a star has no meaning here; a star of its own is \\2a; substrings are asked for by =");
    problem(
        "(cn;lang-de=x)",
        "1:4: an option follows the attribute; attributes of subscribers have no options; in a name, write it as \\3b",
    );
    problem(
        "(a:caseIgnore=x)",
        "1:4: `:=` is missing after the matching rule; write (attribute:rule:=value), such as (name:caseExactMatch:=Ann)",
    );
    problem(
        "(:=x)",
        "1:2: neither an attribute nor a matching rule is given; write (attribute:=value), (:rule:=value) or (attribute:rule:=value)",
    );
    // Items that can be parsed are checked to the end.
    problem(
        "(&(a:caseExctMatch:=x)(b:dn:=y)(enabled=yes)(c:integerMatch:=1.5)(:distinguishedNameMatch:=cn=x))",
        "1:6: there is no matching rule `caseExctMatch`; did you mean `caseExactMatch`?\n\
         1:26: the parts of a distinguished name cannot be asked for; leave out `:dn`; subscribers have no distinguished names\n\
         1:41: `enabled` is a boolean; write TRUE or FALSE\n\
         1:62: `1.5` is not an integer of 64 bits, which `integerMatch` asks for; write digits, after a `-` where it is negative\n\
         1:68: the matching rule `distinguishedNameMatch` finds nothing here; subscribers have no distinguished names",
    );
    problem(
        "(created_at>=yesterday)",
        "1:14: `created_at` is a time; write Generalized Time, such as 20261121093000Z, or 2026-11-21T09:30:00Z",
    );
}

#[test]
fn a_bomb_is_refused_before_it_costs() {
    let problem = |text: String| LdapFilter::parse(&text).expect_err("a bomb")[0].message.clone();
    assert_eq!(problem(format!("{}(a=1){}", "(!".repeat(5_000), ")".repeat(5_000))), "is nested more than 100 deep");
    assert_eq!(problem("(&".repeat(8_000)), "is nested more than 100 deep");
    assert_eq!(problem(format!("(|{})", "(a=1)".repeat(1_001))), "has more than 1000 terms");
    assert_eq!(problem(format!("(a={})", "x".repeat(20_000))), "takes 20004 bytes; at most 16384 fit");
    assert!(problem(format!("({}=1)", "x".repeat(300))).contains("longer than 256"));
    // Too many steps give undefined, whatever the result would be.
    let within = |value: String, test: &str, terms: usize| {
        let filter =
            filter(&format!("(|{})", (0..terms).map(|at| test.replace('@', &at.to_string())).collect::<String>()));
        filter.evaluate(&Entry::from(&subscriber(&format!(r#"{{"a": {value}}}"#))))
    };
    let long = || format!("\"{}\"", "\u{c4}".repeat(30_000));
    let many = || format!("[{}]", vec!["\"1\""; 16_000].join(","));
    for test in ["(a=y@)", "(a=*y@*z*)", "(a~=y@)", "(a:caseExactMatch:=y@)", "(a>=\u{e5}@)"] {
        assert_eq!(within(long(), test, 600), Truth::Undefined, "{test}");
        assert_eq!(within(many(), test, 600), Truth::Undefined, "{test}");
        assert_eq!(within(long(), test, 5), Truth::False, "{test}");
    }
    // The largest number of asterisks against the longest text.
    let stars = filter(&format!("(a={}b)", "*a".repeat(8_000)));
    let json = format!(r#"{{"a": "{}"}}"#, "a".repeat(60_000));
    assert!(!stars.matches(&Entry::from(&subscriber(&json))));
}

#[test]
fn a12_the_parts_of_a_filter_have_one_bound() {
    let text = serde_json::json!({"note": "abc ".repeat(5_000)}).to_string();
    let ann = subscriber(&text);
    let parts = |count: usize| {
        let text = format!("(&{})", (0..count).map(|number| format!("(!(note=*z{number}*))")).collect::<String>());
        filter(&text).conjuncts(&Entry::from(&ann))
    };
    assert!(parts(20).iter().all(|(_, truth)| *truth == Truth::True));
    let many = parts(200);
    assert_eq!((many[0].1, many[199].1), (Truth::True, Truth::Undefined));
}

#[test]
fn times_are_read_as_rfc_4517_says() {
    let check = |text: &str, expected: Option<&str>| {
        assert_eq!(read_time(text).map(|time| time.to_string()).as_deref(), expected, "{text}");
    };
    check("199412161032Z", Some("1994-12-16T10:32:00Z"));
    check("199412160532-0500", Some("1994-12-16T10:32:00Z"));
    check("1994121610Z", Some("1994-12-16T10:00:00Z"));
    check("1994121610.25Z", Some("1994-12-16T10:15:00Z"));
    check("199412161032,5Z", Some("1994-12-16T10:32:30Z"));
    check("19941216103210.123456789012345678Z", Some("1994-12-16T10:32:10.123456Z"));
    check("19941216103210+01", Some("1994-12-16T09:32:10Z"));
    for wrong in [
        "",
        "1994",
        "19941316103210Z",
        "199412161032",
        "1994121610.Z",
        "19941216103210+1",
        "1994121610321Z",
        "19941216103210é",
    ] {
        check(wrong, None);
    }
}

#[test]
fn ids_bound_the_search() {
    let check = |text: &str, expected: (Bound<&str>, Bound<&str>)| {
        assert_eq!(filter(text).ids(), expected, "{text}");
    };
    use Bound::{Excluded, Included, Unbounded};
    check("(region=x)", (Unbounded, Unbounded));
    check("(id=a)", (Included("a"), Included("a")));
    check("(&(id=ab*)(id<=ac)(x=1))", (Included("ab"), Excluded("ac")));
    check("(&(id>=b)(id>=c)(id<=f)(id<=e))", (Included("c"), Included("e")));
    check("(|(id=a)(id=b))", (Unbounded, Unbounded));
    check("(!(id=a))", (Unbounded, Unbounded));
    check("(id=\u{10ffff}*)", (Included("\u{10ffff}"), Unbounded));
    check("(id=a\u{10ffff}*)", (Included("a\u{10ffff}"), Excluded("b")));
}

// Random filters: a failure prints the seed; `TOCSIN_SEED` repeats it, `TOCSIN_CASES` tries more.

fn random(cases: u32, mut check: impl FnMut(&mut Rng)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("TOCSIN_SEED").unwrap_or_else(|| fastrand::u64(..));
    let cases = number("TOCSIN_CASES").unwrap_or(u64::from(cases));
    for case in 0..cases {
        let case_seed = seed.wrapping_add(case);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(&mut Rng::with_seed(case_seed))));
        assert!(outcome.is_ok(), "TOCSIN_SEED={case_seed} TOCSIN_CASES=1 repeats it");
    }
}

fn random_text(rng: &mut Rng) -> String {
    const PIECES: [&str; 14] = ["a", "B", " ", "ö", "1", "*", "(", ")", "\\", "\0", "ß", "-", "😀", "&"];
    (0..rng.usize(..4)).map(|_| PIECES[rng.usize(..PIECES.len())]).collect()
}

fn random_value(rng: &mut Rng, depth: u32) -> Value {
    match rng.u32(..if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => Value::Boolean(rng.bool()),
        2 => Value::Integer(rng.i64(-2..3)),
        3 => Value::Number(rng.i64(-4..5) as f64 / 2.0),
        4 | 5 => Value::from(&*random_text(rng)),
        6 => Value::List((0..rng.usize(..3)).map(|_| random_value(rng, depth - 1)).collect()),
        _ => Value::Map([("k".into(), random_value(rng, depth - 1))].into()),
    }
}

fn random_node(rng: &mut Rng, depth: u32) -> Node {
    if depth > 0 && rng.u32(..3) > 0 {
        let parts = |rng: &mut Rng| (0..rng.usize(..4)).map(|_| random_node(rng, depth - 1)).collect();
        return match rng.u32(..3) {
            0 => Node::And(parts(rng)),
            1 => Node::Or(parts(rng)),
            _ => Node::Not(Box::new(random_node(rng, depth - 1))),
        };
    }
    const NAMES: [&str; 8] = ["x", "y", "Y", "x.k", "id", "locale", "enabled", "a b;c"];
    let attribute = Attribute::of(NAMES[rng.usize(..NAMES.len())]);
    let text = match rng.u32(..3) {
        0 => random_text(rng),
        1 => rng.i64(-2..3).to_string(),
        _ => ["TRUE", "1.5", "Ann-7", "de"][rng.usize(..4)].to_owned(),
    };
    let assertion = Assertion::of(text.clone());
    let test = match rng.u32(..7) {
        0 => Test::Present,
        1 | 2 => Test::Equal(assertion),
        3 => Test::AtLeast(assertion),
        4 => Test::AtMost(assertion),
        5 => Test::Approximate(assertion),
        _ => {
            let rule = matching_rule::find("caseExactMatch").expect("a rule");
            Test::Rule(rule, rule.assertion(text).expect("text"))
        }
    };
    let untold = attribute == Attribute::Property(Property::Enabled);
    Node::Item(Item { attribute: Some(attribute), test: if untold { Test::Present } else { test } })
}

#[test]
fn the_normal_form_means_the_same_and_is_read_back() {
    random(300, |rng| {
        let node = random_node(rng, 4);
        let read = LdapFilter::parse(&node.to_string()).expect("what is displayed is read");
        assert_eq!(LdapFilter::parse(read.canonical()), Ok(read.clone()));
        for _ in 0..8 {
            let mut ann = subscriber("{}");
            let names = ["x", "Y", "a b;c"].into_iter();
            ann.profile.attributes = names.map(|name| (name.to_owned(), random_value(rng, 2))).collect();
            let entry = Entry::from(&ann);
            assert_eq!(read.evaluate(&entry), evaluated(&node, &entry), "{node}");
            if read.matches(&entry) {
                assert!(std::ops::RangeBounds::<str>::contains(&read.ids(), "Ann-7"), "{node}");
            }
        }
    });
}

#[test]
fn any_text_is_read_or_refused_with_a_place_in_it() {
    random(2_000, |rng| {
        let mut text = random_node(rng, 3).to_string();
        for _ in 0..rng.usize(1..4) {
            let at = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).nth(rng.usize(..=text.chars().count()));
            let at = at.expect("there are as many places as characters, and the end");
            match rng.bool() {
                true => text.insert_str(at, &random_text(rng)),
                false => text.truncate(at),
            }
        }
        for problem in LdapFilter::parse(&text).err().into_iter().flatten() {
            assert!(problem.hint.is_some(), "{problem}");
            let (line, column) = (problem.line.expect("a line") as usize, problem.column.expect("a column") as usize);
            let lines: Vec<&str> = text.split('\n').collect();
            assert!(column <= lines[line - 1].chars().count() + 1, "{text:?}: {problem}");
        }
    });
}
