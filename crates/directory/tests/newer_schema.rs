//! Entries stored under an older schema meet newer definitions.

mod support;

use tocsin_directory::{
    Directory, Modification, ModifyType, Options, Preconditions,
    access::AuthzId,
    entry::SUBSCHEMA,
    ldap_error::{Code, LdapError},
};

const DN: &str = "cn=lamp,o=site";

fn modification(act: ModifyType, attribute: &str, values: &[&str]) -> Modification {
    let values = values.iter().map(|value| value.as_bytes().to_vec()).collect();
    Modification { act, attribute: attribute.to_owned(), values }
}

async fn change(directory: &Directory, dn: &str, changes: Vec<Modification>) -> Result<(), LdapError> {
    let operator = AuthzId { manages: true, ..AuthzId::default() };
    directory.modify(&operator, dn, changes, Preconditions::default()).await.map(drop)
}

async fn define(directory: &Directory, attribute: &str, texts: &[&str]) {
    let change = change(directory, SUBSCHEMA, vec![modification(ModifyType::Add, attribute, texts)]).await;
    change.expect("the schema grows");
}

#[tokio::test]
async fn b8_an_entry_that_an_older_schema_let_in_is_changed_by_what_is_touched() {
    let options = Options { suffix: "o=site".to_owned(), ..Options::default() };
    let (_, directory) = support::in_memory(options).await;
    let colour = |single: &str| {
        format!("( 2.25.9.1 NAME 'colour' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 {single})")
    };
    let watts = "( 2.25.9.2 NAME 'watts' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 )";
    define(&directory, "attributeTypes", &[&colour(""), watts]).await;
    define(
        &directory,
        "objectClasses",
        &["( 2.25.9.3 NAME 'lamp' SUP top STRUCTURAL MUST cn MAY ( colour $ watts $ description ) )"],
    )
    .await;
    let values = |texts: &[&str]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
    let given = vec![
        ("objectClass".to_owned(), values(&["lamp"])),
        ("cn".to_owned(), values(&["lamp"])),
        ("colour".to_owned(), values(&["red", "blue"])),
    ];
    let operator = AuthzId { manages: true, ..AuthzId::default() };
    directory.add(&operator, DN, given, Preconditions::default()).await.expect("added");

    // Now `colour` is single-valued, and a lamp requires watts.
    define(&directory, "attributeTypes", &[&colour("SINGLE-VALUE ")]).await;
    define(
        &directory,
        "objectClasses",
        &["( 2.25.9.3 NAME 'lamp' SUP top STRUCTURAL MUST ( cn $ watts ) MAY ( colour $ description ) )"],
    )
    .await;
    let code = |done: Result<(), LdapError>| done.err().map(|refusal| refusal.code);
    let shown = directory.find(DN).await.expect("there");
    assert_eq!(shown.entry.attribute("colour").expect("colours").values.len(), 2, "what is stored is shown");
    let described = vec![modification(ModifyType::Replace, "description", &["bright"])];
    assert_eq!(code(change(&directory, DN, described).await), None);
    let third = vec![modification(ModifyType::Add, "colour", &["green"])];
    assert_eq!(code(change(&directory, DN, third).await), Some(Code::ConstraintViolation));
    let one = vec![modification(ModifyType::Replace, "colour", &["green"])];
    assert_eq!(code(change(&directory, DN, one).await), None);
    assert_eq!(code(change(&directory, DN, vec![modification(ModifyType::Add, "watts", &["40"])]).await), None);
    let gone = vec![modification(ModifyType::Delete, "watts", &[])];
    assert_eq!(code(change(&directory, DN, gone).await), Some(Code::ObjectClassViolation), "it has it now");
    let other = vec![("objectClass".to_owned(), values(&["lamp"])), ("cn".to_owned(), values(&["other"]))];
    let made = directory.add(&operator, "cn=other,o=site", other, Preconditions::default()).await;
    assert_eq!(made.err().map(|refusal| refusal.code), Some(Code::ObjectClassViolation), "a new one needs it");
}
