//! Numbers of signed texts in base 36, and their comparison in constant time.

/// Compares in constant time.
pub(crate) fn is_same(ours: &str, theirs: &str) -> bool {
    ours.len() == theirs.len() && ours.bytes().zip(theirs.bytes()).fold(0, |other, (a, b)| other | (a ^ b)) == 0
}

/// A number in base 36.
pub(crate) fn base36(mut number: u64) -> String {
    let mut digits = Vec::with_capacity(13);
    loop {
        digits.push(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.iter().rev().map(|digit| char::from(*digit)).collect()
}
