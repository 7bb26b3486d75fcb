//! A connection of sqlx that is lent to read only, where it cannot be used.

use idem_runtime::idempotent;

#[idempotent(scope = global)]
async fn pay(_tx: &sqlx::PgConnection) -> String {
    String::new()
}

fn main() {}
