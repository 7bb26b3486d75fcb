//! A union.

use idem_runtime::ScopeKey;

#[derive(ScopeKey)]
union Id {
    small: u32,
    large: u64,
}

fn main() {}
