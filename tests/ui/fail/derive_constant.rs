//! Types with one value only.

use idem_runtime::ScopeKey;

#[derive(ScopeKey)]
struct Unit;

#[derive(ScopeKey)]
struct Skipped {
    #[scope(skip)]
    id: u64,
}

#[derive(ScopeKey)]
enum One {
    Only,
}

#[derive(ScopeKey)]
enum Never {}

fn main() {}
