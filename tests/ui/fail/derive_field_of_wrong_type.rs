//! A field whose type cannot be a scope.

use idem_runtime::ScopeKey;

#[derive(ScopeKey)]
struct Account {
    tenant: u64,
    balance: f64,
}

fn main() {}
