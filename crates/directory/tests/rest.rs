//! Operations for clients that write entries as a whole: dry runs, replacement, cursors, counts, explained access.

mod support;

use tocsin_directory::{
    ChildCount, Directory, Modification, ModifyType, Options, Preconditions, RawAttribute, Scope,
    access::{AuthzId, Level},
    entry::Entry,
    filter::Filter,
    ldap_error::{Code, LdapError},
};

fn operator() -> AuthzId {
    AuthzId { manages: true, ..AuthzId::default() }
}

fn attributes(pairs: &[(&str, &[&str])]) -> Vec<RawAttribute> {
    let values = |values: &[&str]| values.iter().map(|value| value.as_bytes().to_vec()).collect();
    pairs.iter().map(|(name, all)| ((*name).to_owned(), values(all))).collect()
}

fn person(cn: &str) -> Vec<RawAttribute> {
    attributes(&[("objectClass", &["inetOrgPerson"]), ("cn", &[cn]), ("sn", &["Abe"]), ("title", &["Clerk"])])
}

async fn with_people(options: Options, uids: &[&str]) -> Directory {
    let (_, directory) = support::in_memory(options).await;
    for uid in uids {
        let dn = format!("uid={uid},ou=people,o=site");
        directory.add(&operator(), &dn, person(uid), Preconditions::default()).await.expect("added");
    }
    directory
}

fn dry() -> Preconditions {
    Preconditions { dry_run: true, after: true, ..Preconditions::default() }
}

fn code<T>(done: Result<T, LdapError>) -> Option<Code> {
    done.err().map(|refusal| refusal.code)
}

#[tokio::test]
async fn a_dry_run_checks_everything_and_changes_nothing() {
    let directory = with_people(Options::default(), &["ann", "bob"]).await;
    let (by, ann) = (operator(), "uid=ann,ou=people,o=site");
    let before = directory.find(ann).await.expect("there").entry.clone();
    let replace = |attribute: &str, value: &str| Modification {
        act: ModifyType::Replace,
        attribute: attribute.to_owned(),
        values: vec![value.as_bytes().to_vec()],
    };
    directory.add(&by, "uid=eve,ou=people,o=site", person("eve"), dry()).await.expect("it could be added");
    directory.modify(&by, ann, vec![replace("title", "Boss")], dry()).await.expect("it could be modified");
    directory.rename(&by, ann, "uid=anna", true, None, dry()).await.expect("it could be renamed");
    directory.remove(&by, ann, dry()).await.expect("it could be removed");
    assert_eq!(directory.find(ann).await.expect("there").entry, before);
    assert_eq!(code(directory.find("uid=eve,ou=people,o=site").await), Some(Code::NoSuchObject));

    assert_eq!(code(directory.add(&by, ann, person("ann"), dry()).await), Some(Code::EntryAlreadyExists));
    let misspelt = attributes(&[("objectClass", &["inetOrgPerson"]), ("cn", &["x"])]);
    let added = directory.add(&by, "uid=eve,ou=people,o=site", misspelt, dry()).await;
    assert_eq!(code(added), Some(Code::ObjectClassViolation));
    let modified = directory.modify(&by, ann, vec![replace("nonsense", "x")], dry()).await;
    assert_eq!(code(modified), Some(Code::UndefinedAttributeType));
    assert_eq!(code(directory.rename(&by, ann, "uid=bob", true, None, dry()).await), Some(Code::EntryAlreadyExists));
    assert_eq!(code(directory.remove(&by, "ou=people,o=site", dry()).await), Some(Code::UnwillingToPerform));
}

#[tokio::test]
async fn a_replacement_removes_what_is_not_given_and_keeps_the_name() {
    let directory = with_people(Options::default(), &["ann"]).await;
    let (by, ann) = (operator(), "uid=ann,ou=people,o=site");
    let terms = Preconditions { after: true, ..Preconditions::default() };
    let new = attributes(&[("objectClass", &["inetOrgPerson"]), ("cn", &["Ann A."]), ("sn", &["Abe"])]);
    let images = directory.replace(&by, ann, new.clone(), terms.clone()).await.expect("replaced");
    let entry = images.after.expect("asked for").entry;
    let value = |name: &str| entry.attribute(name).map(|found| String::from_utf8_lossy(&found.values[0]).into_owned());
    assert_eq!((value("cn"), value("title"), value("uid")), (Some("Ann A.".into()), None, Some("ann".into())));

    // The same again changes nothing, so the revision stays.
    let again = directory.replace(&by, ann, new.clone(), terms.clone()).await.expect("replaced");
    assert_eq!(again.after.expect("asked for").entry.revision, entry.revision);
    let stale = Preconditions { revision: Some(entry.revision + 1), ..terms };
    assert_eq!(code(directory.replace(&by, ann, new, stale).await), Some(Code::AssertionFailed));
}

#[tokio::test]
async fn a_search_continues_after_an_entry_by_index_or_by_scan() {
    let uids = ["a1", "a2", "a3", "b1", "a4"];
    let directory = with_people(Options::default(), &uids).await;
    let by = operator();
    for (filter, expected) in [("(uid=a*)", 4), ("objectClass=inetOrgPerson", 5), ("(!(uid=a1))", 6)] {
        let filter = Filter::parse(filter).expect("a filter");
        let mut found: Vec<Entry> = Vec::new();
        loop {
            let base = directory.find("o=site").await.expect("the suffix");
            let mut search = directory.search(&by, base, Scope::Subtree, &filter).await.expect("begun");
            search.in_scan_order();
            if let Some(last) = found.last() {
                search.skip_to(last.number);
            }
            let mut next = None;
            'pages: while let Some(page) = search.next().await.expect("a page") {
                for shown in page {
                    let grant = directory.access().grant(&by, &shown.entry);
                    if search.is_met_by(&shown, &grant).expect("little work") {
                        next = Some(shown.entry.clone());
                        break 'pages;
                    }
                }
            }
            match next {
                Some(entry) => found.push(entry),
                None => break,
            }
        }
        let mut names: Vec<&str> = found.iter().map(|entry| entry.dn.as_str()).collect();
        names.dedup();
        assert_eq!(names.len(), expected, "{filter:?}: {names:?}");
    }
    assert!(Filter::parse("(uid=a").is_err() && Filter::parse("").is_err());
}

#[tokio::test]
async fn children_are_counted_up_to_a_limit() {
    let directory = with_people(Options::default(), &["a", "b", "c"]).await;
    let number = async |dn: &str| directory.find(dn).await.expect("there").entry.number;
    let numbers =
        vec![number("o=site").await, number("ou=people,o=site").await, number("uid=a,ou=people,o=site").await];
    let count = |count, exact| ChildCount { count, exact };
    let counted = directory.count_children(numbers.clone(), 3).await.expect("counted");
    assert_eq!(counted, [count(1, true), count(3, true), count(0, true)]);
    let counted = directory.count_children(numbers, 2).await.expect("counted");
    assert_eq!(counted[1], count(2, false));
}

#[tokio::test]
async fn explained_access_is_the_access_that_is_granted() {
    let rules = [
        "to attrs=userPassword by self write by * auth",
        "to dn.base=\"uid=bob,ou=people,o=site\" attrs=title by dn=\"uid=ann,ou=people,o=site\" write by * none",
        "to attrs=mail by self write by users compare",
        "to attrs=children by dn=\"uid=ann,ou=people,o=site\" write by * none",
        "to dn=\"ou=people,o=site\" by self write by users read",
    ];
    let devices = vec![("mail".into(), "email".parse().expect("a name"))];
    let shape = tocsin_directory::entry::Shape { devices, ..Default::default() };
    let access = rules.map(str::to_owned).to_vec();
    let directory = with_people(Options { access, shape, ..Options::default() }, &["ann", "bob"]).await;
    let (ann, bob) = ("uid=ann,ou=people,o=site", "uid=bob,ou=people,o=site");
    let schema = directory.schema();
    let names: Vec<String> = ["title", "mail", "userPassword", "tocsinDevice", "cn"].map(str::to_owned).to_vec();
    for who in [None, Some(ann), Some(bob)] {
        for dn in [ann, bob, "o=site", "ou=people,o=site"] {
            let explained = directory.explain_access(who, dn, &names).await.expect("explained");
            let grant = directory.access().grant(&explained.requester, &explained.entry.entry);
            assert_eq!(
                (explained.visible, explained.itself.level),
                (grant.may_disclose(), grant.level(None)),
                "{who:?} {dn}"
            );
            for (name, decision) in &explained.attributes {
                let kind = schema.attribute(name).expect("known");
                assert_eq!(decision.level, grant.level(Some(kind)), "{who:?} {dn} {name}");
            }
        }
    }
    let found = directory.explain_access(Some(ann), bob, &names).await.expect("explained");
    let decided = |at: usize| {
        let decision = &found.attributes[at].1;
        let rule = decision.rule.as_ref().expect("a rule");
        (decision.level, rule.number, rule.by.as_deref())
    };
    assert_eq!(decided(0), (Level::Write, 2, Some("dn=\"uid=ann,ou=people,o=site\"")));
    assert_eq!(decided(1), (Level::Compare, 3, Some("users")));
    assert_eq!(decided(2), (Level::Auth, 1, Some("*")));
    assert_eq!(decided(3), (Level::Compare, 5, Some("users")), "it repeats the addresses");
    assert_eq!(found.attributes[3].1.limited_by.as_deref(), Some("mail"));
    assert_eq!((found.children.level, found.children.rule.expect("a rule").number), (Level::Write, 4));
    let anonymous = directory.explain_access(None, bob, &[]).await.expect("explained");
    let rule = anonymous.itself.rule.expect("a rule");
    assert_eq!((anonymous.visible, rule.number, rule.by), (false, 5, None));
    assert!(anonymous.attributes.iter().any(|(name, _)| name == "userPassword"));
    assert_eq!(directory.explain_access(None, "o=site", &[]).await.expect("explained").itself.rule, None);
}

#[tokio::test]
async fn a_checked_import_reports_what_an_import_reports() {
    let ldif = "version: 1

dn: cn=later,ou=new,o=site
objectClass: organizationalRole
cn: later

dn: ou=new,o=site
objectClass: organizationalUnit
ou: new

dn: uid=ann,ou=people,o=site
objectClass: inetOrgPerson
cn: ann
sn: Abe

dn: cn=wrong,o=site
objectClass: person
cn: wrong

dn: uid=ann,ou=people,o=site
changetype: modify
replace: title
title: Boss
-

dn: cn=none,ou=absent,o=site
objectClass: organizationalRole
cn: none

dn: cn=later,ou=new,o=site
changetype: modify
replace: description
description: a role
-

dn: uid=bob,ou=people,o=site
changetype: delete

dn: uid=bob,ou=people,o=site
changetype: modify
replace: title
title: Boss
-
";
    let directory = with_people(Options::default(), &["ann", "bob"]).await;
    let checked = directory.check_import(ldif.as_bytes()).await.expect("it is read");
    assert!(directory.find("ou=new,o=site").await.is_err(), "nothing is changed");
    let imported = directory.import(ldif.as_bytes(), &mut |_| {}).await.expect("it is read");
    let lines = |imported: &tocsin_directory::Imported| {
        let mut lines: Vec<usize> = imported.refused.iter().map(|(line, ..)| *line).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!((checked.done, checked.present), (imported.done, imported.present), "{checked:?} {imported:?}");
    assert_eq!(lines(&checked), lines(&imported), "{checked:?} {imported:?}");
    assert_eq!((imported.done, imported.present, imported.refused.len()), (5, 1, 3));
}
