//! LDIF import and export: a record sees the changes of the records before it.

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
async fn each_record_sees_the_changes_of_earlier_records() {
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
    directory.authenticate("uid=anna,ou=staff,o=site", b"secret".to_vec()).await.expect("the last password holds");
}

#[tokio::test]
async fn an_export_can_be_imported() {
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

/// Line and DN of each failed record.
fn refused(imported: &Imported) -> Vec<(usize, &str)> {
    imported.refused.iter().map(|(line, dn, _)| (*line, dn.as_str())).collect()
}

const PERSON: &str = "objectClass: inetOrgPerson\ncn: x\nsn: y\n";

#[tokio::test]
async fn ldif_a_file_with_a_byte_order_mark_is_imported() {
    let directory = directory().await;
    let imported =
        import(&directory, &format!("\u{feff}version: 1\r\n\r\ndn: uid=ann,ou=people,o=site\n{PERSON}")).await;
    assert_eq!((imported.done, imported.refused), (1, Vec::new()));
    let imported = import(&directory, &format!("\u{feff}dn: uid=bo,ou=people,o=site\n{PERSON}")).await;
    assert_eq!((imported.done, imported.refused), (1, Vec::new()));
}

#[tokio::test]
async fn ldif_a_broken_record_stops_no_other() {
    let directory = directory().await;
    for (number, fault) in [
        "jpegPhoto:< file:///photos/bo.jpg",
        "jpegPhoto:: n/o base64",
        "control: 1.2.840.113556.1.4.805 true",
        "no line of LDIF",
        "nosuchattribute: x",
        "uidNumber: many",
    ]
    .iter()
    .enumerate()
    {
        let of = |name: &str| format!("uid={name}{number},ou=people,o=site");
        let ldif =
            format!("dn: {}\n{PERSON}\ndn: {}\n{PERSON}{fault}\n\ndn: {}\n{PERSON}", of("ann"), of("bo"), of("cy"));
        let imported = import(&directory, &ldif).await;
        assert_eq!(imported.done, 2, "{fault}: {imported:?}");
        let line = imported.refused[0].0;
        assert!((line == 6 || line == 10) && imported.refused[0].1 == of("bo"), "{imported:?}");
        directory.find(&of("cy")).await.expect("it is there");
        assert!(directory.find(&of("bo")).await.is_err());
    }
    let mut bytes = format!("dn: uid=ann,ou=people,o=site\n{PERSON}description: ").into_bytes();
    bytes.extend_from_slice(b"\xe4\n\n");
    bytes.extend_from_slice(format!("dn: uid=cy,ou=people,o=site\n{PERSON}").as_bytes());
    let imported = directory.import(&bytes[..], &mut |_| {}).await.expect("it is read");
    assert_eq!((imported.done, refused(&imported)), (1, vec![(5, "uid=ann,ou=people,o=site")]));
}

/// It was counted among the entries that exist already.
#[tokio::test]
async fn ldif_a_rename_to_a_name_that_exists_is_reported() {
    let directory = directory().await;
    let ldif = format!(
        "dn: uid=ann,ou=people,o=site\n{PERSON}\ndn: uid=bo,ou=people,o=site\n{PERSON}\n\
         dn: uid=ann,ou=people,o=site\nchangetype: modrdn\nnewrdn: uid=bo\ndeleteoldrdn: 1\n"
    );
    let imported = import(&directory, &ldif).await;
    let expected = (2, 0, vec![(11, "uid=ann,ou=people,o=site")]);
    assert_eq!((imported.done, imported.present, refused(&imported)), expected);
    directory.find("uid=ann,ou=people,o=site").await.expect("it has its old name");
}

#[tokio::test]
async fn ldif_entries_may_stand_before_those_above_them() {
    let directory = directory().await;
    let ldif = format!(
        "dn: uid=ann,ou=b,ou=a,o=site\n{PERSON}\n\
         dn: uid=ann,ou=b,ou=a,o=site\nchangetype: modify\nreplace: sn\nsn: Z\n\n\
         dn: ou=b,ou=a,o=site\nobjectClass: organizationalUnit\n\n\
         dn: uid=gone,o=site\nchangetype: delete\n\n\
         dn: uid=bo,ou=nowhere,o=site\n{PERSON}\n\
         dn: ou=a,o=site\nobjectClass: organizationalUnit\n"
    );
    let imported = import(&directory, &ldif).await;
    assert_eq!(
        (imported.done, refused(&imported)),
        (4, vec![(14, "uid=gone,o=site"), (17, "uid=bo,ou=nowhere,o=site")])
    );
    let ann = directory.find("uid=ann,ou=b,ou=a,o=site").await.expect("it is there");
    assert_eq!(&*ann.entry.attribute("sn").expect("it has one").values[0], b"Z");
}

#[tokio::test]
async fn ldif_operational_attributes_of_slapcat_are_left_out() {
    let directory = directory().await;
    let operational = "structuralObjectClass: inetOrgPerson\nentryUUID: 5d2b9b6e-7a0c-103f-8d3a-5f0d0c6b0f10\n\
        creatorsName: cn=admin,o=site\ncreateTimestamp: 20260101000000Z\nentryCSN: 20260101000000.000000Z#000000#000#000000\n\
        modifiersName: cn=admin,o=site\nmodifyTimestamp: 20260101000000Z\ncontextCSN: 20260101000000.000000Z#000000#000#000000\n\
        hasSubordinates: FALSE\nentryDN: uid=ann,ou=people,o=site\nsubschemaSubentry: cn=Subschema\nmemberOf: cn=g,o=site\n\
        pwdChangedTime: 20260101000000Z\n";
    let ldif = format!("dn: uid=ann,ou=people,o=site\n{PERSON}userPassword: {{SSHA}}x\n{operational}pwdReset: TRUE\n")
        .replace("userPassword: {SSHA}x\n", "userPassword: {SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n");
    let imported = import(&directory, &ldif).await;
    assert_eq!((imported.done, &imported.refused), (1, &Vec::new()));
    let ann = directory.find("uid=ann,ou=people,o=site").await.expect("it is there");
    assert!(ann.entry.attribute("creatorsname").is_none() && ann.entry.attribute("memberof").is_none());
    let audit = "dn: uid=ann,ou=people,o=site\nchangetype: modify\nreplace: title\ntitle: Dr\n-\n\
        replace: modifiersName\nmodifiersName: cn=admin,o=site\n-\nreplace: entryCSN\nentryCSN: x\n-\n";
    let imported = import(&directory, audit).await;
    assert_eq!((imported.done, &imported.refused), (1, &Vec::new()));
}

#[tokio::test]
async fn d_a_record_that_the_schema_does_not_allow_is_refused_as_a_whole() {
    let directory = directory().await;
    let person = "objectClass: inetOrgPerson\nsn: Abe\n";
    let imported = import(
        &directory,
        &format!(
            "dn: cn=ann,o=site\n{person}shoeSize: 42\n\n\
             dn: cn=bob,o=site\n{person}member: cn=ann,o=site\n\n\
             dn: cn=cid,o=site\n{person}\n\
             dn: cn=cid,o=site\nchangetype: modify\nreplace: sn\nsn: New\n-\nadd: shoeSize\nshoeSize: 42\n\n\
             dn: cn=cid,o=site\nchangetype: modify\nreplace: sn\nsn: New\n-\nadd: member\nmember: cn=x\n\n\
             dn: cn=dan,o=site\nobjectClass: unheardOf\nsn: Abe\n\n\
             dn: cn=eve,o=site\n{person}title;lang-de: Chefin\n\n\
             dn: cn=fay,o=site\n{person}userPassword: {{SHA}}5en6G6MezRroT3XKqkdPOmY/BfQ=\npwdReset: perhaps\n"
        ),
    )
    .await;
    assert_eq!((imported.done, refused(&imported).len()), (1, 7), "{:?}", imported.refused);
    let expected = [
        (1, "cn=ann,o=site", "there is no attribute `shoeSize`; add it to `attributeTypes` of `cn=subschema`"),
        (6, "cn=bob,o=site", "attribute 'member' not allowed by the entry's object classes"),
        (15, "cn=cid,o=site", "there is no attribute `shoeSize`; add it to `attributeTypes` of `cn=subschema`"),
        (23, "cn=cid,o=site", "attribute 'member' not allowed by the entry's object classes"),
        (31, "cn=dan,o=site", "there is no object class `unheardOf`; add it to `objectClasses` of `cn=subschema`"),
        (35, "cn=eve,o=site", "there is no attribute `title;lang-de`; add it to `attributeTypes` of `cn=subschema`"),
    ];
    assert_eq!(refused(&imported)[6], (40, "cn=fay,o=site"));
    for ((line, dn, why), expected) in imported.refused.iter().zip(expected) {
        assert_eq!((*line, dn.as_str(), why.as_str()), expected);
    }
    for dn in ["cn=ann,o=site", "cn=bob,o=site", "cn=dan,o=site", "cn=eve,o=site", "cn=fay,o=site"] {
        assert!(directory.find(dn).await.is_err(), "{dn} is not there in part");
    }
    let cid = directory.find("cn=cid,o=site").await.expect("it was added");
    let sn = cid.entry.attribute("sn").map(|found| found.values[0].to_vec());
    assert_eq!(sn.as_deref(), Some(&b"Abe"[..]), "no modification of a refused record is carried out");
}
