//! Hands the key in use to the handler.

use std::{
    cell::OnceCell,
    fmt,
    future::{Ready, ready},
    rc::Rc,
    sync::Arc,
};

use actix_web::{
    FromRequest, HttpMessage, HttpRequest, dev::Payload, error::ErrorInternalServerError,
};

use crate::model::Identity;

/// The idempotency key of the request that a guarded handler runs for.
///
/// Calls to other services are outside the transaction: after a rollback they are made again. With
/// a key derived from this one, the other service recognises the repeat.
///
/// ```
/// use actix_web::HttpResponse;
/// use idem_runtime::{IdempotencyKey, idempotent, postgres::Tx};
///
/// #[idempotent(scope = global)]
/// async fn charge(key: IdempotencyKey, _tx: &Tx) -> HttpResponse {
///     let downstream = key.derive("charge"); // the same in every repeat of this request
///     HttpResponse::Ok().insert_header(("x-charge-key", downstream)).finish()
/// }
/// ```
///
/// The derived key belongs to the key, not to the request: a request that was refused and is
/// corrected under its key derives the same one. Where the other service compares requests, put what
/// may change into the label (`key.derive(&format!("charge {amount}"))`).
///
/// Where the key is optional, take `Option<IdempotencyKey>`.
#[derive(Clone)]
pub struct IdempotencyKey(Rc<OnceCell<Arc<Identity>>>);

impl IdempotencyKey {
    /// Puts the key's place into the request; [`set`](Slot::set) fills it.
    pub(super) fn reserve(request: &HttpRequest) -> Slot {
        let slot = Slot(Rc::default());
        request.extensions_mut().insert(slot.clone());
        slot
    }

    /// The key, as it is stored: without the quotes of the header's quoted form.
    ///
    /// # Panics
    ///
    /// When an extractor calls it: the key can be known only after the extractors, since it may
    /// stand in the body. In a handler it is always known.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.identity().key().as_str()
    }

    /// Derives a key for one call to another service: stable over repeats of this request, unlike
    /// that of any other scope, operation, key or label. It has the form of a UUID (version 8).
    ///
    /// # Panics
    ///
    /// When an extractor calls it; see [`as_str`](Self::as_str).
    #[must_use]
    pub fn derive(&self, label: &str) -> String {
        self.identity().derive(label)
    }

    #[expect(
        clippy::panic,
        reason = "a wrong answer would give all requests one downstream key"
    )]
    fn identity(&self) -> &Identity {
        match self.0.get() {
            Some(identity) => identity,
            None => panic!("an extractor used `IdempotencyKey`: use it in the handler"),
        }
    }
}

/// The place of a key that is not known yet.
#[derive(Clone)]
pub(super) struct Slot(Rc<OnceCell<Arc<Identity>>>);

impl Slot {
    pub(super) fn set(&self, identity: &Arc<Identity>) {
        let _ = self.0.set(Arc::clone(identity));
    }
}

impl FromRequest for IdempotencyKey {
    type Error = actix_web::Error;
    type Future = Ready<Result<Self, Self::Error>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        let slot = request.extensions().get::<Slot>().cloned();
        ready(slot.map(|Slot(cell)| Self(cell)).ok_or_else(|| {
            ErrorInternalServerError(
                "this request runs without an idempotency key: take `IdempotencyKey` in a handler \
                 under `#[idempotent]`, and `Option<IdempotencyKey>` where the key is optional",
            )
        }))
    }
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey(..)")
    }
}
