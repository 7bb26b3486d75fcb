//! A transaction of sqlx whose connection goes back to its pool only after an end that was seen.

use std::{future::poll_fn, io, sync::LazyLock};

use scopeguard::ScopeGuard;
use sqlx::{Database, Error, Transaction, TransactionManager, pool::PoolConnection};
use tokio::runtime::{Builder, Handle};

use crate::error::SettingsError;

/// Holds a transaction that has begun. Dropping it closes its connection.
pub(super) struct Held<DB: Database> {
    transaction: Guarded<Transaction<'static, DB>>,
}

/// A value with a pooled connection inside, which is closed when the value is dropped.
pub(super) type Guarded<T> = ScopeGuard<T, fn(T)>;

impl<DB: Database> Held<DB> {
    /// Begins with this statement. When that fails or is cancelled half-way, the connection is
    /// closed: sqlx would hand it on as it is, inside the transaction or not.
    pub(super) async fn begin(
        connection: PoolConnection<DB>,
        statement: &'static str,
    ) -> Result<Self, Error> {
        let mut begin = guarded(Transaction::begin(connection, Some(statement.into())));
        let transaction = poll_fn(|context| closing(|| begin.as_mut().poll(context))).await?;
        Ok(Self {
            transaction: guarded(transaction),
        })
    }

    /// The transaction, as handlers are lent it.
    pub(super) fn transaction(&mut self) -> &mut Transaction<'static, DB> {
        &mut self.transaction
    }

    /// The connection that it runs on.
    pub(super) fn connection(&mut self) -> &mut DB::Connection {
        &mut self.transaction
    }

    /// Whether the transaction, as far as sqlx knows, is neither at its end nor inside a savepoint:
    /// only then does a commit commit, and a rollback roll everything back.
    pub(super) fn is_outermost(&self) -> bool {
        DB::TransactionManager::get_transaction_depth(&self.transaction) == 1
    }

    /// Commits.
    ///
    /// # Errors
    ///
    /// What the database or the connection says; the connection is closed then.
    pub(super) async fn commit(mut self) -> Result<(), Error> {
        let committed = DB::TransactionManager::commit(&mut self.transaction).await;
        match &committed {
            Ok(()) => self.release(),
            // A server says so before it lets go of what the transaction held, and answers the
            // next statement after that.
            Err(Error::Database(_)) => {
                let _ = DB::TransactionManager::rollback(&mut self.transaction).await;
            }
            Err(_) => {}
        }
        committed
    }

    /// Rolls back; a connection that does not say that it has done so is closed.
    ///
    /// # Errors
    ///
    /// What the database or the connection says.
    pub(super) async fn roll_back(mut self) -> Result<(), Error> {
        let rolled_back = DB::TransactionManager::rollback(&mut self.transaction).await;
        if rolled_back.is_ok() && !self.is_outermost() {
            self.release();
        }
        rolled_back
    }

    /// Returns the connection to its pool.
    fn release(self) {
        drop(ScopeGuard::into_inner(self.transaction));
    }
}

/// Checks that connections can be closed as [`Held`] does it.
///
/// # Errors
///
/// When the system is out of what it needs.
pub(super) fn prepare() -> Result<(), SettingsError> {
    match &*ENDED {
        Ok(_) => Ok(()),
        Err(error) => Err(SettingsError::Pool(error.to_string())),
    }
}

/// Guards a value with a pooled connection inside.
pub(super) fn guarded<T>(value: T) -> Guarded<T> {
    scopeguard::guard(value, |value| closing(|| drop(value)))
}

/// Runs `work`, in which every pooled connection that is dropped is closed instead of returned.
///
/// A [`Transaction`] gives its connection back, never away, and returns it by a task. A task that
/// is handed to a runtime that has ended is dropped at once, and with it the connection: sqlx
/// gives up its place in the pool, and the other end rolls back.
fn closing<T>(work: impl FnOnce() -> T) -> T {
    // `prepare` has checked it.
    let _inside = ENDED.as_ref().map(Handle::enter);
    work()
}

/// A runtime that has ended.
static ENDED: LazyLock<io::Result<Handle>> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread().build()?;
    let handle = runtime.handle().clone();
    runtime.shutdown_background();
    Ok(handle)
});
