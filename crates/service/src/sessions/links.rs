//! One-time tokens of links: the first setup, and logins without a password. They are held in memory only.

use std::time::Duration;

use tocsin_model::time::Timestamp;

use crate::{
    error::ServiceError,
    keys::{new_token, token_hash as hash},
};

/// Lifetime of a setup link.
pub const SETUP_LINK_LIFETIME: Duration = Duration::from_secs(60 * 60);
/// Lifetime of a login link.
pub const LOGIN_LINK_LIFETIME: Duration = Duration::from_secs(5 * 60);
/// Maximum number of links in force; a new one replaces the oldest.
const LINKS_MAX: usize = 100;

/// Effect of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LinkPurpose {
    /// Creates the first user.
    Setup,
    /// Logs in as this user.
    Login(String),
}

/// The links in force, oldest first.
#[derive(Default)]
pub(super) struct Links(Vec<Link>);

struct Link {
    hash: [u8; 32],
    purpose: LinkPurpose,
    expires_at: Timestamp,
}

impl Links {
    /// Makes a link in place of the earlier ones of its purpose, and returns its token and expiry.
    pub(super) fn issue(&mut self, purpose: LinkPurpose, now: Timestamp) -> Result<(String, Timestamp), ServiceError> {
        let lifetime = match purpose {
            LinkPurpose::Setup => SETUP_LINK_LIFETIME,
            LinkPurpose::Login(_) => LOGIN_LINK_LIFETIME,
        };
        let (token, expires_at) = (new_token()?, now + lifetime);
        self.0.retain(|link| link.purpose != purpose && link.expires_at > now);
        if self.0.len() >= LINKS_MAX {
            self.0.remove(0);
        }
        self.0.push(Link { hash: hash(&token), purpose, expires_at });
        Ok((token, expires_at))
    }

    /// The purpose of a token in force.
    pub(super) fn find(&self, token: &str, now: Timestamp) -> Option<LinkPurpose> {
        let hash = hash(token);
        let found = self.0.iter().find(|link| link.hash == hash && link.expires_at > now);
        found.map(|link| link.purpose.clone())
    }

    /// Redeems a token: it works once.
    pub(super) fn redeem(&mut self, token: &str, now: Timestamp) -> Option<LinkPurpose> {
        let purpose = self.find(token, now)?;
        let hash = hash(token);
        self.0.retain(|link| link.hash != hash);
        Some(purpose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_works_once_within_its_lifetime_and_until_the_next_of_its_purpose() {
        let at = |minutes: i64| Timestamp::from_millis(minutes * 60_000);
        let mut links = Links::default();
        let login = || LinkPurpose::Login("ada".to_owned());
        let (setup, expires_at) = links.issue(LinkPurpose::Setup, at(0)).expect("random numbers");
        assert_eq!(expires_at, at(60));
        let (first, _) = links.issue(login(), at(0)).expect("random numbers");
        let (second, expires_at) = links.issue(login(), at(1)).expect("random numbers");
        assert_eq!(expires_at, at(6));
        assert_eq!(links.redeem(&first, at(2)), None, "the second replaced it");
        assert_eq!(links.redeem(&second, at(5)), Some(login()));
        assert_eq!(links.redeem(&second, at(5)), None, "it works once");
        let (third, _) = links.issue(login(), at(10)).expect("random numbers");
        assert_eq!(links.redeem(&third, at(15)), None, "it has expired");
        assert_eq!(links.find(&setup, at(59)), Some(LinkPurpose::Setup));
        assert_eq!(links.redeem(&setup, at(60)), None);
        for number in 0..2 * LINKS_MAX {
            links.issue(LinkPurpose::Login(number.to_string()), at(60)).expect("random numbers");
        }
        assert_eq!(links.0.len(), LINKS_MAX);
    }
}
