//! What a service can measure of the framework: names and labels of the metrics, in one place.
//!
//! Without the feature `metrics` nothing is measured, and nothing of it costs anything.
//! No label holds a key, a scope or anything else of a request; operations are as many as routes.

use std::{borrow::Cow, future::Future};

/// Requests, by `operation` and `outcome`: the words of the span's field, and `remembered` for what
/// `Builder::cache` has answered.
#[cfg(feature = "metrics")]
const REQUESTS: &str = "idem_requests_total";

/// How long the framework's own trips to the database take, by `flight`.
#[cfg(feature = "metrics")]
const FLIGHTS: &str = "idem_flight_seconds";

/// Keys that were claimed once more after the handler had run, by `cause`.
#[cfg(feature = "metrics")]
const SECOND_CLAIMS: &str = "idem_second_claims_total";

/// Expired records that were deleted.
#[cfg(feature = "metrics")]
const SWEPT: &str = "idem_swept_records_total";

/// Signs of lost connections.
#[cfg(feature = "metrics")]
const LOST: &str = "idem_lost_connections_total";

/// Names one kind of trip to the database.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flight {
    /// Getting a connection, looking the key up.
    Look,
    /// Getting a connection, beginning, looking the key up.
    Claim,
    /// Storing the answer, committing.
    Keep,
}

/// Says why a key was claimed once more after its handler had run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// The answer to COMMIT did not come.
    LostCommit,
    /// A serialisation failure or a deadlock.
    Serialization,
    /// The connection had broken, or not answered in time, before COMMIT.
    LostConnection,
    /// Another request had come first.
    Overtaken,
    /// The service's `retryable` hook has asked for it.
    Retryable,
}

/// Tells the recorder what the metrics mean.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use metrics::{Unit, describe_counter, describe_histogram};

        describe_counter!(REQUESTS, "Guarded requests by operation and outcome.");
        describe_histogram!(
            FLIGHTS,
            Unit::Seconds,
            "Trips of the framework to the database, with the wait for a connection."
        );
        describe_counter!(
            SECOND_CLAIMS,
            "Keys claimed once more after the handler had run, by cause."
        );
        describe_counter!(SWEPT, "Expired records that were deleted.");
        describe_counter!(
            LOST,
            "Signs of lost database connections; one loss may show as several."
        );
    }
}

/// Counts a request that has its answer. The operation is asked for only if somebody counts.
pub(crate) fn answered(operation: impl FnOnce() -> Cow<'static, str>, outcome: &'static str) {
    #[cfg(feature = "metrics")]
    metrics::counter!(REQUESTS, "operation" => operation(), "outcome" => outcome).increment(1);
    #[cfg(not(feature = "metrics"))]
    let _ = (operation, outcome);
}

/// Measures a trip to the database, however it ends.
#[cfg(feature = "metrics")]
pub(crate) async fn timed<T>(flight: Flight, trip: impl Future<Output = T>) -> T {
    let begun = std::time::Instant::now();
    let ended = trip.await;
    let flight = match flight {
        Flight::Look => "look",
        Flight::Claim => "claim",
        Flight::Keep => "keep",
    };
    metrics::histogram!(FLIGHTS, "flight" => flight).record(begun.elapsed());
    ended
}

/// Makes the trip.
#[cfg(not(feature = "metrics"))]
pub(crate) fn timed<T>(_: Flight, trip: impl Future<Output = T>) -> impl Future<Output = T> {
    trip
}

/// Counts a key that is claimed once more.
pub(crate) fn claimed_again(cause: Cause) {
    #[cfg(feature = "metrics")]
    {
        let cause = match cause {
            Cause::LostCommit => "lost-commit",
            Cause::Serialization => "serialization",
            Cause::LostConnection => "lost-connection",
            Cause::Overtaken => "overtaken",
            Cause::Retryable => "retryable",
        };
        metrics::counter!(SECOND_CLAIMS, "cause" => cause).increment(1);
    }
    #[cfg(not(feature = "metrics"))]
    let _ = cause;
}

/// Counts records that the sweep has deleted.
pub(crate) fn swept(records: u64) {
    #[cfg(feature = "metrics")]
    metrics::counter!(SWEPT).increment(records);
    #[cfg(not(feature = "metrics"))]
    let _ = records;
}

/// Counts a lost connection.
pub(crate) fn lost() {
    #[cfg(feature = "metrics")]
    metrics::counter!(LOST).increment(1);
}
