//! Update operations (RFC 4511, 4.6 to 4.9), with assertions (RFC 4528) and pre- and post-reads (RFC 4527).

use std::sync::Arc;

use tocsin_directory::{
    CachedEntry, Directory, Preconditions, ReadEntries, Selection,
    access::AuthzId,
    ldap_error::{Code, LdapError},
};

use crate::{
    ber::DecodeError,
    message::{Control, Request, ResponseExtras, code_of, decode_attribute_list, decode_filter},
    oids::{ASSERTION, POST_READ, PRE_READ},
    show,
};

/// Controls of an update.
#[derive(Default)]
pub(super) struct UpdateControls {
    pub(super) terms: Preconditions,
    before: Vec<String>,
    after: Vec<String>,
}

impl UpdateControls {
    pub(super) fn read(controls: &[Control]) -> Result<UpdateControls, LdapError> {
        let mut requested = UpdateControls::default();
        for control in controls {
            let value = control.value.as_deref().unwrap_or_default();
            let wrong =
                |DecodeError(why)| LdapError::new(code_of(why), format!("the control {} has {why}", control.oid));
            match control.oid.as_str() {
                ASSERTION => requested.terms.assertion = Some(decode_filter(value).map_err(wrong)?),
                PRE_READ => {
                    requested.before = decode_attribute_list(value).map_err(wrong)?;
                    requested.terms.before = true;
                }
                POST_READ => {
                    requested.after = decode_attribute_list(value).map_err(wrong)?;
                    requested.terms.after = true;
                }
                _ => {}
            }
        }
        Ok(requested)
    }
}

/// Name of an update in the audit log.
pub(super) fn action(request: &Request) -> &'static str {
    match request {
        Request::Add { .. } => "ldap.add",
        Request::Delete { .. } => "ldap.delete",
        Request::Rename { .. } => "ldap.rename",
        _ => "ldap.modify",
    }
}

pub(super) async fn run(
    directory: Directory,
    requester: Arc<AuthzId>,
    request: Request,
    requested: UpdateControls,
) -> (Result<Code, LdapError>, ResponseExtras) {
    let UpdateControls { terms, before, after } = requested;
    let done = match request {
        Request::Add { dn, attributes } => directory.add(&requester, &dn, attributes, terms).await,
        Request::Modify { dn, modifications } => directory.modify(&requester, &dn, modifications, terms).await,
        Request::Delete { dn } => Box::pin(directory.remove(&requester, &dn, terms)).await,
        Request::Rename { dn, new_rdn, delete_old, new_superior } => {
            let renaming = directory.rename(&requester, &dn, &new_rdn, delete_old, new_superior.as_deref(), terms);
            Box::pin(renaming).await
        }
        _ => Err(LdapError::new(Code::ProtocolError, "not an update operation")),
    };
    match done {
        Ok(images) => (Ok(Code::Success), extra(&directory, &requester, images, &before, &after)),
        Err(refusal) => (Err(refusal), ResponseExtras::default()),
    }
}

fn extra(
    directory: &Directory,
    requester: &AuthzId,
    images: ReadEntries,
    before: &[String],
    after: &[String],
) -> ResponseExtras {
    let schema = directory.schema();
    let image = |shown: &CachedEntry, names: &[String]| {
        let mut out = Vec::new();
        let selection = Selection::read(names, false, &schema);
        show::body(&mut out, shown, &directory.access().grant(requester, &shown.entry), &selection, &schema, &[]);
        out
    };
    let before = images.before.map(|shown| (PRE_READ, image(&shown, before)));
    let after = images.after.map(|shown| (POST_READ, image(&shown, after)));
    ResponseExtras { controls: before.into_iter().chain(after).collect(), ..ResponseExtras::default() }
}
