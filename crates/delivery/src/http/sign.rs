use base64::{Engine, prelude::BASE64_STANDARD};
use ring::hmac;

/// Signs requests as Standard Webhooks 1.0 asks: `v1,<base64 of HMAC-SHA256>` for each secret.
pub(super) struct Signer {
    keys: Vec<hmac::Key>,
}

impl Signer {
    /// Takes one secret, or several separated by spaces. The error never shows the secret.
    pub fn new(secrets: &str) -> Result<Self, String> {
        let key = |secret: &str| {
            let encoded = secret.strip_prefix("whsec_").ok_or("a secret starts with `whsec_`")?;
            let bytes = BASE64_STANDARD.decode(encoded).map_err(|_| "what follows `whsec_` is not base64")?;
            match bytes.len() {
                24..=64 => Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes)),
                length => Err(format!("a secret has 24 to 64 bytes, this one has {length}")),
            }
        };
        let keys: Vec<_> = secrets.split_ascii_whitespace().map(key).collect::<Result<_, String>>()?;
        if keys.is_empty() { Err("the secret is empty".into()) } else { Ok(Signer { keys }) }
    }

    /// The value of `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut signatures = String::with_capacity(48 * self.keys.len());
        for key in &self.keys {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{timestamp}.").as_bytes());
            context.update(body);
            if !signatures.is_empty() {
                signatures.push(' ');
            }
            signatures.push_str("v1,");
            BASE64_STANDARD.encode_string(context.sign(), &mut signatures);
        }
        signatures
    }
}
