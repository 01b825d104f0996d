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
    let result: Result<bool, Refusal> = directory.compare(&asker, &dn, &attribute, &value).await;
    Done::Answer(answered.answer(result.map(|is| if is { Code::CompareTrue } else { Code::CompareFalse })))
}
