//! Helper attributes that do not exist.

use idem_runtime::ScopeKey;

#[derive(ScopeKey)]
#[scope(skip)]
struct Account {
    #[scope(ignore)]
    id: u64,
    #[scope(crate = idem_runtime)]
    tenant: u64,
}

fn main() {}
