//! Sessions in SMTP and LMTP (RFC 5321, RFC 2033).

use tocsin_mail_in::fuzzing::run_session;

/// Replies and mails do not depend on how the bytes of a client are cut into packets.
pub(crate) fn conversation(input: &[u8]) {
    let Some((cut, bytes)) = input.split_first() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let whole = run_session(&[bytes]).await;
        let pieces: Vec<&[u8]> = bytes.chunks(usize::from(*cut).max(1)).collect();
        let cut = run_session(&pieces).await;
        assert_eq!(String::from_utf8_lossy(&whole.0), String::from_utf8_lossy(&cut.0));
        assert_eq!(whole.1, cut.1);
        for line in whole.0.split(|byte| *byte == b'\n') {
            assert!(
                line.is_empty() || line.len() <= 511 && line.ends_with(b"\r"),
                "a reply is a line of at most 512 bytes"
            );
        }
    });
}
