//! Items that are no function.

use idem_runtime::idempotent;

#[idempotent(scope = global)]
struct Payment;

#[idempotent(scope = global)]
mod payments {}

fn main() {}
