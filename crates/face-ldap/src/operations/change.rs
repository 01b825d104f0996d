//! Changes: RFC 4511, 4.6 to 4.9. The directory does them; here they only get their names.

use std::sync::Arc;

use tocsin_directory::{
    Directory,
    access::Asker,
    refusal::{Code, Refusal},
};

use crate::message::Request;

pub(super) async fn run(directory: Directory, asker: Arc<Asker>, request: Request) -> Result<Code, Refusal> {
    match request {
        Request::Add { dn, attributes } => directory.add(&asker, &dn, attributes).await,
        Request::Modify { dn, modifications } => directory.modify(&asker, &dn, modifications).await,
        Request::Delete { dn } => directory.remove(&asker, &dn).await,
        Request::Rename { dn, new_rdn, delete_old, new_superior } => {
            directory.rename(&asker, &dn, &new_rdn, delete_old, new_superior.as_deref()).await
        }
        _ => Err(Refusal::new(Code::ProtocolError, "this is no change")),
    }
    .map(|()| Code::Success)
}
