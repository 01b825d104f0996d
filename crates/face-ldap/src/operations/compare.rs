//! Does an entry have a value? RFC 4511, 4.10.

use std::sync::Arc;

use tocsin_directory::{
    Directory,
    access::Asker,
    refusal::{Code, Refusal},
};

use super::Answered;
use crate::connection::Done;

pub(super) async fn run(
    directory: Directory,
    asker: Arc<Asker>,
    answered: Answered,
    dn: String,
    attribute: String,
    value: Vec<u8>,
) -> Done {
    let compared = async {
        let shown = directory.find(&dn).await?;
        let grant = directory.access().grant(&asker, &shown.entry);
        tocsin_directory::compare(&shown, &attribute, &value, &grant, &directory.schema())
    };
    let result: Result<bool, Refusal> = compared.await;
    Done::Answer(answered.answer(result.map(|is| if is { Code::CompareTrue } else { Code::CompareFalse })))
}
