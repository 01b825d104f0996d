//! Compare operation (RFC 4511, 4.10).

use std::sync::Arc;

use tocsin_directory::{
    Directory,
    access::AuthzId,
    filter::Filter,
    ldap_error::{Code, LdapError},
};

use crate::{response::ResponseBuilder, session::RequestResult};

pub(super) async fn run(
    directory: Directory,
    requester: Arc<AuthzId>,
    answered: ResponseBuilder,
    dn: String,
    (attribute, value): (String, Vec<u8>),
    assertion: Option<Filter>,
) -> RequestResult {
    let compared = directory.compare(&requester, &dn, (attribute.as_str(), value.as_slice()), assertion.as_ref());
    let result: Result<bool, LdapError> = compared.await;
    RequestResult::Answer(answered.answer(result.map(|is| if is { Code::CompareTrue } else { Code::CompareFalse })))
}
