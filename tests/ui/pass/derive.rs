//! Types that can derive `ScopeKey`.
#![deny(warnings, missing_docs)]

use actix_web::{App, web};
use idem_runtime::{ScopeKey, idempotent, postgres::Tx};
use serde::Deserialize;

/// Named fields, one of which does not matter.
#[derive(ScopeKey)]
pub struct Account {
    /// Written.
    pub tenant: String,
    /// Written.
    pub user: u64,
    /// Left out; its type cannot be a scope.
    #[scope(skip)]
    pub balance: f64,
}

/// A newtype.
#[derive(ScopeKey, Deserialize)]
pub struct Tenant(pub String);

/// A type with parameters of every kind.
#[derive(ScopeKey)]
pub struct Pair<'a, A: Clone, B, const N: usize>
where
    B: Copy,
{
    /// Written.
    pub first: &'a A,
    /// Written.
    pub second: B,
    /// Left out.
    #[scope(skip)]
    pub rest: [u8; N],
}

/// Variants of every kind.
#[derive(ScopeKey, Deserialize)]
pub enum Caller<T> {
    /// Written as its name.
    Public,
    /// Written as its name and field.
    Service(T),
    /// Written as its name and one field.
    User {
        /// Written.
        id: u64,
        /// Left out.
        #[scope(skip)]
        score: f64,
    },
    /// A keyword.
    r#Self_,
}

#[idempotent(scope = caller.0)]
async fn pay(caller: web::Json<Caller<Tenant>>, _tx: &Tx) -> String {
    match &caller.0 {
        Caller::User { score, .. } => score.to_string(),
        _ => String::new(),
    }
}

fn assert_scope<T: ScopeKey>() {}

fn main() {
    assert_scope::<Account>();
    assert_scope::<Pair<'_, String, u64, 3>>();
    let _ = App::new().route("/payments", web::post().to(pay));
}
