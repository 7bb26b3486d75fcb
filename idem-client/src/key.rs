//! The idempotency key of a request: the caller's, or one made for it.

use http::{HeaderName, HeaderValue};
use reqwest::Request;
use uuid::Uuid;

use crate::error::Error;

/// Makes a key that nobody has made before: a version 7 UUID, as text.
///
/// For operations that must survive this process: make one, store it with what is to be done, then send it, and send
/// the same after a restart.
#[must_use]
pub fn fresh_key() -> String {
    Uuid::now_v7().to_string()
}

/// Which header carries the key, and in which form the layer writes it.
#[derive(Clone, Debug)]
pub(crate) struct KeyHeader {
    pub(crate) name: HeaderName,
    pub(crate) quoted: bool,
}

impl Default for KeyHeader {
    fn default() -> Self {
        Self {
            name: HeaderName::from_static("idempotency-key"),
            quoted: false,
        }
    }
}

impl KeyHeader {
    /// Sees to it that the request has its key, if it needs one, and returns it.
    ///
    /// What the caller has set stays as it is, but nobody prints it any more.
    pub(crate) fn place(&self, request: &mut Request) -> Result<Option<HeaderValue>, Error> {
        let mut given = request.headers().get_all(&self.name).iter();
        let key = match (given.next().cloned(), given.next()) {
            (Some(_), Some(_)) => return Err(Error::KeyGivenTwice),
            (Some(key), None) if key.is_empty() || key.to_str().is_err() => {
                return Err(Error::KeyMalformed);
            }
            (Some(key), None) => Some(key),
            (None, _) if request.method().is_idempotent() => None,
            (None, _) => Some(self.make()?),
        };
        let key = key.map(|mut key| {
            key.set_sensitive(true);
            key
        });
        if let Some(key) = &key {
            request.headers_mut().insert(self.name.clone(), key.clone());
        }
        Ok(key)
    }

    fn make(&self) -> Result<HeaderValue, Error> {
        let key = fresh_key();
        let text = if self.quoted {
            format!("\"{key}\"")
        } else {
            key
        };
        HeaderValue::try_from(text).map_err(|_| Error::KeyMalformed)
    }
}
