//! What a test asks of the sessions in its database: to wait until they have come somewhere, and that none is left over.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that waits in vain has failed"
)]

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::database::Database;

/// How long a condition may take to come about, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Every other session of a client in this database.
const OTHERS: &str = "FROM pg_stat_activity WHERE datname = current_database() \
                      AND pid <> pg_backend_pid() AND backend_type = 'client backend'";

/// Counts the handlers of this database that sleep in Rust, their effect written.
///
/// Between two statements a session is idle too, but not for long; a statement that is only prepared shows as well.
pub const ASLEEP_IN_RUST: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE datname = current_database() AND state = 'idle in transaction' \
    AND (query LIKE 'INSERT INTO effects%' OR query LIKE '%nextval%') \
    AND state_change < clock_timestamp() - interval '0.1 s'";

impl Database {
    /// Waits until a query brings what is expected.
    ///
    /// # Panics
    /// When that takes longer than any machine needs.
    pub async fn until(&self, query: &str, expected: &str) {
        let start = Instant::now();
        loop {
            let found = self.run_sql(query).expect("the condition's query");
            if found == expected {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "waited for {expected}, found {found}: {query}"
            );
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until this many handlers sleep in Rust, their effect written.
    pub async fn until_asleep_in_rust(&self, handlers: usize) {
        self.until(ASLEEP_IN_RUST, &handlers.to_string()).await;
    }

    /// Waits until this many sessions sleep inside a statement.
    pub async fn until_asleep_in_sql(&self, sessions: usize) {
        let asleep = format!("SELECT count(*) {OTHERS} AND wait_event = 'PgSleep'");
        self.until(&asleep, &sessions.to_string()).await;
    }

    /// Returns how many handlers have begun to write, in all processes, undone writes included.
    ///
    /// # Panics
    /// When the database has no table of effects.
    #[must_use]
    pub fn begun(&self) -> usize {
        // A sequence is not rolled back.
        let begun = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM effects_id_seq";
        let begun = self.run_sql(begun).expect("the effects' sequence");
        begun.parse().expect("a number")
    }

    /// Checks that everything ends clean: no open transaction, no advisory lock, and at most this many connections.
    ///
    /// # Panics
    /// When something is left over.
    pub async fn assert_clean(&self, connections: usize) {
        let open =
            format!("SELECT count(*) {OTHERS} AND (state <> 'idle' OR xact_start IS NOT NULL)");
        self.until(&open, "0").await;
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        self.until(locks, "0").await;
        let within = format!("SELECT count(*) <= {connections} {OTHERS}");
        self.until(&within, "t").await;
    }
}
