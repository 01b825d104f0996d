//! The directory and its LDAP face, if there is to be one.

use std::sync::Arc;

use tocsin_directory::{Directory, Options, entry::Shape};
use tocsin_face_ldap::{LdapOptions, Operators};
use tocsin_service::{Scope, Service};
use tocsin_store::entries::Entries;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::now;
use crate::{
    configuration::{Configuration, Ldap},
    failure::{Failure, Outcome},
};

/// Takes the configured address; `None`: there is to be no LDAP face.
///
/// # Errors
/// It is no address, or is taken.
pub(super) async fn listen(options: &Ldap) -> Outcome<Option<TcpListener>> {
    if options.listen.is_empty() {
        return Ok(None);
    }
    let listener = TcpListener::bind(&options.listen).await.map_err(|error| {
        Failure::failed(format!("cannot listen at ldap.listen `{}`; give an address and a free port", options.listen))
            .because(&error)
    })?;
    Ok(Some(listener))
}

/// Opens the directory and serves it.
///
/// # Errors
/// What of the configuration is wrong, or that the store does not answer.
pub(super) async fn start(
    listener: TcpListener,
    configuration: &Configuration,
    entries: Arc<dyn Entries>,
    service: Arc<Service>,
    stopping: CancellationToken,
) -> Outcome<JoinHandle<std::io::Result<()>>> {
    let ldap = &configuration.ldap;
    let options = Options {
        suffix: ldap.suffix.clone(),
        shape: shape(&ldap.device_attributes)?,
        access: ldap.access.clone(),
        cache_bytes: ldap.cache.0,
    };
    let directory = Directory::open(entries, options, Arc::new(now))
        .await
        .map_err(|refusal| Failure::usage(format!("the directory does not open; mend [ldap]: {}", refusal.message)))?;
    tokio::spawn(prepare(directory.clone(), ldap.cache.0));
    let options = LdapOptions {
        connections_max: ldap.connections_max as usize,
        connections_per_address_max: ldap.connections_per_address_max as usize,
        message_bytes_max: usize::try_from(ldap.message_max.0).unwrap_or(usize::MAX),
        pending_max: ldap.pending_max.max(1) as usize,
        patience: ldap.patience.0,
        idle_timeout: ldap.idle_timeout.0,
        size_limit: ldap.size_limit,
        time_limit: ldap.time_limit.0,
        anonymous: ldap.anonymous,
        ..LdapOptions::default()
    };
    let operators = Arc::new(Keys(service));
    Ok(tokio::spawn(tocsin_face_ldap::serve(listener, directory, operators, options, stopping)))
}

/// Builds what is missing of the indexes, and fills the cache, beside the serving.
async fn prepare(directory: Directory, cache_bytes: u64) {
    if let Err(error) = directory.build_indexes().await {
        tracing::error!(%error, "the indexes of the directory could not be built; searches look at every entry");
    }
    if let Err(error) = directory.warm(cache_bytes / 10 * 9).await {
        tracing::warn!(%error, "the directory's cache could not be filled");
    }
}

fn shape(pairs: &[String]) -> Outcome<Shape> {
    let wrong = |text: &str| {
        Failure::usage(format!(
            "mend ldap.device_attributes: `{text}` is no attribute with its channel, such as mail=email"
        ))
    };
    let schema = tocsin_directory::schema::Schema::standard();
    let read = |text: &String| {
        let (name, channel) = text.split_once('=').ok_or_else(|| wrong(text))?;
        let kind = schema.attribute(name).map_err(|_| wrong(text))?;
        Ok((kind.key.clone(), channel.parse().map_err(|_| wrong(text))?))
    };
    Ok(Shape { devices: pairs.iter().map(read).collect::<Outcome<_>>()? })
}

/// Operators of the directory are whoever holds a key that may change subscribers.
struct Keys(Arc<Service>);

impl Operators for Keys {
    fn is_operator(&self, key: &str) -> bool {
        self.0.authenticate(key).is_ok_and(|caller| caller.needs(Scope::SubscribersWrite).is_ok())
    }
}
