//! LDIF, in and out: what a record changes is there for those behind it.

use std::sync::Arc;

use tocsin_directory::{Directory, Imported, Options};
use tocsin_model::time::Timestamp;
use tocsin_store::memory::records::MemoryRecords;

async fn directory() -> Directory {
    let options = Options { suffix: "o=site".to_owned(), ..Options::default() };
    let records = Arc::new(MemoryRecords::new().expect("random numbers"));
    Directory::open(records, options, Arc::new(|| Timestamp(1))).await.expect("it opens")
}

async fn import(directory: &Directory, ldif: &str) -> Imported {
    directory.import(ldif.as_bytes(), &mut |_| {}).await.expect("it is read")
}

#[tokio::test]
async fn each_record_finds_what_those_before_it_did() {
    let directory = directory().await;
    let imported = import(
        &directory,
        "dn: cn=subschema\nchangetype: modify\nadd: attributeTypes\n\
            attributeTypes: ( 2.25.7.1 NAME 'limit' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 )\n\n\
            dn: ou=staff,o=site\nobjectClass: organizationalUnit\nuserPassword: takes long\n\n\
            dn: uid=ann,ou=staff,o=site\nobjectClass: account\nobjectClass: tocsinSubscriber\nlimit: 7\n\n\
            dn: uid=ann,ou=staff,o=site\nchangetype: modify\nadd: userPassword\nuserPassword: first\n\n\
            dn: uid=ann,ou=staff,o=site\nchangetype: modify\nreplace: userPassword\nuserPassword: secret\n\n\
            dn: uid=ann,ou=staff,o=site\nchangetype: modrdn\nnewrdn: uid=anna\ndeleteoldrdn: 1\n\n\
            dn: uid=anna,ou=staff,o=site\nchangetype: modify\nadd: description\ndescription: x\n",
    )
    .await;
    assert_eq!((imported.done, imported.refused), (7, Vec::new()));
    directory.prove("uid=anna,ou=staff,o=site", b"secret".to_vec()).await.expect("the last password holds");
}

#[tokio::test]
async fn what_is_exported_is_imported_again() {
    let (one, other) = (directory().await, directory().await);
    let ldif = "dn: ou=staff,o=site\nobjectClass: organizationalUnit\n\n\
        dn: cn=Ännchen,ou=staff,o=site\nobjectClass: inetOrgPerson\nsn: Muster\nmail: a@example.org\nmail: b@example.org\n\
        description:: IGxlYWRz\npreferredLanguage: de-AT\n";
    assert_eq!(import(&one, ldif).await.done, 2);
    let written = async |directory: &Directory| {
        let mut out = Vec::new();
        directory.export(&mut out).await.expect("memory takes all");
        String::from_utf8(out).expect("ASCII")
    };
    let first = written(&one).await;
    let imported = import(&other, &first).await;
    assert_eq!((imported.done, imported.present, imported.refused), (2, 2, Vec::new()));
    assert_eq!(written(&other).await, first);
}
