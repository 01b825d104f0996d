//! Return addresses of versions before 2026-12: `base+batch-ordinal-signature@domain`, with numbers of base 36 and a
//! signature of 100 bits. They are verified, and not issued any more.

use ring::hmac;
use tocsin_model::id::{NotificationBatchId, NotificationId};

use super::{Origin, Purpose, Reference, Target};

/// Purpose of the derived key.
pub(super) const PURPOSE: &[u8] = b"return address";
/// Letters of the signature.
const LETTERS: usize = 20;

/// The content of the local part of such an address; `None` without a valid signature.
pub(super) fn verify(local: &str, keys: &[hmac::Key]) -> Option<Origin> {
    let (_, sealed) = local.rsplit_once('+')?;
    let sealed = sealed.to_ascii_lowercase();
    let (what, letters) = sealed.rsplit_once('-')?;
    let (reference, target) = match what.split_once('-') {
        Some((batch, ordinal)) => {
            let ordinal = u32::from_str_radix(ordinal, 36).ok()?;
            let batch = NotificationBatchId(u64::from_str_radix(batch, 36).ok()?);
            (Reference::Notification(NotificationId { batch, ordinal }), Target::OnlyRecipient)
        }
        None => (Reference::Multicast(NotificationBatchId(u64::from_str_radix(what, 36).ok()?)), Target::Reported),
    };
    // The signature is over the text, so a number has one text only: without a sign or leading zeros.
    let is_canonical = what.split('-').all(|number| number == "0" || !number.starts_with(['0', '+']));
    let is_signed = keys.iter().any(|key| is_same(&signature(key, what), letters));
    (is_canonical && is_signed).then_some(Origin { purpose: Purpose::Bounce, reference, target })
}

fn signature(key: &hmac::Key, what: &str) -> String {
    let tag = hmac::sign(key, what.as_bytes());
    let letter = |byte: &u8| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(byte % 32)]);
    tag.as_ref().iter().take(LETTERS).map(letter).collect()
}

/// Compares in constant time.
fn is_same(ours: &str, theirs: &str) -> bool {
    ours.len() == theirs.len() && ours.bytes().zip(theirs.bytes()).fold(0, |other, (a, b)| other | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::super::*;

    #[test]
    fn addresses_of_earlier_versions_are_verified_and_cannot_be_made() {
        // Issued by an earlier version with the secret of 32 sevens.
        let one = "bounces+3-15-atrasq3xzdrwy2bxgkyl@example.org";
        let many = "bounces+3-3lnqo62qhlx74blnos6g@example.org";
        let addresses = |secret: u8, base: &str, position| {
            ReturnAddresses::new(base, position, &[[secret; 32]], Duration::from_secs(86_400)).expect("a configuration")
        };
        let ours = addresses(7, "bounces@example.org", Position::Subaddress);
        let now = Timestamp::from_millis(1_796_000_000_000);
        let found = |address: &str| ours.verify(address, now).map(|verified| *verified.origin());
        let reference = Reference::Notification(NotificationId { batch: NotificationBatchId(3), ordinal: 41 });
        let purpose = Purpose::Bounce;
        let expected = Origin { purpose, reference, target: Target::OnlyRecipient };
        assert_eq!(found(one), Ok(expected));
        assert_eq!(found(&one.to_uppercase()), Ok(expected));
        let reference = Reference::Multicast(NotificationBatchId(3));
        assert_eq!(found(many), Ok(Origin { purpose, reference, target: Target::Reported }));
        let whole = addresses(7, "any@example.org", Position::WholeLocalPart);
        assert!(whole.verify(one, now).is_ok(), "the domain is the same");
        assert!(addresses(8, "bounces@example.org", Position::Subaddress).verify(one, now).is_err());
        for wrong in [
            one.replace("+3-", "+4-"),
            one.replace("+3-15-", "+3-"),
            one.replace("-15-", "-015-"),
            one.replace("-15-", "-+15-"),
            many.replace("+3-", "+3-15-"),
            one.replace("example.org", "example.net"),
            "bounces+3-15-aaaaaaaaaaaaaaaaaaaa@example.org".to_owned(),
            "bounces+3-15@example.org".to_owned(),
        ] {
            assert!(found(&wrong).is_err(), "{wrong}");
        }
    }
}
