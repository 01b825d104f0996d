//! TXT records of mail domains: SPF, DKIM, DMARC.

use tocsin_mail_domain::fuzzing::parse_record;

/// A record of a foreign domain.
pub(crate) fn mail_domain(input: &[u8]) {
    parse_record(&String::from_utf8_lossy(input));
}
