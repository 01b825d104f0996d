//! Random identity and secret of the installation.

use tocsin_model::hexadecimal::digits_of;

use crate::error::StoreError;

/// New installation identity: 96 random bits in hexadecimal.
pub(crate) fn new_installation() -> Result<String, StoreError> {
    Ok(digits_of(&random::<12>()?))
}

/// New random secret.
pub(crate) fn new_secret() -> Result<[u8; 32], StoreError> {
    random()
}

fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| StoreError::unavailable("the system has no random numbers"))?;
    Ok(bytes)
}
